"""Site: what never leaves a participant. Its data, its architecture, its randomness; the server has one too."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from coterie.data.examples import Examples, Samples
from coterie.models import Architecture
from coterie.record import EMPTY, Record
from coterie.seeds import generator, scoped, seed_of
from coterie.training.loop import Fitted, Frozen, fit, frozen, outputs_of, snapshot
from coterie.training.objectives import Objective, Step
from coterie.training.score import Scores, score
from coterie.training.settings import Training

__all__ = ["SERVER", "SERVER_PROTOCOLS", "ModelCache", "Observation", "Site"]

SERVER = -1
"""The server's number among the sites."""


SERVER_PROTOCOLS = frozenset({"global", "composed"})
"""Evaluation protocols that test the server's model on the whole test set; all others visit clients."""


class ModelCache:
    """Networks built once per process and architecture, then reloaded; what they hold between uses means nothing."""

    def __init__(self) -> None:
        self._built: dict[tuple[Any, ...], nn.Module] = {}

    def model(self, architecture: Architecture, shape: tuple[int, int, int], classes: int, dtype: torch.dtype, slot: str) -> nn.Module:
        """The network in `slot`; two slots of one architecture are two networks."""
        key = (architecture, shape, classes, dtype, slot)
        if key not in self._built:
            with scoped(0):
                self._built[key] = architecture.build(shape, classes).to(dtype)
        return self._built[key]


@dataclass(frozen=True)
class Observation:
    """How a model did on some data of a site, seen under an evaluation protocol."""

    protocol: str
    scores: Scores
    domain: str | None = None


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
    public: Examples | None = None
    """Unlabelled data that every participant holds."""
    domain: str | None = None
    tests: Mapping[str, Examples] = field(default_factory=dict)
    """Test sets by domain, for measuring only."""
    wanted: frozenset[str] = frozenset()
    """The protocols under which this visit is to be observed."""
    observations: list[Observation] = field(default_factory=list)
    exhibiting: bool = False
    """Whether this visit may show exhibits."""
    kind: int = 0
    """Which of the experiment's architectures this is."""
    shown: dict[str, Any] = field(default_factory=dict)

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

    def fit(
        self,
        start: Record,
        objective: Objective,
        *,
        carried: Record = EMPTY,
        training: Training | None = None,
        data: Samples | None = None,
        frozen: Mapping[str, Frozen | Tensor] | None = None,
        model: nn.Module | None = None,
        purpose: str = "train",
        trainable: Callable[[str], bool] = lambda name: True,
        step: type[Step] = Step,
    ) -> Fitted:
        """Train on this site's data (or `data`) from `start`; see `coterie.fit.fit`."""
        return fit(
            model or self.model(),
            start,
            self.train if data is None else data,
            objective,
            training or self.training,
            seed=seed_of(self.seed, self.round, self.id, purpose),
            round=max(self.round, 1),
            frozen=frozen,
            carried=carried,
            trainable=trainable,
            step=step,
        )

    def predict(self, params: Record, data: Samples, slot: str = "model") -> Tensor:
        """Logits of this participant's network over `data`."""
        return outputs_of(frozen(self.model(slot), params), data)

    def score(self, params: Record, data: Examples | None = None, span: tuple[int, int] | None = None) -> Scores:
        """How well this participant's network does under `params` on its own test slice, or on `data`."""
        return score(self.model(), params, self.test if data is None else data, *(span or (0, None)))

    def observe(self, protocol: str, params: Record, span: tuple[int, int] | None = None) -> None:
        """Measure `params` under a protocol, if this visit wants it; what is seen reaches the ledger, not the message."""
        if protocol in self.wanted:
            for domain, data in self._exam(protocol):
                self.observations.append(Observation(protocol, self.score(params, data, span), domain))

    def show(self, name: str, values: Tensor) -> None:
        """Put an array on show under one of the method's `exhibits`; it reaches the ledger and the report, not the message."""
        if self.exhibiting:
            self.shown[name] = values.tolist()

    def _exam(self, protocol: str) -> Iterator[tuple[str | None, Examples]]:
        """What a protocol tests on: own test slice, own validation split, or every other domain's test set."""
        if protocol == "inter":
            yield from ((name, data) for name, data in self.tests.items() if name != self.domain)
        elif protocol == "local_val":
            yield from [(None, self.validation)] if len(self.validation) else []
        elif len(self.test):
            yield self.domain, self.test
