"""What the machinery costs: rounds of FedAvg against a bare single-thread SGD loop over the same samples, in one run.

    python benchmarks/overhead.py [--data FOLDER] [--rounds 8] [--workers 2]

The workload is McMahan's: MNIST, the 5x5 CNN, 100 clients of two shards, 10 a round, B = 10, E = 1. Bare loops and rounds take
turns, so that a noisy neighbour disturbs both; each round is set against the bare loops right before and after it, and the ratio
printed is the median over rounds of round / (bare loop / workers).
The bare loop holds its images as normalised float tensors and does nothing but forward, backward and step.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from statistics import median

import torch
from torch.nn import functional as F

from coterie import Experiment, run
from coterie.ledger import Event
from coterie.population import Population
from coterie.running.cohort import draw_cohort
from coterie.site import SERVER, ModelCache


def bare_loop(population: Population, cohort: tuple[int, ...]) -> float:
    """Seconds to train on the cohort's samples, one client after the other, without any of our machinery."""
    cache = ModelCache()
    data = [population.site(client, 0, cache).train.one_batch() for client in cohort]
    net = population.site(SERVER, 0, cache).model()
    torch.set_num_threads(1)
    began = time.perf_counter()
    for x, y in data:
        optimiser = torch.optim.SGD(net.parameters(), lr=0.05)
        for chosen in torch.randperm(len(y)).split(10):
            optimiser.zero_grad()
            F.cross_entropy(net(x[chosen]), y[chosen]).backward()
            optimiser.step()
    return time.perf_counter() - began


def main() -> None:
    """Measure and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    settings = [f"rounds={options.rounds + 1}", f"evaluation.every={options.rounds + 1}", f"engine.workers={options.workers}"]
    plan = Experiment.load("mnist-shards", settings)
    population = plan.population(options.data)
    bare: list[float] = []
    ours: list[Event] = []

    def after(event: Event) -> None:
        if event["event"] == "round":
            ours.append(event)
            if event["round"] <= options.rounds:  # the workers are idle now
                bare.append(bare_loop(population, draw_cohort(plan.seed, event["round"], 100, 10)))

    run(plan, Path(tempfile.mkdtemp()) / "run", data=options.data, callbacks=[after])
    timed = range(1, options.rounds)  # the first round warms up, the last evaluates
    beside = [(bare[turn - 1] + bare[turn]) / 2 for turn in timed]
    rounds = [ours[turn]["seconds"] for turn in timed]
    ratios = [mine / (loop / options.workers) for mine, loop in zip(rounds, beside, strict=True)]
    found = {
        "workers": options.workers,
        "bare_loop_seconds": [round(seconds, 2) for seconds in bare],
        "round_seconds": [round(seconds, 2) for seconds in rounds],
        "worker_seconds": [round(ours[turn]["where"]["work"], 2) for turn in timed],
        "ratios": [round(ratio, 3) for ratio in ratios],
        "ratio": round(median(ratios), 3),
        "ratio_of_the_fastest": round(min(rounds) / (min(bare) / options.workers), 3),
    }
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
