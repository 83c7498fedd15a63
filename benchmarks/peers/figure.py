"""The figure of docs/performance.md: seconds a round of everybody, beside the bare loop divided by the cores.

python benchmarks/peers/figure.py peers.json docs/performance.png
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from matplotlib.figure import Figure

from coterie.style import colour, styled, write_figure

OURS = ("coterie", "stacked")
BARE = ("bare", "together")
CUT = 4
"""How many times the shortest bar an axis goes on at most: a longer one ends there, with its number."""
WHAT = {"W1": "W1: CNN, 10 clients x 600", "W2": "W2: MLP, 100 clients x 60"}


def main(source: Path, target: Path) -> None:
    """Draw what `run.py --out` has written: a panel for each work that others do too, shortest first; every round is a dot."""
    found = json.loads(source.read_text())
    works = {work: peers for work, peers in sorted(found["medians"].items()) if set(peers) - set(OURS)}
    labels = {
        "bare": f"bare loop / {found['cores']}",
        "together": f"{found['cores']} bare loops at once",
        "stacked": "Coterie, stacked",
        "coterie": "Coterie",
        "fedjax": "FedJAX",
        "flower": "Flower",
    }
    figure = Figure(figsize=(3.5 * len(works), 2.2), layout="constrained")
    for panel, (work, peers) in zip(figure.subplots(1, len(works), squeeze=False)[0], works.items(), strict=True):
        names = sorted((name for name in peers if peers[name]["round"] == peers[name]["round"]), key=lambda name: -peers[name]["round"])
        tints = ["#999999" if name in BARE else colour(0) if name in OURS else colour(4) for name in names]
        panel.barh([labels.get(name, name) for name in names], [peers[name]["round"] for name in names], color=tints, height=0.6)
        for name in names:
            share = found["cores"] if name == "bare" else 1
            dots = [each / share for turn in found["turns"][work][name] for each in turn["rounds"][1:]]
            panel.plot(dots, [labels.get(name, name)] * len(dots), "k.", markersize=2.5)
        widest = max(peers[name]["round"] for name in names)
        most = min(1.15 * widest, CUT * min(peers[name]["round"] for name in names))
        for name in (each for each in names if peers[each]["round"] > most):
            panel.text(0.98 * most, labels.get(name, name), f"{peers[name]['round']:.2g} s \N{RIGHTWARDS ARROW}", ha="right", va="center")
        panel.set(title=WHAT[work], xlabel="seconds a round", xlim=(0, most))
        panel.grid(visible=False, axis="y")
    write_figure(figure, target)


if __name__ == "__main__":
    with styled():
        main(Path(sys.argv[1]), Path(sys.argv[2]))
