"""Optimisers and learning-rate schedules as settings, and an optimiser's state as a Record."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from coterie.record import Record
from coterie.settings import STRICT, Registry, Spec

__all__ = ["OPTIMISERS", "SCHEDULES", "Adam", "AdamW", "Constant", "Cosine", "Exponential", "Optimiser", "Schedule", "Sgd", "Steps"]

NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, lt=1)]


@dataclass(frozen=True, config=STRICT)
class Optimiser(Spec):
    """How parameters move; `build` makes the torch optimiser for one `fit`."""

    lr: Positive = 0.1
    weight_decay: NotNegative = 0.0

    def build(self, parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
        """A torch optimiser at this learning rate."""
        raise NotImplementedError


@dataclass(frozen=True, config=STRICT)
class Sgd(Optimiser):
    """Stochastic gradient descent.

    >>> Sgd(lr=0.05, momentum=0.9).momentum
    0.9
    """

    name: ClassVar[str] = "sgd"
    momentum: Share = 0.0
    nesterov: bool = False

    def build(self, parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=lr, momentum=self.momentum, weight_decay=self.weight_decay, nesterov=self.nesterov)


@dataclass(frozen=True, config=STRICT)
class Adam(Optimiser):
    """Adam (Kingma & Ba 2015), with L2 in the gradient."""

    name: ClassVar[str] = "adam"
    lr: Positive = 1e-3
    betas: tuple[Share, Share] = (0.9, 0.999)

    def build(self, parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=lr, betas=self.betas, weight_decay=self.weight_decay)


@dataclass(frozen=True, config=STRICT)
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019)."""

    name: ClassVar[str] = "adamw"
    weight_decay: NotNegative = 1e-2

    def build(self, parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=lr, betas=self.betas, weight_decay=self.weight_decay)


OPTIMISERS = Registry("optimiser", Optimiser, [Sgd, Adam, AdamW])


class Schedule(Spec):
    """How the learning rate changes over rounds."""

    def factor(self, round: int) -> float:
        """What the optimiser's rate is multiplied with in `round` (the first is 1)."""
        raise NotImplementedError


@dataclass(frozen=True, config=STRICT)
class Constant(Schedule):
    """The same rate in every round."""

    name: ClassVar[str] = "constant"

    def factor(self, round: int) -> float:
        return 1.0


@dataclass(frozen=True, config=STRICT)
class Exponential(Schedule):
    """Times `decay` every round, never below `floor` (a share of the first rate).

    >>> Exponential(decay=0.5, floor=0.2).factor(1), Exponential(decay=0.5, floor=0.2).factor(9)
    (1.0, 0.2)
    """

    name: ClassVar[str] = "exponential"
    decay: Annotated[float, Field(gt=0, le=1)] = 0.99
    floor: Annotated[float, Field(ge=0, le=1)] = 0.0

    def factor(self, round: int) -> float:
        return max(self.decay ** (round - 1), self.floor)


@dataclass(frozen=True, config=STRICT)
class Steps(Schedule):
    """Times `decay` after every `every` rounds.

    >>> [Steps(every=2, decay=0.1).factor(r) for r in (1, 2, 3)]
    [1.0, 1.0, 0.1]
    """

    name: ClassVar[str] = "steps"
    every: Annotated[int, Field(ge=1)] = 10
    decay: Annotated[float, Field(gt=0, le=1)] = 0.1

    def factor(self, round: int) -> float:
        return float(self.decay ** ((round - 1) // self.every))


@dataclass(frozen=True, config=STRICT)
class Cosine(Schedule):
    """Half a cosine from 1 down to 0 over `rounds`, and 0 after them.

    >>> [round(Cosine(rounds=4).factor(r), 3) for r in (1, 3, 5)]
    [1.0, 0.5, 0.0]
    """

    name: ClassVar[str] = "cosine"
    rounds: Annotated[int, Field(ge=1)] = 100

    def factor(self, round: int) -> float:
        return 0.5 * (1 + math.cos(math.pi * min(round - 1, self.rounds) / self.rounds))


SCHEDULES = Registry("schedule", Schedule, [Constant, Exponential, Steps, Cosine])
StatePolicy = Literal["fresh", "kept"]


def state_of(optimiser: torch.optim.Optimizer, named: dict[str, nn.Parameter]) -> Record:
    """An optimiser's state by parameter name: `conv1.weight/momentum_buffer`."""
    state = {name: {key: _own(value) for key, value in optimiser.state[p].items() if value is not None} for name, p in named.items()}
    return Record({name: entries for name, entries in state.items() if entries})


def restore(optimiser: torch.optim.Optimizer, named: dict[str, nn.Parameter], state: Record) -> None:
    """Put back what `state_of` took; a parameter without any starts fresh."""
    for path, value in state.items():
        name, _, key = path.rpartition("/")
        if name in named:
            optimiser.state[named[name]][key] = _own(value)


def _own(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value
