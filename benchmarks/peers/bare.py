"""The bare loop: forward, backward, step over the cohort's samples on one thread, with nothing around it. The floor for PyTorch.

By itself, its seconds divided by the number of cores are what a spread over workers would take if cores did not disturb each other. As
`python bare.py W1 together` there is one such loop on every core at once, each with its share of the cohort: what they really take.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence

import torch
from nets import network
from torch.nn import functional as F
from work import BATCH, LR, Clock, chosen, clients_of, cohorts


def loop(share: slice = slice(None), meet: Callable[[], object] = lambda: None) -> None:
    """Train a share of every cohort, and tell the seconds of each round; who shares a round begins and ends it together."""
    torch.set_num_threads(1)
    work, clock = chosen(), Clock()
    data = [tuple(map(torch.from_numpy, each)) for each in clients_of(work)]
    net = network(work.model)
    for cohort in cohorts(work):
        meet()
        clock.start()
        train(net, [data[client] for client in cohort[share]])
        meet()
        if not share.start:
            clock.stop()


def train(net: torch.nn.Module, clients: Sequence[tuple[torch.Tensor, ...]]) -> None:
    """One epoch for each."""
    for x, y in clients:
        optimiser = torch.optim.SGD(net.parameters(), lr=LR)
        for rows in torch.randperm(len(y)).split(BATCH):
            optimiser.zero_grad()
            F.cross_entropy(net(x[rows]), y[rows]).backward()
            optimiser.step()


def main() -> None:
    """Print the seconds of every round."""
    cores = len(os.sched_getaffinity(0)) if "together" in sys.argv else 1
    starting = multiprocessing.get_context("fork")
    meet = starting.Barrier(cores).wait
    others = [starting.Process(target=loop, args=(slice(at, None, cores), meet)) for at in range(1, cores)]
    for other in others:
        other.start()
    loop(slice(0, None, cores), meet)


if __name__ == "__main__":
    main()
