"""Accuracy against bytes: which maps to send, how many, how precisely, and what helps a server that gets only a few.

The composed model of split training never feeds back into the global one. So FedAvg is run once for each seed, and every arm (level,
selection, precision, few-shot option) is then measured on its last global model: clients choose and pack maps, the server trains the
upper part on them, and the composed network is tested. All arms take about as many steps at the server, however many maps there are.

    python studies/metadata_frontier.py --data FOLDER --out frontier

writes `frontier.csv` (a row for each arm and seed), `frontier.md` (means, and how much of the gap between few maps and all maps each
few-shot option closes) and the figure `frontier` (PDF, SVG and PNG). `--train 200 --rounds 1 --steps 1 --seeds 0` shows in a minute that
it runs.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path
from statistics import mean, stdev

import torch
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter

from coterie import Experiment, Record, resume, run
from coterie.data.maps import Maps
from coterie.data.selection import SELECTIONS
from coterie.methods import SplitMetadata
from coterie.methods.few_shot import FewShot
from coterie.population import Population
from coterie.results.report.figures import BYTES
from coterie.results.tables import amount
from coterie.site import SERVER, ModelCache
from coterie.style import PER_CENT, blank, colour, save_figure, styled
from coterie.training.optimisers import Sgd
from coterie.training.settings import Training

LEVELS = ("G1", "G2", "G3")
MARKERS = dict(zip(SELECTIONS, "oXs^vDP", strict=True))
FILLS = {"float32": "full", "float16": "left", "uint8": "none"}
HELP: dict[str, dict[str, object]] = {
    "mixup 0.4": {"upper": FewShot(mixup=0.4)},
    "dropout 0.5": {"upper": FewShot(dropout=0.5)},
    "weight decay 0.005": {"optimiser": Sgd(lr=0.1, weight_decay=5e-3)},
    "nearest-mean head": {"upper": FewShot(head="nearest-mean")},
    "cosine head": {"upper": FewShot(head="cosine")},
    "start from the global model": {"upper": FewShot(start="global")},
    "global up to G2, frozen": {"upper": FewShot(freeze="G2")},
    "global up to G3, frozen": {"upper": FewShot(freeze="G3")},
    "global up to G3, frozen, cosine head": {"upper": FewShot(freeze="G3", head="cosine")},
}
"""What few-shot learning offers, for selected maps at G1."""


@dataclass(frozen=True)
class Arm:
    """One way to send maps and to learn from them."""

    level: str
    selection: str
    precision: str = "float32"
    help: str = "-"

    def method(self, budget: int) -> SplitMetadata:
        """As a method; how long the server trains is not known before the maps are there."""
        changes = {key: value for key, value in HELP.get(self.help, {}).items() if key != "optimiser"}
        return replace(SplitMetadata(), level=self.level, selection=SELECTIONS.resolve(self.selection), precision=self.precision,
                       budget=budget, **changes)  # fmt: skip

    def training(self, maps: int, steps: int) -> Training:
        """So many epochs over these maps as come to about these steps."""
        plain = SplitMetadata().server
        assert isinstance(plain.batch, int)
        optimiser = HELP.get(self.help, {}).get("optimiser", plain.optimiser)
        return replace(plain, epochs=ceil(steps / ceil(maps / plain.batch)), optimiser=optimiser)


def arms() -> Iterator[Arm]:
    """Every selection at every level; three precisions of k-means and of everything; few-shot options at G1."""
    for level in LEVELS:
        yield from (Arm(level, selection) for selection in SELECTIONS)
        yield from (Arm(level, selection, precision) for selection in ("kmeans", "full") for precision in ("float16", "uint8"))
    yield from (Arm("G1", "kmeans", help=option) for option in HELP)


@dataclass(frozen=True)
class Found:
    """What an arm came to with one seed."""

    arm: Arm
    seed: int
    maps: int
    """That a client sends, on average."""
    payload: int
    """Bytes of its maps and labels, on average."""
    accuracy: float


def gather(arm: Arm, population: Population, model: Record, cache: ModelCache, budget: int) -> list[Record]:
    """The clients' part: what each of them sends."""
    method = arm.method(budget)
    return [method.metadata(population.site(client, 1, cache), model) for client in range(population.clients)]


def measure(arm: Arm, sent: Sequence[Record], population: Population, model: Record, cache: ModelCache, budget: int, steps: int) -> Found:
    """The server's part, and a test."""
    maps = Maps.join((each.group("activations"), each.tensors["labels"]) for each in sent)
    server = population.site(SERVER, 1, cache)
    composed = replace(arm.method(budget), server=arm.training(len(maps), steps)).compose(server, model, maps)
    payload = sum(each.payload_bytes for each in sent)
    accuracy = server.score(composed).metrics()["accuracy"]
    return Found(arm, population.plan.seed, len(maps) // len(sent), payload // len(sent), accuracy)


def federated(options: argparse.Namespace, seed: int) -> tuple[Population, Record, float]:
    """The population, the last global model of FedAvg on it, and its accuracy; a run that is there is reused."""
    plan = Experiment.parse(
        {
            "name": "metadata-frontier",
            "seed": seed,
            "rounds": options.rounds,
            "data": {"source": {"name": "cifar10", "part": True}, "train": options.train, "test": options.test},
            "partition": {"name": "classes", "clients": 20, "per_client": 2},
            "model": "wrn-10-1",
            "method": {"name": "fedavg", "weighting": "uniform"},
            "training": {"batch": 10, "optimiser": {"name": "sgd", "lr": 0.05}},
            "evaluation": {"every": options.rounds},
        }
    )
    folder = options.out / f"fedavg-{plan.digest()[:8]}"
    result = resume(folder, data=options.data) if folder.exists() else run(plan, folder, data=options.data)
    return plan.population(options.data), result.state.group("model"), result.accuracy()


def describe(values: Sequence[float]) -> str:
    """Mean and standard deviation in per cent."""
    return f"{100 * mean(values):.2f}%" + (f" ± {100 * stdev(values):.2f}" if len(values) > 1 else "")


def markdown(found: Sequence[Found], plain: Sequence[float]) -> str:
    """Two tables: all arms, and few-shot options with the share of the gap that each closes."""
    by_arm = {arm: [each for each in found if each.arm == arm] for arm in arms()}
    lines = [
        f"FedAvg's own global model: {describe(plain)}",
        "",
        "| level | selection | precision | maps a client | bytes a client | accuracy |",
    ]
    lines.append("|---|---|---|---|---|---|")
    for arm, runs in by_arm.items():
        if arm.help == "-":
            where = f"{runs[0].maps} | {amount(mean(each.payload for each in runs))}"
            lines.append(f"| {arm.level} | {arm.selection} | {arm.precision} | {where} | {describe([each.accuracy for each in runs])} |")
    few, every = (mean(each.accuracy for each in by_arm[Arm("G1", selection)]) for selection in ("kmeans", "full"))
    lines += ["", f"Few maps (k-means) against all maps at G1: {100 * few:.2f}% against {100 * every:.2f}%.", ""]
    lines += ["| few-shot option, k-means at G1 | accuracy | share of the gap closed |", "|---|---|---|"]
    for option in HELP:
        values = [each.accuracy for each in by_arm[Arm("G1", "kmeans", help=option)]]
        share = f"{100 * (mean(values) - few) / (every - few):.0f}%" if every > few else "there is no gap"
        lines.append(f"| {option} | {describe(values)} | {share} |")
    return "\n".join([*lines, "", "None of these options costs a byte: they change what the server does with the same maps.", ""])


def draw(found: Sequence[Found], plain: float, model_bytes: int, folder: Path) -> None:
    """Means over seeds: colour for the level, marker for the selection, filling for the precision."""
    with styled():
        figure, axes = blank(3.6)
        for arm in arms():
            runs = [each for each in found if each.arm == arm]
            if arm.help == "-":
                look = {"color": colour(LEVELS.index(arm.level)), "marker": MARKERS[arm.selection], "fillstyle": FILLS[arm.precision]}
                at = mean(each.payload for each in runs), mean(each.accuracy for each in runs)
                axes.plot(*([value] for value in at), linestyle="none", markersize=5, markeredgewidth=0.8, **look)
        axes.axhline(plain, color="#666666", linewidth=0.8, linestyle="--")
        axes.axvline(model_bytes, color="#666666", linewidth=0.8, linestyle=":")
        axes.set(xscale="log", xlabel="maps and labels, bytes a client and round", ylabel="accuracy of the composed model")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 3)))
        axes.xaxis.set_major_formatter(BYTES)
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_major_formatter(PER_CENT)
        grey = {"color": "#444444", "linestyle": "none", "markersize": 5}
        keys = [Line2D([], [], color=colour(place), marker="o", linestyle="none", label=level) for place, level in enumerate(LEVELS)]
        keys += [Line2D([], [], marker=marker, label=name, **grey) for name, marker in MARKERS.items()]
        keys += [Line2D([], [], marker="o", fillstyle=fill, label=name, **grey) for name, fill in FILLS.items()]
        keys += [Line2D([], [], color="#666666", linestyle="--", linewidth=0.8, label="FedAvg's accuracy")]
        keys += [Line2D([], [], color="#666666", linestyle=":", linewidth=0.8, label="the model's bytes")]
        figure.legend(handles=keys, loc="outside lower center", ncols=3)
        save_figure(figure, folder, "frontier")


def main() -> None:
    """Train, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="where data sets lie")
    parser.add_argument("--out", type=Path, default=Path("frontier"))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--train", type=int, default=2000, help="training images, over 20 clients")
    parser.add_argument("--test", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--budget", type=int, default=5, help="maps of a class that a client sends")
    parser.add_argument("--steps", type=int, default=80, help="at the server")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    found, plain, model_bytes = list[Found](), list[float](), 0
    for seed in map(int, options.seeds.split(",")):
        population, model, accuracy = federated(options, seed)
        plain.append(accuracy)
        model_bytes, cache, sent = model.payload_bytes, ModelCache(), dict[Arm, list[Record]]()
        for arm in arms():
            plainly = replace(arm, help="-")  # help is for the server: the clients send the same
            if plainly not in sent:
                sent[plainly] = gather(arm, population, model, cache, options.budget)
            found.append(measure(arm, sent[plainly], population, model, cache, options.budget, options.steps))
            print(f"seed {seed}: {arm}: {100 * found[-1].accuracy:.2f}%, {found[-1].payload} bytes a client", flush=True)
    with (options.out / "frontier.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["level", "selection", "precision", "few_shot", "seed", "maps_per_client", "bytes_per_client", "accuracy"])
        rows.writerows(
            [each.arm.level, each.arm.selection, each.arm.precision, each.arm.help, each.seed, each.maps, each.payload, each.accuracy]
            for each in found
        )
    (options.out / "frontier.md").write_text(markdown(found, plain), encoding="utf-8")
    draw(found, mean(plain), model_bytes, options.out)
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
