"""Why selection costs split training more here than in its paper: the maps are fewer, or the server's steps are?

    python studies/selected_maps.py RUNS OUT [--data FOLDER]

RUNS is where `coterie reproduce split-tables` has its runs. As in `metadata_frontier.py`, an arm is measured on the last global model of
FedAvg, of every seed: at G3, 1.6% of a client's maps of a class (four, as in the study) with the paper's hundred epochs and with five
hundred, twenty of them (the paper's number, 8% of what a client has here) with a hundred, and all. OUT gets `why.json` and `why.png`.
"""

from __future__ import annotations

import argparse
import json
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeAlias

from matplotlib.figure import Figure
from metadata_frontier import Arm, gather, measure

from coterie import Record, resume
from coterie.population import Population
from coterie.results.verdicts import Differences
from coterie.running.result import started
from coterie.site import ModelCache
from coterie.style import colour, styled, write_figure

Measure: TypeAlias = Callable[[Population, Record, ModelCache], float]
"""An arm: the accuracy that it has with some clients and the model that FedAvg has come to."""

ARMS: Mapping[str, tuple[str, int, int]] = {
    "four maps, 100 epochs": ("kmeans", 4, 400),
    "four maps, 500 epochs": ("kmeans", 4, 2_000),
    "twenty maps, 100 epochs": ("kmeans", 20, 1_600),
    "all maps, 100 epochs": ("full", 20, 20_000),
}
"""Selection, how many of a class and client, steps at the server: with twenty clients of two classes these are the epochs of its name."""


def accuracy(arm: tuple[str, int, int], population: Population, model: Record, cache: ModelCache) -> float:
    """Of the network that is composed of the clients' lower part and of what the server learns from their maps."""
    selection, budget, steps = arm
    chosen = Arm("G3", selection)
    return measure(chosen, gather(chosen, population, model, cache, budget), population, model, cache, budget, steps).accuracy


def differences(found: Mapping[str, Sequence[float]]) -> dict[str, str]:
    """Of each arm to the first, in points, paired by seed; each interval has its share of 95% among all of them (Bonferroni).

    >>> differences({"four maps, 100 epochs": [0.40, 0.42, 0.41], "all maps, 100 epochs": [0.50, 0.51, 0.53]})
    {'all maps, 100 epochs': '+10.3 [+6.5, +14.1]'}
    """
    first, *others = found
    shown = {}
    for name in others:
        gaps = Differences(tuple(100 * (value - base) for value, base in zip(found[name], found[first], strict=True)))
        low, high = gaps.interval(1 - 0.05 / len(others)) or (math.nan, math.nan)
        shown[name] = f"{gaps.middle:+.1f} [{low:+.1f}, {high:+.1f}]"
    return shown


def compared(found: Mapping[str, Sequence[float]]) -> dict[str, dict[str, str]]:
    """All arms with the first, and with the last."""
    return {f"less {name}, in points": differences({name: found[name], **found}) for name in (next(iter(found)), list(found)[-1])}


def draw(found: Mapping[str, Sequence[float]], what: str, target: Path, title: str) -> None:
    """A column for each arm, a line for each seed."""
    figure = Figure(figsize=(max(4.6, 0.95 * len(found)), 2.6), layout="constrained")
    panel = figure.subplots()
    for values in zip(*found.values(), strict=True):
        panel.plot([100 * value for value in values], "o-", color=colour(0), alpha=0.5, markersize=3, linewidth=0.8)
    labels = ["\n".join(line for part in name.replace(", ", ",\n").split("\n") for line in textwrap.wrap(part, 13)) for name in found]
    panel.set_xticks(range(len(found)), labels)
    panel.set(ylabel=f"accuracy of {what}, %", title=title, xlim=(-0.3, len(found) - 0.7))
    panel.grid(visible=False, axis="x")
    write_figure(figure, target)


def asked(question: str, about: str | None, arms: Mapping[str, Measure], what: str) -> None:
    """Measure all arms on FedAvg's last model of every seed; what is found goes to files that are called by the question."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", type=Path)
    options = parser.parse_args()
    found: dict[str, list[float]] = {name: [] for name in arms}
    folders = {started(folder).seed: folder for folder in options.runs.glob("fedavg-s*")}
    for seed, folder in sorted(folders.items()):
        population, model, cache = (
            started(folder).population(options.data),
            resume(folder, data=options.data).state.group("model"),
            ModelCache(),
        )
        for name, measured in arms.items():
            found[name].append(measured(population, model, cache))
            print(f"seed {seed}  {name}: {100 * found[name][-1]:.2f}%", flush=True)
    told = {"seeds": sorted(folders), "accuracy": found, **compared(found)}
    (options.out / f"{question}.json").write_text(json.dumps(told, indent=2) + "\n")
    with styled():
        draw(found, what, options.out / f"{question}.png", "G3: a line for each seed")
    print(json.dumps(compared(found), indent=2))


if __name__ == "__main__":
    asked("why", __doc__, {name: partial(accuracy, arm) for name, arm in ARMS.items()}, "the composed model")
