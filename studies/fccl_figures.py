"""FCCL's figures from finished runs: what models make of their own and of foreign domains (Figure 4), cross-correlation on public and
private data (Figure 5), and own-domain accuracy and local loss over rounds (Figure 6).

    python studies/fccl_figures.py RUN [RUN ...] --out FOLDER [--data FOLDER] [--images 60]

Each RUN is a folder that `coterie run` or `coterie compare` has written for clients with domains, one per method. Figure 4 is a t-SNE
(scikit-learn) of what the head of each client's network sees of every domain's test images; Figures 5 and 6 are read off the
ledgers. The private matrix is among the client's own logits, because a client has nobody else's there.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray
from sklearn.manifold import TSNE

from coterie.engines.worker import memory_file
from coterie.ledger import events
from coterie.models import staged
from coterie.record import Record, read
from coterie.running.checkpoint import latest
from coterie.running.rounds import started
from coterie.site import ModelCache, Site, Visit
from coterie.style import colour, line_of, styled
from coterie.training.loop import frozen, outputs_of

Array = NDArray[np.float64]
MARKERS = ("o", "^", "s", "D", "v", "P", "X", "*")


def sites_and_models(folder: Path, data: Path | None) -> Iterator[tuple[Site, Record]]:
    """Every client's Site, with all domains' test sets, and its model as the run left it."""
    experiment = started(folder)
    population = experiment.population(data)
    memories = latest(folder).memories
    for client in range(population.clients):
        memory = read(memory_file(folder, client, memories[client]))
        site = population.site(client, 0, ModelCache(), Visit(("inter",)))
        yield site, memory.group("model")


def embedding(site: Site, params: Record, images: int) -> tuple[Array, Array, Array]:
    """Two coordinates, the class and the domain of the first images of every domain's test set."""
    look = frozen(site.model(), params, lambda model, x: staged(model).features(x).flatten(1))
    parts = [data.only(torch.arange(min(images, len(data)))) for data in site.tests.values()]
    features = torch.cat([outputs_of(look, part) for part in parts]).double().numpy()
    classes = torch.cat([part.labels for part in parts]).double().numpy()
    domains = np.repeat(np.arange(len(parts)), [len(part) for part in parts]).astype(np.float64)
    perplexity = min(30, (len(features) - 1) / 3)
    return TSNE(init="pca", perplexity=perplexity, random_state=0).fit_transform(features).astype(np.float64), classes, domains


def figure_4(folders: list[Path], data: Path | None, images: int) -> Figure:
    """A row a run, a panel a client: colours are classes, full marks the own domain, hollow ones the others'."""
    rows = [[(site, embedding(site, params, images)) for site, params in sites_and_models(folder, data)] for folder in folders]
    figure = Figure(figsize=(7.0, 1.9 * len(rows) + 0.3), layout="constrained")
    axes = figure.subplots(len(rows), len(rows[0]), squeeze=False)
    for folder, row, line in zip(folders, rows, axes, strict=True):
        for (site, (places, classes, domains)), panel in zip(row, line, strict=True):
            names = list(site.tests)
            own = names.index(site.domain) if site.domain in names else -1
            for index in range(len(names)):
                here = domains == index
                shades = [colour(int(each)) if each < 8 else ("#7f7f7f", "#5b3a8c")[int(each) - 8] for each in classes[here]]
                faces = shades if index == own else "none"
                panel.scatter(*places[here].T, s=9, marker=MARKERS[index], facecolors=faces, edgecolors=shades, linewidths=0.5)
            panel.set(xticks=[], yticks=[])
            panel.grid(visible=False)
            panel.set_title(f"model of {site.domain}", loc="left", fontsize=7)
        line[0].set_ylabel(started(folder).method.name)
    marks = [
        Line2D([], [], marker=MARKERS[i], mfc="none", mec="#555555", ls="", ms=4, label=name) for i, name in enumerate(rows[0][0][0].tests)
    ]
    figure.legend(handles=marks, loc="outside lower center", ncols=len(marks), title="colour: class; full: own domain")
    return figure


def shown(folder: Path, name: str) -> dict[int, list[dict[str, Any]]]:
    """What clients put on show under a name, by client, in the order of rounds."""
    found: dict[int, list[dict[str, Any]]] = {}
    for event in events(folder / "ledger.jsonl"):
        if event["event"] == "log" and event["name"] == name:
            found.setdefault(event["client"], []).append(event)
    return found


def figure_5(folder: Path) -> Figure | None:
    """Cross-correlation matrices of the last round: public data above, private below, a column a client."""
    public, private = shown(folder, "public correlation"), shown(folder, "private correlation")
    clients = sorted(set(public) & set(private))
    if not clients:
        return None
    figure = Figure(figsize=(7.0, 3.6), layout="constrained")
    axes = figure.subplots(2, len(clients), squeeze=False)
    for column, client in enumerate(clients):
        for row, (name, found) in enumerate((("public, with the mean", public), ("private, own", private))):
            drawn = axes[row, column].imshow(found[client][-1]["values"], cmap="RdBu", vmin=-1, vmax=1)
            axes[row, column].set(xticks=[], yticks=[])
            axes[row, column].grid(visible=False)
            axes[row, column].set_title(f"client {client}: {name}", loc="left", fontsize=7)
    figure.colorbar(drawn, ax=axes, shrink=0.6, label="correlation")
    return figure


def figure_6(folders: list[Path]) -> Figure:
    """Own-domain accuracy and the whole local loss, means over clients, a line a run."""
    figure = Figure(figsize=(7.0, 2.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for index, folder in enumerate(folders):
        name = started(folder).method.name
        seen = [e for e in events(folder / "ledger.jsonl") if e["event"] == "evaluation" and e["protocol"] == "intra"]
        curve = {e["round"]: e["value"] for e in seen if e["client"] is None and e["metric"] == "accuracy" and "domain" not in e}
        left.plot(list(curve), [100 * value for value in curve.values()], label=name, **line_of(index, len(curve)))
        losses: dict[int, list[float]] = {}
        for series in shown(folder, "losses").values():
            for event in series:
                losses.setdefault(event["round"], []).append(sum(event["values"]))
        if losses:
            right.plot(list(losses), [float(np.mean(each)) for each in losses.values()], **line_of(index, len(losses)))
    left.set(xlabel="round", ylabel="own-domain accuracy (%)")
    right.set(xlabel="round", ylabel="local loss in training")
    figure.legend(loc="outside lower center", ncols=4)
    return figure


def main() -> None:
    """Draw all three."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--images", type=int, default=60)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with styled():
        figures = {"embeddings": figure_4(options.runs, options.data, options.images), "over-rounds": figure_6(options.runs)}
        for folder in options.runs:
            if (matrices := figure_5(folder)) is not None:
                figures[f"correlation-{started(folder).method.name}"] = matrices
        for name, figure in figures.items():
            figure.savefig(options.out / f"{name}.png", dpi=200)
            figure.savefig(options.out / f"{name}.svg")


if __name__ == "__main__":
    main()
