"""What a few lying clients do to FedAvg, and what each rule of aggregation does about it: `python studies/byzantine.py FIGURE.png`.

Ten clients hold digits (dirichlet, alpha = 1), two of them lie in every round. Sign flip: they send the step back, five times as
long. Scaling: their own step, ten times as long. Label flip: they train on labels 9 - y. Three seeds each; lines are means.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import ClassVar, Literal

import torch
from torch import Tensor

from coterie.data.examples import Examples
from coterie.engines import Inline
from coterie.methods.fedavg import FedAvg
from coterie.record import Record
from coterie.running.experiment import Experiment
from coterie.running.rounds import run
from coterie.settings import Whole, spec
from coterie.site import Site
from coterie.training.loop import Fitted

LIARS = 2
SEEDS = 3
ATTACKS = {"sign flip": "sign-flip", "scaling": "scaling", "label flip": "label-flip"}
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


def curve(attack: str, rule: dict[str, object], seed: int, liars: int) -> list[float]:
    """The global model's accuracy after each round."""
    table = {
        "name": "byzantine",
        "rounds": 20,
        "seed": seed,
        "data": {"source": "digits"},
        "partition": {"name": "dirichlet", "clients": 10, "alpha": 1.0, "minimum": 20},
        "model": {"name": "mlp", "hidden": [32]},
        "method": "fedavg",
        "training": {"epochs": 2, "batch": 16, "optimiser": {"name": "sgd", "lr": 0.1}},
    }
    method = Lying(attack=attack, aggregation=rule, liars=liars)
    seen: list[float] = []

    def listen(event: dict[str, object]) -> None:
        if event["event"] == "evaluation" and event["metric"] == "accuracy" and event["client"] is None:
            seen.append(float(event["value"]))

    with tempfile.TemporaryDirectory() as folder:
        run(Experiment.parse(table).replace(method=method), Path(folder) / "run", engine=Inline(), callbacks=[listen])
    return seen


def measure() -> dict[str, dict[str, list[float]]]:
    """Attack -> rule -> the mean curve over seeds; `nobody lies` is the mean's curve without liars."""
    means = {}
    honest = [curve("scaling", RULES["mean"], seed, 0) for seed in range(SEEDS)]
    for name, attack in ATTACKS.items():
        found = {rule: [curve(attack, table, seed, LIARS) for seed in range(SEEDS)] for rule, table in RULES.items()}
        found["nobody lies"] = honest
        means[name] = {rule: [sum(each) / SEEDS for each in zip(*curves, strict=True)] for rule, curves in found.items()}
    return means


def draw(found: dict[str, dict[str, list[float]]], path: Path) -> None:
    """One panel for each attack."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(1, len(found), figsize=(12, 3.6), sharey=True, layout="constrained")
    for panel, (attack, curves) in zip(panels, found.items(), strict=True):
        for rule, values in curves.items():
            plain = {"color": "black", "linestyle": ":"} if rule == "nobody lies" else {}
            panel.plot(range(1, len(values) + 1), [100 * each for each in values], label=rule, **plain)
        panel.set_title(f"{attack}, {LIARS} of 10 clients")
        panel.set_xlabel("round")
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("accuracy of the global model, %")
    panels[0].set_ylim(0, 100)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=7, frameon=False)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    torch.set_num_threads(1)
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "byzantine.png")
    found = measure()
    for attack, curves in found.items():
        print(attack, json.dumps({rule: round(100 * values[-1], 1) for rule, values in curves.items()}))
    draw(found, target)
