"""Optimisers and learning-rate schedules as settings, and an optimiser's state as a Record."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field, PlainSerializer, PlainValidator
from torch import Tensor

from coterie.errors import UserError
from coterie.record import EMPTY, Record
from coterie.settings import Count, NotNegative, Positive, PositiveShare, Registry, Share, ShareBelowOne, Spec, spec

__all__ = [
    "OPTIMISERS",
    "SCHEDULES",
    "Adam",
    "AdamW",
    "Constant",
    "Cosine",
    "Exponential",
    "Optimiser",
    "Piecewise",
    "Schedule",
    "Sgd",
    "Steps",
    "WeightByRound",
    "at_round",
]


@spec
class Optimiser(Spec):
    """How parameters move; `build` makes the torch optimiser for one `fit`."""

    lr: Positive = 0.1
    weight_decay: NotNegative = 0.0

    def build(self, parameters: Iterable[Tensor], lr: float) -> torch.optim.Optimizer:
        """A torch optimiser at this learning rate."""
        raise NotImplementedError

    def mover(self, named: Mapping[str, Tensor], lr: float) -> Mover:
        """What moves these parameters in one `fit`."""
        return Mover(named, self.build(named.values(), lr))


@spec
class Sgd(Optimiser):
    """Stochastic gradient descent.

    >>> OPTIMISERS.resolve({"name": "sgd", "momentum": 0.9})
    Sgd(lr=0.1, weight_decay=0.0, momentum=0.9, nesterov=False)
    """

    name: ClassVar[str] = "sgd"
    momentum: ShareBelowOne = 0.0
    nesterov: bool = False

    def build(self, parameters: Iterable[Tensor], lr: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=lr, momentum=self.momentum, weight_decay=self.weight_decay, nesterov=self.nesterov)

    def mover(self, named: Mapping[str, Tensor], lr: float) -> Mover:
        return super().mover(named, lr) if self.momentum or self.nesterov else PlainSgd(named, self.weight_decay)


@spec
class Adam(Optimiser):
    """Adam (Kingma & Ba 2015), with L2 in the gradient."""

    name: ClassVar[str] = "adam"
    lr: Positive = 1e-3
    betas: tuple[ShareBelowOne, ShareBelowOne] = (0.9, 0.999)

    def build(self, parameters: Iterable[Tensor], lr: float) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=lr, betas=self.betas, weight_decay=self.weight_decay)


@spec
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019)."""

    name: ClassVar[str] = "adamw"
    weight_decay: NotNegative = 1e-2

    def build(self, parameters: Iterable[Tensor], lr: float) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=lr, betas=self.betas, weight_decay=self.weight_decay)


OPTIMISERS = Registry("optimiser", Optimiser, [Sgd, Adam, AdamW])


class Schedule(Spec):
    """How the learning rate changes over rounds."""

    def factor(self, round: int) -> float:
        """What the optimiser's rate is multiplied with in `round` (the first is 1)."""
        raise NotImplementedError


@spec
class Constant(Schedule):
    """The same rate in every round."""

    name: ClassVar[str] = "constant"

    def factor(self, round: int) -> float:
        return 1.0


@spec
class Exponential(Schedule):
    """Times `decay` every round, never below `floor` (a share of the first rate).

    >>> Exponential(decay=0.5, floor=0.2).factor(1), Exponential(decay=0.5, floor=0.2).factor(9)
    (1.0, 0.2)
    """

    name: ClassVar[str] = "exponential"
    decay: PositiveShare = 0.99
    floor: Share = 0.0

    def factor(self, round: int) -> float:
        return max(self.decay ** (round - 1), self.floor)


@spec
class Steps(Schedule):
    """Times `decay` after every `every` rounds.

    >>> [Steps(every=2, decay=0.1).factor(r) for r in (1, 2, 3)]
    [1.0, 1.0, 0.1]
    """

    name: ClassVar[str] = "steps"
    every: Count = 10
    decay: PositiveShare = 0.1

    def factor(self, round: int) -> float:
        return float(self.decay ** ((round - 1) // self.every))


@spec
class Cosine(Schedule):
    """Half a cosine from 1 down to 0 over `rounds`, and 0 after them.

    >>> [round(Cosine(rounds=4).factor(r), 3) for r in (1, 3, 5)]
    [1.0, 0.5, 0.0]
    """

    name: ClassVar[str] = "cosine"
    rounds: Count = 100

    def factor(self, round: int) -> float:
        return 0.5 * (1 + math.cos(math.pi * min(round - 1, self.rounds) / self.rounds))


@spec
class Piecewise(Schedule):
    """A value for each stretch of rounds: (from which round, value) pairs; the first also stands before its round.

    >>> [Piecewise(values=((1, 0.9), (20, 0.5))).factor(r) for r in (1, 19, 20)]
    [0.9, 0.9, 0.5]
    """

    name: ClassVar[str] = "piecewise"
    values: Annotated[tuple[tuple[Count, Share], ...], Field(min_length=1)]

    def __post_init__(self) -> None:
        rounds = [since for since, _ in self.values]
        if rounds != sorted(set(rounds)):
            raise UserError(f"schedule.values = {list(map(list, self.values))}: expected pairs of a round and a number, the rounds rising")

    def factor(self, round: int) -> float:
        return next((value for since, value in reversed(self.values) if since <= round), self.values[0][1])


SCHEDULES = Registry("schedule", Schedule, [Constant, Exponential, Steps, Cosine, Piecewise])


def _weight(value: Any) -> float | Schedule:
    if isinstance(value, Schedule | Mapping):
        return SCHEDULES.resolve(value, "schedule")
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError("expected a number from 0 to 1, or a schedule: { name = 'piecewise', values = [[1, 0.9], [20, 0.5]] }")
    return float(value)


def _plain(weight: float | Schedule) -> Any:
    return SCHEDULES.dump(weight) if isinstance(weight, Schedule) else weight


WeightByRound = Annotated[float | Schedule, PlainValidator(_weight), PlainSerializer(_plain)]
"""A number from 0 to 1, or a schedule that gives one for each round."""


def at_round(weight: float | Schedule, round: int) -> float:
    """What a weight is in a round.

    >>> at_round(0.5, 7), at_round(Piecewise(values=((1, 0.9), (20, 0.5))), 20)
    (0.5, 0.5)
    """
    return weight.factor(round) if isinstance(weight, Schedule) else weight


StatePolicy = Literal["fresh", "kept"]


class Mover:
    """Moves parameters against their gradients, by a torch optimiser whose state can be taken out and put back as a Record."""

    def __init__(self, named: Mapping[str, Tensor], optimiser: torch.optim.Optimizer) -> None:
        self._named, self._optimiser = named, optimiser

    def move(self, gradients: Sequence[Tensor | None], lr: float) -> None:
        """One step; a parameter without a gradient stays where it is."""
        for group in self._optimiser.param_groups:
            group["lr"] = lr
        for parameter, gradient in zip(self._named.values(), gradients, strict=True):
            parameter.grad = gradient
        self._optimiser.step()

    def state(self) -> Record:
        """The optimiser's state by parameter name: `conv1.weight/momentum_buffer`."""
        entries = {name: {k: _own(v) for k, v in self._optimiser.state[p].items() if v is not None} for name, p in self._named.items()}
        return Record({name: each for name, each in entries.items() if each})

    def restore(self, state: Record) -> None:
        """Put back what `state` took; a parameter without any starts fresh."""
        for path, value in state.items():
            name, _, key = path.rpartition("/")
            if name in self._named:
                self._optimiser.state[self._named[name]][key] = _own(value)


class PlainSgd(Mover):
    """SGD without momentum: no state, and one addition for each parameter; bit for bit what `torch.optim.SGD` does.

    >>> weight = nn.Parameter(torch.ones(2))
    >>> PlainSgd({"weight": weight}, weight_decay=0.0).move([torch.ones(2)], lr=0.5)
    >>> weight.tolist()
    [0.5, 0.5]
    """

    def __init__(self, named: Mapping[str, Tensor], weight_decay: float) -> None:
        self._parameters, self._decay = list(named.values()), weight_decay

    @torch.no_grad()
    def move(self, gradients: Sequence[Tensor | None], lr: float) -> None:
        moving, by = list[Tensor](), list[Tensor]()
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            if gradient is not None:
                moving.append(parameter)
                by.append(gradient)
        if self._decay:
            by = list(torch._foreach_add(by, moving, alpha=self._decay))
        torch._foreach_add_(moving, by, alpha=-lr)

    def state(self) -> Record:
        return EMPTY

    def restore(self, state: Record) -> None:
        """There is nothing to put back."""


def _own(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value
