"""What choosing maps costs a client: 2,500 maps at G1 of WRN-40-1 as a share of one local epoch over the same images, in one run.

    python benchmarks/selection.py [--data FOLDER] [--repeats 3] [--images 2500]

One client of CIFAR-10 with four classes, on one thread, in CPU seconds; shares are medians over repeats of the ratio to the epoch of the
same repeat. The selection proper starts from maps (projection, PCA, k-means); `with extraction` adds the pass of the lower part that
makes them. Then the quality of fast and exact selections: the mean distance of a map to the nearest selected one of its class, in the
space of whole maps, and that of as many drawn at random.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.data.selection import KMeansSelection, Random, Selection
from coterie.methods import SplitMetadata
from coterie.methods.split_metadata import BATCH
from coterie.record import Record
from coterie.running.experiment import Experiment
from coterie.site import ModelCache, Site

T = TypeVar("T")
CLASSES = 4
SELECTIONS: dict[str, Selection] = {
    "kmeans (randomised PCA, Lloyd)": KMeansSelection(),
    "kmeans (randomised PCA, mini-batches of 256)": KMeansSelection(batch=256),
    "kmeans (exact PCA, Lloyd)": KMeansSelection(solver="exact"),
    "random": Random(),
}


def timed(run: Callable[[], T]) -> tuple[float, T]:
    """CPU seconds, which hear little of a noisy neighbour, and what came out."""
    began = time.process_time()
    found = run()
    return time.process_time() - began, found


def extract(method: SplitMetadata, site: Site, model: Record) -> None:
    """The pass that makes the maps, and nothing else."""
    run = method.lower(site, model)
    for x, _ in site.train.batches(BATCH):
        run(x)


def shares(method: SplitMetadata, site: Site, model: Record, repeats: int) -> dict[str, float]:
    """Extraction and selection as shares of a local epoch; the first repeat warms up."""
    rows = []
    for _ in range(repeats + 1):
        epoch, _ = timed(lambda: site.fit(model, method.objective()))
        whole, _ = timed(lambda: method.choose(site, model))
        forward, _ = timed(lambda: extract(method, site, model))
        rows.append((forward / epoch, (whole - forward) / epoch, whole / epoch))
    names = ("extraction", "selection of maps", "selection with extraction")
    return {name: round(median(row[place] for row in rows[1:]), 3) for place, name in enumerate(names)}


def spread(maps: NDArray[np.float32], labels: NDArray[np.int64], chosen: NDArray[np.int64]) -> float:
    """The mean distance of a map to the nearest chosen one of its class."""
    from sklearn.metrics import pairwise_distances_argmin_min

    away = [pairwise_distances_argmin_min(maps[labels == k], maps[chosen[labels[chosen] == k]])[1] for k in np.unique(labels)]
    return float(np.concatenate(away).mean())


def quality(method: SplitMetadata, site: Site, model: Record) -> dict[str, dict[str, float]]:
    """For each selection its seconds, from projected maps where they are projected, and the spread it leaves."""
    labels = site.train.labels.numpy()
    whole = SplitMetadata(level=method.level, memory_mb=4096).features(site, model)
    projected = method.features(site, model)
    found = {}
    for name, selection in SELECTIONS.items():
        exact = isinstance(selection, KMeansSelection) and selection.solver == "exact"
        seconds, chosen = timed(lambda s=selection, e=exact: s.select(whole if e else projected, labels, method.budget, 0))  # type: ignore[misc]
        found[name] = {"seconds": round(seconds, 2), "mean distance to the nearest selected": round(spread(whole, labels, chosen), 3)}
    return found


def main() -> None:
    """Measure and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--images", type=int, default=2500)
    options = parser.parse_args()
    torch.set_num_threads(1)
    table = {
        "name": "selection",
        "data": {"source": {"name": "cifar10", "part": True}},
        "partition": {"name": "classes", "clients": 1, "per_client": CLASSES, "samples": options.images // CLASSES},
        "model": "wrn-40-1",
        "method": {"name": "split-metadata", "level": "G1"},
        "training": {"batch": 50},
    }
    plan = Experiment.parse(table)
    assert isinstance(plan.method, SplitMetadata)
    site = plan.population(options.data).site(0, 1, ModelCache())
    model = site.fit(site.fresh(), plan.method.objective()).params
    found = {
        "images": len(site.train),
        "share of a local epoch": shares(plan.method, site, model, options.repeats),
        "quality": quality(plan.method, site, model),
    }
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
