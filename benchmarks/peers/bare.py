"""The bare loop: forward, backward, step over the cohort's samples on one thread, with nothing around it. The floor for PyTorch.

The runner divides its seconds by the number of cores: what a perfect spread over workers would take.
"""

from __future__ import annotations

import torch
from nets import network
from torch.nn import functional as F
from work import BATCH, LR, Clock, chosen, clients_of, cohorts


def main() -> None:
    """Print the seconds of every round."""
    torch.set_num_threads(1)
    work, clock = chosen(), Clock()
    data = [tuple(map(torch.from_numpy, each)) for each in clients_of(work)]
    net = network(work.model)
    for cohort in cohorts(work):
        clock.start()
        for client in cohort:
            x, y = data[client]
            optimiser = torch.optim.SGD(net.parameters(), lr=LR)
            for rows in torch.randperm(len(y)).split(BATCH):
                optimiser.zero_grad()
                F.cross_entropy(net(x[rows]), y[rows]).backward()
                optimiser.step()
        clock.stop()


if __name__ == "__main__":
    main()
