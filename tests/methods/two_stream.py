"""What the tests of FedMMD and FedFusion share: small experiments, a network the oracle knows, and ways to look at a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from tests.methods import oracle_two_stream as oracle
from torch import Tensor, nn

from coterie.engines import Inline, Job, Outcome
from coterie.ledger import Event
from coterie.method import Method
from coterie.models import Architecture, Staged
from coterie.record import Record, decode, read
from coterie.running.experiment import Experiment
from coterie.running.rounds import Result, run
from coterie.settings import spec
from coterie.site import SERVER, ModelCache
from coterie.testing import small_experiment

CNN = {"name": "cnn", "channels": [3, 5], "hidden": [12]}
"""Maps of 5 x 2 x 2 on digits."""

FROZEN: list[int] = []
"""How many samples each pass of a frozen network saw."""
TRAINED: list[int] = []
"""How many samples each pass with gradients saw."""


class Watched(nn.Conv2d):
    """A convolution that notes its passes, with gradients or without; not those that measure accuracy or probe a shape with zeros."""

    def forward(self, x: Tensor) -> Tensor:
        if not torch.is_inference_mode_enabled() and bool(x.any()):
            (TRAINED if torch.is_grad_enabled() else FROZEN).append(len(x))
        return super().forward(x)


@spec
class Patches(Architecture):
    """One convolution without overlap, then a head: what the oracle trains by hand."""

    name: ClassVar[str] = "patches"
    channels: int = 4
    size: int = 4

    def build(self, shape: tuple[int, int, int], classes: int) -> Staged:
        maps = nn.Sequential(Watched(shape[0], self.channels, self.size, stride=self.size), nn.ReLU())
        places = (shape[1] // self.size) * (shape[2] // self.size)
        return Staged(maps=maps, flat=nn.Flatten(), head=nn.Linear(self.channels * places, classes))


class Spy(Inline):
    """Keeps every message and every reply of training."""

    def __init__(self) -> None:
        self.sent: list[Record] = []
        self.replies: list[Record] = []

    def deliver(self, jobs: Sequence[Job]) -> Iterator[Outcome]:
        for job, outcome in zip(jobs, super().deliver(jobs), strict=True):
            if job.task == "train":
                self.sent.append(read(Path(job.message)))
                self.replies.append(decode(outcome.reply))
            yield outcome


def maps_experiment(method: Method, **changes: Any) -> Experiment:
    """The conformance suite's experiment on a network that has feature maps."""
    return small_experiment(method, **changes).replace(model=CNN)


def whole_batches(method: Method, steps: int = 2, rounds: int = 3, **changes: Any) -> Experiment:
    """Four uneven clients, all of them every round, plain gradient descent on all their data, in double precision."""
    table = {
        "name": "whole",
        "rounds": rounds,
        "float64": True,
        "data": {"source": "digits", "train": 60, "test": 20},
        "partition": {"name": "quantity", "clients": 4, "minimum": 5},
        "model": "mlp",
        "method": "fedavg",
        "training": {"epochs": steps, "batch": "all", "optimiser": {"name": "sgd", "lr": 0.3}},
        "engine": {"name": "inline"},
    }
    return Experiment.parse(table).replace(**{"method": method, "model": Patches(), **changes})


ALIASES = {
    "maps.0.weight": "A",
    "maps.0.bias": "a",
    "head.weight": "B",
    "head.bias": "b",
    "fusion.lam": "lam",
    "fusion.mix.weight": "weight",
    "fusion.mix.bias": "bias",
}


def as_weights(model: Record) -> oracle.Weights:
    """A state of `Patches`, fused or not, as the oracle calls its parts."""
    flat = {ALIASES[name]: value.double().numpy() for name, value in model.tensors.items() if not name.startswith("past.")}
    return {name: value.reshape(len(value), -1) if value.ndim > 1 else value for name, value in flat.items()}


def by_hand(plan: Experiment, **objective: Any) -> oracle.Weights:
    """The final model of `plan` by the oracle, from the same start and the same data."""
    population = plan.population()
    server = population.site(SERVER, 0, ModelCache())
    server.architecture = plan.method.network(server.architecture, SERVER)
    sites = [population.site(client, 0, ModelCache()) for client in range(population.clients)]
    assert len({len(site.train) for site in sites}) > 2, "clients must be uneven"
    data = [tuple(part.numpy() for part in site.train.one_batch()) for site in sites]
    return oracle.federate(
        as_weights(server.fresh()),
        [(oracle.patches(x, plan.model[0].size), y) for x, y in data],
        rounds=plan.rounds,
        steps=plan.training.epochs,
        lr=plan.training.optimiser.lr,
        **objective,
    )


def assert_same(found: Record, expected: oracle.Weights, atol: float = 1e-9) -> None:
    """A trained state is what the oracle says."""
    weights = as_weights(found)
    assert weights.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(weights[name], value, rtol=0, atol=atol, err_msg=name)


def run_inline(plan: Experiment, folder: Any, engine: Inline | None = None) -> tuple[Result, list[Event]]:
    """The run and its events."""
    seen: list[Event] = []
    return run(plan, folder, engine=engine or Inline(), callbacks=[seen.append]), seen


def passes(plan: Experiment, folder: Any) -> tuple[list[int], int]:
    """Samples of every pass of a run through the first convolution of `Patches`: frozen ones, and how many with gradients in all."""
    FROZEN.clear()
    TRAINED.clear()
    run_inline(plan, folder)
    return list(FROZEN), sum(TRAINED)


def traffic(seen: Sequence[Event]) -> dict[str, set[int]]:
    """Payload bytes of a client in a round, by direction: every value that occurs."""
    total: dict[tuple[str, int, int], int] = {}
    for event in seen:
        if event["event"] == "exchange":
            key = event["direction"], event["round"], event["client"]
            total[key] = total.get(key, 0) + event["payload_bytes"]
    return {way: {payload for (direction, _, _), payload in total.items() if direction == way} for way in ("up", "down")}


def cifar_experiment(method: Method) -> Experiment:
    """`cifar-cnn` on images of 3 x 32 x 32, as little of it as gives every client something to send."""
    table = {
        "name": "bytes",
        "rounds": 1,
        "data": {"source": "digits", "size": 32, "channels": 3, "train": 4, "test": 2},
        "partition": {"name": "iid", "clients": 2},
        "model": "cifar-cnn",
        "method": "fedavg",
        "training": {"epochs": 1, "batch": "all"},
        "evaluation": {"protocols": ["global"]},
    }
    return Experiment.parse(table).replace(method=method)
