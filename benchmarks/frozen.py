"""What a frozen network beside the trained one costs: local training of FedMMD and FedFusion against FedAvg's, in one run.

    python benchmarks/frozen.py [--data FOLDER] [--repeats 5]

One client of McMahan's MNIST (600 images, the 5x5 CNN, B = 10) trains five epochs under each method in turn, on one thread; what is
printed is the median over repeats of the ratio to FedAvg in the same repeat. With augmentation every image is new, so frozen outputs
are computed for every batch: the second table shows what the cache saves.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from statistics import median

import torch

from coterie.methods import FedAvg, FedFusion, FedMMD, TwoStreamL2
from coterie.population import Population
from coterie.record import EMPTY, Record
from coterie.running.experiment import Experiment
from coterie.site import SERVER, ModelCache

METHODS: dict[str, FedAvg] = {
    "fedavg": FedAvg(),
    "fedmmd": FedMMD(),
    "two-stream-l2": TwoStreamL2(),
    "fedfusion single": FedFusion(operator="single"),
    "fedfusion multi": FedFusion(operator="multi"),
    "fedfusion conv": FedFusion(operator="conv"),
}


def train_once(population: Population, cache: ModelCache, method: FedAvg, round: int) -> float:
    """CPU seconds that one client's task takes, which other processes on the machine disturb little."""
    server, site = (population.site(client, round, cache) for client in (SERVER, 0))
    model = server.fresh().drop("past")
    began = time.process_time()
    method.train(site, EMPTY, Record(model=model))
    return time.process_time() - began


def ratios(plan: Experiment, folder: Path | None, repeats: int) -> dict[str, float]:
    """Each method's time over FedAvg's, the median over repeats; the first repeat warms up."""
    cache, worlds = ModelCache(), {name: plan.replace(method=method).population(folder) for name, method in METHODS.items()}
    times = [{name: train_once(worlds[name], cache, method, turn + 1) for name, method in METHODS.items()} for turn in range(repeats + 1)]
    return {name: round(median(turn[name] / turn["fedavg"] for turn in times[1:]), 3) for name in METHODS}


def main() -> None:
    """Measure and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    plan = Experiment.load("mnist-shards", ["training.epochs=5"])
    found = {
        "outputs computed once a round": ratios(plan, options.data, options.repeats),
        "outputs computed per batch (augmentation on)": ratios(
            plan.replace(training=plan.training.replace(augment="crop-flip")), options.data, options.repeats
        ),
    }
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
