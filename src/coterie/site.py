"""Site: what never leaves a participant. Its data, its architecture, its randomness; the server has one too."""

from __future__ import annotations

import fcntl
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Unpack, get_args

import torch
from torch import Tensor, nn

from coterie.data.examples import Examples, Samples
from coterie.devices import CPU, Device
from coterie.errors import UserError, nearest
from coterie.models import Architecture, staged
from coterie.protocols import PROTOCOLS, Model, Protocol
from coterie.record import Record, read, write
from coterie.seeds import generator, scoped, seed_of
from coterie.training.loop import Fitted, Frozen, Options, frozen, outputs_of, snapshot
from coterie.training.objectives import CrossEntropy, Objective
from coterie.training.score import Metric, Output, Scores, score
from coterie.training.settings import Training
from coterie.training.stacking import Awaiting, Request

__all__ = ["SERVER", "ModelCache", "Observation", "Site", "Visit", "Work"]

SERVER = -1
"""The server's number among the sites."""


class ModelCache:
    """Networks built once per process and architecture, then reloaded; what they hold between uses means nothing.

    >>> from coterie.models import MLP
    >>> cache = ModelCache()
    >>> one, same = (cache.model(MLP(), (1, 8, 8), 10, torch.float32, "model") for _ in range(2))
    >>> one is same, one is cache.model(MLP(), (1, 8, 8), 10, torch.float32, "teacher")
    (True, False)
    """

    def __init__(self, device: Device = CPU) -> None:
        self.device = device
        self._built: dict[tuple[Any, ...], nn.Module] = {}

    def model(self, architecture: Architecture, shape: tuple[int, ...], classes: int, dtype: torch.dtype, slot: str) -> nn.Module:
        """The network in `slot`; two slots of one architecture are two networks."""
        key = (architecture, shape, classes, dtype, slot)
        if key not in self._built:
            with scoped(0):
                self._built[key] = architecture.build(shape, classes).to(self.device.at, dtype)
        return self._built[key]


@dataclass(frozen=True)
class Visit:
    """What is wanted of a site beside its task.

    >>> Visit(protocols=("local_post",)).logging
    False
    """

    protocols: tuple[str, ...] = ()
    """Under which its models are measured."""
    logging: bool = False
    """Whether arrays may be logged."""
    span: tuple[int, int] | None = None
    """Of a long test set, the examples to measure."""


@dataclass(frozen=True)
class Observation:
    """How a model did on some data of a site, under a protocol."""

    protocol: str
    scores: Scores
    domain: str | None = None


@dataclass(frozen=True)
class Work:
    """How much training was done."""

    purpose: str
    steps: int
    samples: int
    loss: float | None
    """The mean over the last epoch; None where there was no step."""

    @classmethod
    def of(cls, purpose: str, fitted: Fitted) -> Work:
        """What a training was."""
        return cls(purpose, fitted.steps, fitted.samples, None if math.isnan(fitted.loss) else fitted.loss)


@dataclass(eq=False)
class Site:
    """One participant's private world in one round.

    >>> from coterie.testing import small_experiment
    >>> from coterie.methods import FedAvg
    >>> site = small_experiment(FedAvg()).population().site(client=2, round=1, cache=ModelCache())
    >>> site.fresh() == site.fresh(), site.score(site.fresh()).examples == len(site.test)
    (True, True)
    """

    id: int
    round: int
    seed: int
    train: Examples
    validation: Examples
    test: Examples
    architecture: Architecture
    training: Training
    cache: ModelCache
    dtype: torch.dtype = torch.float32
    public_data: Examples | None = None
    domain: str | None = None
    tests: Mapping[str, Examples] = field(default_factory=dict)
    """Test sets by domain, for measuring only."""
    architecture_index: int = 0
    """Which of the experiment's architectures this is."""
    pretraining: int = 0
    """Epochs that this client trains its own model alone before it first takes part."""
    shared: Path | None = None
    """Where pretrained models lie that several runs of a comparison start from."""
    visit: Visit = Visit()
    evaluates: tuple[Model, ...] = get_args(Model)
    """The models that the method, or a parent of it, says that it has."""
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    """A user's own, by name."""
    observations: list[Observation] = field(default_factory=list)
    logs: dict[str, Any] = field(default_factory=dict)
    work: list[Work] = field(default_factory=list)
    trainer: Callable[[Request], Fitted] = Request.fit
    """How a training is done: here and now, or together with those of other clients."""

    @property
    def public(self) -> Examples:
        """Unlabelled data that every participant holds, or the server alone, as the method says."""
        if self.public_data is None:
            raise UserError("there are no public data here: give data.public.source, and a method that says `needs_public`")
        return self.public_data

    @property
    def logging(self) -> bool:
        """Whether what is logged on this visit is kept: for what is dear to compute."""
        return self.visit.logging

    def rng(self, *purpose: str | int) -> torch.Generator:
        """A generator that only (run, round, client, purpose) decide."""
        return generator(self.seed, self.round, self.id, *purpose)

    def model(self, slot: str = "model", architecture: Architecture | None = None) -> nn.Module:
        """This participant's network, or a second one beside it in another slot."""
        return self.cache.model(architecture or self.architecture, self.train.shape, self.train.classes, self.dtype, slot)

    def fresh(self, purpose: str = "model", architecture: Architecture | None = None) -> Record:
        """New initial weights, the same whenever the same site asks for the same purpose."""
        with scoped(seed_of(self.seed, 0, self.id, purpose)):
            return snapshot((architecture or self.architecture).build(self.train.shape, self.train.classes).to(self.dtype))

    def initial(self) -> Record:
        """Where a client's own model starts: fresh, or after the experiment's epochs of training alone."""
        if not self.pretraining:
            return self.fresh()
        found = self._pretrained()
        steps, samples, loss = (found.number(name) for name in ("steps", "samples", "loss"))
        self.work.append(Work("pretrain", int(steps), int(samples), None if math.isnan(loss) else loss))
        return found.group("model")

    def _pretrained(self) -> Record:
        """Trained alone, once for all runs that share a folder."""
        if self.shared is None:
            return self._pretrain()
        path = self.shared / f"{self.id}.safetensors"
        with _alone(path):
            if not path.exists():
                write(self._pretrain(), path)
        return read(path)

    def _pretrain(self) -> Record:
        before = replace(self, round=0, work=[])
        training = self.training.replace(epochs=self.pretraining, steps=None, state="fresh")
        fitted = before.fit(self.fresh(), CrossEntropy(), training=training, purpose="pretrain")
        return Record(model=fitted.params, steps=fitted.steps, samples=fitted.samples, loss=fitted.loss)

    def fit(
        self,
        start: Record,
        objective: Objective,
        *,
        data: Samples | None = None,
        model: nn.Module | None = None,
        training: Training | None = None,
        purpose: str = "train",
        **options: Unpack[Options],
    ) -> Fitted:
        """Train on this site's data (or `data`) from `start`; see `coterie.training.loop.fit`."""
        if not start:
            raise ValueError("nothing to train from: the Record given to fit is empty; is that group in the message or the memory?")
        wanted = Request(
            model or self.model(),
            start,
            self.train if data is None else data,
            objective,
            training or self.training,
            seed=seed_of(self.seed, self.round, self.id, purpose),
            round=max(self.round, 1),
            options=options,
            device=self.cache.device,
            purpose=purpose,
        )
        fitted = self.trainer(wanted)
        if not isinstance(fitted, Awaiting):  # else whoever does it writes that down
            self.work.append(Work.of(purpose, fitted))
        return fitted

    def frozen(self, params: Record, slot: str = "model", output: Output = lambda net, x: net(x)) -> Frozen:
        """This participant's network under `params`, to look at and not to train; it stays so until its slot is used again."""
        return frozen(self.model(slot), params, output)

    def predict(self, params: Record, data: Samples, slot: str = "model") -> Tensor:
        """Logits of this participant's network over `data`."""
        return self.fetch(outputs_of(self.frozen(params, slot), data))

    def features(self, params: Record, data: Samples, slot: str = "model") -> Tensor:
        """What the head of this participant's network sees of `data`."""
        return self.fetch(outputs_of(self.frozen(params, slot, lambda net, x: staged(net).features(x)), data))

    def blank(self) -> Tensor:
        """A batch of one sample of zeros, where networks compute: to see the shape of what comes of it."""
        return self.put(torch.zeros(1, *self.train.shape, dtype=self.dtype))

    def put(self, tensor: Tensor) -> Tensor:
        """A tensor where networks compute (`engine.device`)."""
        return self.cache.device.put(tensor)

    def fetch(self, tensor: Tensor) -> Tensor:
        """A tensor from there, where messages and memories are made: in the machine's memory."""
        return self.cache.device.fetch(tensor)

    def score(self, params: Record, data: Examples | None = None, *, output: Output = lambda net, x: net(x)) -> Scores:
        """How well this participant's network does under `params` on its own test slice, or on `data`."""
        chosen = self.test if data is None else data
        return score(self.model(), params, chosen, self.visit.span, output=output, metrics=self.metrics, device=self.cache.device)

    def evaluate(self, model: Model, params: Record, *, output: Output = lambda net, x: net(x)) -> None:
        """Measure one of the method's models under every protocol of this visit that is about it.

        What is found reaches the ledger, not the message. `output` is how the network answers a batch, where that is not `net(x)`.
        """
        if model not in get_args(Model):
            raise ValueError(f"site.evaluate('{model}', ...): no such model, {nearest(model, get_args(Model))}")
        if model not in self.evaluates:
            raise ValueError(f"site.evaluate('{model}', ...): the method does not say that it has this model, list it in its `evaluates`")
        for name in self.visit.protocols:
            if PROTOCOLS[name].model == model:
                for domain, data in self._measured_on(PROTOCOLS[name]):
                    self.observations.append(Observation(name, self.score(params, data, output=output), domain))

    def log(self, name: str, values: Tensor) -> None:
        """Put an array where people can look at it: in the ledger and the report, not in the message."""
        if self.logging:
            self.logs[name] = values.tolist()

    def _measured_on(self, protocol: Protocol) -> Iterator[tuple[str | None, Examples]]:
        """The data of a protocol, each with its domain where the protocol is about domains; who has none finds nothing, which is not 0."""
        found: Sequence[tuple[str | None, Examples]]
        match protocol.data:
            case "other domains":
                found = [(name, data) for name, data in self.tests.items() if name != self.domain]
            case "own validation":
                found = [(None, self.validation)]
            case "own domain":
                found = [(self.domain, self.test)]
            case _:
                found = [(None, self.test)]
        return ((domain, data) for domain, data in found if len(data))


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """One process at a time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
