"""Do FedFusion's operators move at all? How much of the fused maps is the global extractor's, round by round, in runs that are there.

    python studies/fusion_weights.py RUNS FIGURE.png

`RUNS` is a folder with runs of FedFusion (as `coterie reproduce fedfusion-table2` leaves them) whose ledgers have what each aggregation
logs as `global fusion`: lambda of single and multi, of conv the global maps' share of the weights of each output channel. A line is the
mean over channels and seeds, a band what seeds span.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from coterie.ledger import events
from coterie.running.rounds import LEDGER
from coterie.style import blank, line_of, styled, write_figure

Curves = Mapping[str, Sequence[Sequence[float]]]
"""Arm -> seed by seed, the mean over channels after each round."""


def arm_of(method: Mapping[str, object]) -> str:
    """What tells operators apart."""
    name = str(method["operator"])
    if name == "conv":
        return "conv, torch's start and bias" if method["start_as"] == "torch" else name
    return name if method["ema"] else f"{name}, without EMA"


def curves(folder: Path) -> Curves:
    """Of every run below a folder that fused anything."""
    found: dict[str, dict[int, list[float]]] = defaultdict(dict)
    for ledger in sorted(folder.rglob(LEDGER)):
        lines = events(ledger)
        first = next(lines)
        method = first["experiment"]["method"]
        if method["name"] == "fedfusion":
            logged = [line["values"] for line in lines if line["event"] == "log" and line["name"] == "global fusion"]
            found[arm_of(method)][first["seed"]] = [fmean(values) for values in logged]
    return {arm: list(seeds.values()) for arm, seeds in sorted(found.items())}


def main(folder: Path, target: Path) -> None:
    """Draw, and print where each arm is after the last round."""
    found = curves(folder)
    with styled():
        figure, axes = blank()
        for index, (arm, seeds) in enumerate(found.items()):
            rounds = range(1, min(map(len, seeds)) + 1)
            across = list(zip(*seeds, strict=False))
            line = line_of(index, len(rounds))
            axes.plot(rounds, [fmean(values) for values in across], label=arm, **line)
            axes.fill_between(rounds, list(map(min, across)), list(map(max, across)), color=line["color"], alpha=0.15, linewidth=0)
            ends = [seed[len(rounds) - 1] for seed in seeds]
            print(f"{arm}: {fmean(ends):.3f} after {len(rounds)} rounds, from {min(ends):.3f} to {max(ends):.3f} over {len(ends)} seeds")
        axes.set(xlabel="round", ylabel="share of the global maps")
        axes.legend()
        write_figure(figure, target)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
