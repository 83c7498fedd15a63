"""What a few lying clients do to FedAvg, and what each rule of aggregation does about it: `python studies/byzantine.py FIGURE.png`.

Ten clients hold digits (dirichlet, alpha = 1), two of them lie in every round. Sign flip: they send the step back, five times as
long. Scaling: their own step, ten times as long. Label flip: they train on labels 9 - y. Five seeds each: the same for every rule, so
that what a rule is worth is a paired difference. Lines are means, bands and brackets 95% confidence intervals (Student's t).
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from statistics import fmean
from typing import ClassVar, Literal

import torch
from matplotlib.figure import Figure
from torch import Tensor

from coterie.data.examples import Examples
from coterie.engines import Inline
from coterie.methods.fedavg import FedAvg
from coterie.record import Record
from coterie.results.statistics import interval
from coterie.running.experiment import Experiment
from coterie.running.rounds import run
from coterie.settings import Whole, spec
from coterie.site import Site
from coterie.style import colour, line_of, styled, write_figure
from coterie.training.loop import Fitted

LIARS = 2
SEEDS = 5
ROUNDS = 20
ATTACKS = {"nobody lies": None, "sign flip": "sign-flip", "scaling": "scaling", "label flip": "label-flip"}
RULES = {
    "mean": {"name": "mean"},
    "clipped mean": {"name": "mean", "clip": 1.0},
    "median": {"name": "median"},
    "trimmed mean": {"name": "trimmed-mean", "share": 0.2},
    "Krum": {"name": "krum", "liars": LIARS},
    "Multi-Krum": {"name": "krum", "liars": LIARS, "keep": 10 - LIARS},
}


class Flipped:
    """A client's samples under other labels."""

    def __init__(self, honest: Examples) -> None:
        self._honest = honest

    def __len__(self) -> int:
        return len(self._honest)

    def __getattr__(self, name: str) -> object:
        return getattr(self._honest, name)

    def batch(self, chosen: Tensor, augment: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        x, y = self._honest.batch(chosen, augment)
        return x, self._honest.classes - 1 - y


@spec
class Lying(FedAvg):
    """FedAvg in which the first clients lie."""

    name: ClassVar[str] = "lying"

    attack: Literal["sign-flip", "scaling", "label-flip"] = "sign-flip"
    liars: Whole = LIARS

    def trained(self, site: Site, memory: Record, message: Record, start: Record) -> Fitted:
        if site.id < self.liars and self.attack == "label-flip":
            return site.fit(start, self.objective(), data=Flipped(site.train))
        return super().trained(site, memory, message, start)

    def returned(self, site: Site, memory: Record, message: Record, fitted: Fitted) -> tuple[Record, Record]:
        reply, kept = super().returned(site, memory, message, fitted)
        factor = {"sign-flip": -5.0, "scaling": 10.0, "label-flip": 1.0}[self.attack]
        if site.id >= self.liars or factor == 1.0:
            return reply, kept
        return reply.combine(message, lambda new, old: old + factor * (new - old)), kept


Curves = dict[str, dict[str, list[list[float]]]]
"""Attack -> rule -> seed -> the global model's accuracy after each round."""


def curve(attack: str | None, rule: dict[str, object], seed: int) -> list[float]:
    """The global model's accuracy after each round."""
    table = {
        "name": "byzantine",
        "rounds": ROUNDS,
        "seed": seed,
        "data": {"source": "digits"},
        "partition": {"name": "dirichlet", "clients": 10, "alpha": 1.0, "minimum": 20},
        "model": {"name": "mlp", "hidden": [32]},
        "method": "fedavg",
        "training": {"epochs": 2, "batch": 16, "optimiser": {"name": "sgd", "lr": 0.1}},
    }
    method = Lying(attack=attack or "scaling", aggregation=rule, liars=LIARS if attack else 0)
    seen: list[float] = []

    def listen(event: dict[str, object]) -> None:
        if event["event"] == "evaluation" and event["metric"] == "accuracy" and event["client"] is None:
            seen.append(float(event["value"]))

    with tempfile.TemporaryDirectory() as folder:
        run(Experiment.parse(table).replace(method=method), Path(folder) / "run", engine=Inline(), callbacks=[listen])
    return seen


def measure() -> Curves:
    """Everything."""
    return {
        name: {rule: [curve(attack, table, seed) for seed in range(SEEDS)] for rule, table in RULES.items()}
        for name, attack in ATTACKS.items()
    }


def table(found: Curves) -> str:
    """Accuracies after the last round, and what each rule has more than the plain mean, in points."""
    lines = [f"| accuracy after {ROUNDS} rounds, % | {' | '.join(RULES)} |", "|---" * (len(RULES) + 1) + "|"]
    for attack, rules in found.items():
        lines.append(f"| {attack} | {' | '.join(_bracketed([100 * each[-1] for each in seeds]) for seeds in rules.values())} |")
    lines += ["", f"| more than the mean, points | {' | '.join(list(RULES)[1:])} |", "|---" * len(RULES) + "|"]
    for attack, (mean, *others) in ((attack, rules.values()) for attack, rules in found.items()):
        gaps = [[100 * (ours[-1] - plain[-1]) for ours, plain in zip(seeds, mean, strict=True)] for seeds in others]
        lines.append(f"| {attack} | {' | '.join(_bracketed(each, '+') for each in gaps)} |")
    return "\n".join(lines)


def _bracketed(values: list[float], sign: str = "") -> str:
    low, high = _ends(values)
    return f"{fmean(values):{sign}.1f} [{low:{sign}.1f}, {high:{sign}.1f}]"


def _ends(values: list[float]) -> tuple[float, float]:
    found = interval(values)
    assert found is not None, "expected three seeds or more"
    return found


def draw(found: Curves, path: Path) -> None:
    """One panel for each attack."""
    with styled():
        figure = Figure(figsize=(7.0, 2.35), layout="constrained")
        panels = figure.subplots(1, len(found), sharey=True)
        for panel, (attack, rules) in zip(panels, found.items(), strict=True):
            for index, (rule, seeds) in enumerate(rules.items()):
                by_round = [[100 * each for each in values] for values in zip(*seeds, strict=True)]
                rounds, ends = range(1, len(by_round) + 1), [_ends(values) for values in by_round]
                panel.plot(rounds, [fmean(values) for values in by_round], label=rule, **line_of(index, len(by_round)))
                panel.fill_between(rounds, *zip(*ends, strict=True), color=colour(index), alpha=0.15, linewidth=0)
            panel.set_title(attack if attack == "nobody lies" else f"{attack}, {LIARS} of 10", fontsize=8)
            panel.set_xlabel("round")
            panel.set_xticks([1, *range(5, ROUNDS + 1, 5)])
        panels[0].set_ylabel("global accuracy, %")
        panels[0].set_ylim(0, 100)
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(RULES))
        write_figure(figure, path)


def main() -> None:
    """Measure, print the tables, draw."""
    torch.set_num_threads(1)
    found = measure()
    print(table(found))
    draw(found, Path(sys.argv[1] if len(sys.argv) > 1 else "byzantine.png"))


if __name__ == "__main__":
    main()
