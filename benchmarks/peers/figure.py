"""The figure of docs/performance.md: seconds a round of everybody, beside the bare loop divided by the cores.

python benchmarks/peers/figure.py peers.json docs/performance.png
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt


def main(source: Path, target: Path) -> None:
    """Draw what `run.py --out` has written: a panel for each work, shortest first; every turn is a dot."""
    found = json.loads(source.read_text())
    works = found["medians"]
    figure, panels = plt.subplots(1, len(works), figsize=(4.5 * len(works), 2.8), squeeze=False, layout="constrained")
    for panel, (work, peers) in zip(panels[0], works.items(), strict=True):
        names = sorted((name for name in peers if peers[name]["round"] == peers[name]["round"]), key=lambda name: -peers[name]["round"])
        panel.barh(names, [peers[name]["round"] for name in names], color=["#999999" if name == "bare" else "#4477aa" for name in names])
        for name in names:
            share = found["cores"] if name == "bare" else 1
            dots = [each / share for turn in found["turns"][work][name] for each in turn["rounds"][1:]]
            panel.plot(dots, [name] * len(dots), "k.", markersize=3)
        panel.set(title=work, xlabel="seconds a round", xlim=(0, None))
    figure.savefig(target, dpi=150)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
