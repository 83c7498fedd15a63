"""What one round of FCCL costs beside the sum of its parts, in one run.

    python benchmarks/fccl.py [--data FOLDER] [--repeats 5]

Four digit domains, four slim networks, 1,000 public images, on one thread. The whole is a real round through `coterie.running.rounds.run`
on the inline engine: messages encoded, decoded and counted, memories of two models written, replies admitted, a checkpoint.
The parts are bare torch loops over the same images: the public forward pass, public training with the cross-correlation loss, and
private training with both teachers, whose outputs are computed once. Rounds and parts take turns; what is printed are ratios of
CPU seconds: the median over rounds, each against the mean of the parts measured just before and just after it.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coterie.data.examples import Examples
from coterie.engines import Inline
from coterie.ledger import Event
from coterie.methods.fccl import correlation
from coterie.running.experiment import Experiment
from coterie.running.rounds import run
from coterie.site import ModelCache, Site

EVALUATED = 64
LAM = 0.0051


def experiment(rounds: int) -> Experiment:
    """The recipe's laptop setting, without evaluation in between."""
    return Experiment.parse(
        {
            "name": "fccl-benchmark",
            "rounds": rounds,
            "method": {"name": "fccl", "public": {"batch": 128}},
            "model": ["resnet10-slim", "efficientnet-slim", "mobilenetv2-slim", "googlenet-slim"],
            "data": {
                "source": {"name": "digit-domains", "parts": ["svhn", "mnist-m"]},
                "test": 100,
                "public": {"source": {"name": "cifar100", "part": True}, "samples": 1000},
            },
            "partition": {"name": "domains", "samples": [150, 80, 300, 300]},
            "training": {"epochs": 2, "batch": 32, "optimiser": {"name": "adam", "lr": 0.001}},
            "evaluation": {"protocols": ["intra"], "every": 10_000},
        }
    )


def outputs(net: nn.Module, data: Examples) -> Tensor:
    """All logits, in evaluation mode."""
    net.eval()
    with torch.no_grad():
        return torch.cat([net(x) for x, _ in data.batches(EVALUATED)])


def train(net: nn.Module, data: Examples, batch: int, epochs: int, loss: nn.Module | None, tables: list[Tensor]) -> None:
    """A bare loop: correlation with the only table on public data (`loss` is None), or cross-entropy and a KL to each table."""
    net.train()
    optimiser = torch.optim.Adam(net.parameters(), lr=1e-3)
    for _ in range(epochs):
        for chosen in torch.split(torch.randperm(len(data)), batch):
            x, y = data.batch(chosen)
            z = net(x)
            if loss is None:
                m = correlation(z, tables[0][chosen])
                off = m[~torch.eye(len(m), dtype=torch.bool)]
                value = (1 - m.diagonal()).square().sum() + LAM * (off + 1).square().sum()
            else:
                value = loss(z, y)
                for table in tables:
                    value = value + F.kl_div(z.log_softmax(1), table[chosen].log_softmax(1), reduction="batchmean", log_target=True)
            optimiser.zero_grad()
            value.backward()
            optimiser.step()


def parts(sites: list[Site]) -> dict[str, float]:
    """CPU seconds of each part, over all clients."""
    spent = {"public forward": 0.0, "public training": 0.0, "private training": 0.0}

    def clocked(name: str, began: float) -> None:
        spent[name] += time.process_time() - began

    for site in sites:
        net = site.model("bare")
        assert site.public is not None
        began = time.process_time()
        consensus = outputs(net, site.public)
        clocked("public forward", began)
        began = time.process_time()
        train(net, site.public, 128, 1, None, [consensus])
        clocked("public training", began)
        began = time.process_time()
        teachers = [outputs(site.model(slot), site.train) for slot in ("previous", "pretrained")]
        train(net, site.train, 32, 2, nn.CrossEntropyLoss(), teachers)
        clocked("private training", began)
    return spent


def main() -> None:
    """Measure and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    plan = experiment(options.repeats + 1)
    population, cache = plan.population(options.data), ModelCache()
    sites = [population.site(client, 1, cache) for client in range(4)]
    wholes, bare, since = list[float](), list[dict[str, float]](), [0.0]

    def turn(event: Event) -> None:
        """Before the first round and after every one: the parts, off the round's clock."""
        if event["event"] == "round" or (event["event"] == "exchange" and event["round"] == 1 and not bare):
            if event["event"] == "round":
                wholes.append(time.process_time() - since[0])
            bare.append(parts(sites))
            since[0] = time.process_time()

    with tempfile.TemporaryDirectory() as folder:
        run(plan, Path(folder) / "run", engine=Inline(), data=options.data, callbacks=[turn])
    sums = [sum(each.values()) for each in bare]
    ratios = [whole / ((before + after) / 2) for whole, before, after in zip(wholes, sums, sums[1:], strict=False)][
        1:
    ]  # the first warms up
    shares = {name: round(median(each[name] for each in bare[1:]) / median(sums[1:]), 3) for name in bare[0]}
    print(
        json.dumps({"round / sum of parts": round(median(ratios), 3), "rounds": [round(r, 3) for r in ratios], "shares": shares}, indent=2)
    )


if __name__ == "__main__":
    main()
