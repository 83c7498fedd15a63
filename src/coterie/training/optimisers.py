"""Optimisers and learning-rate schedules as settings, and an optimiser's state as a Record."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field, PlainSerializer, PlainValidator
from torch import Tensor

from coterie.devices import CPU, Device
from coterie.errors import UserError
from coterie.record import Record
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
    """How parameters move: one step of one parameter, in place.

    Ours are written out, bit for bit as in `torch.optim`, whose classes take seconds to import what they need for being compiled. One of
    your own says `update`.
    """

    lr: Positive = 0.1
    """The learning rate."""
    weight_decay: NotNegative = 0.0
    """How strongly weights are pulled towards 0."""

    @property
    def plain(self) -> bool:
        """Whether a parameter goes against its gradient, and that is all: then all of them move in one go."""
        return False

    def update(self, parameter: Tensor, gradient: Tensor, state: dict[str, Tensor], lr: float) -> None:
        """Move a parameter; `state` is what this optimiser keeps about it from step to step, empty before the first."""
        raise NotImplementedError

    def mover(self, named: Mapping[str, Tensor], device: Device = CPU) -> Mover:
        """What moves these parameters in one `fit`."""
        return Mover(self, named, device)


@spec
class Sgd(Optimiser):
    """Stochastic gradient descent.

    >>> OPTIMISERS.resolve({"name": "sgd", "momentum": 0.9})
    Sgd(lr=0.1, weight_decay=0.0, momentum=0.9, nesterov=False)
    """

    name: ClassVar[str] = "sgd"
    momentum: ShareBelowOne = 0.0
    """How much of the last step goes into the next."""
    nesterov: bool = False
    """Whether momentum looks ahead, after Nesterov."""

    def __post_init__(self) -> None:
        if self.nesterov and not self.momentum:
            raise UserError("optimiser.nesterov = true: there is no momentum, expected optimiser.momentum above 0")

    @property
    def plain(self) -> bool:
        return type(self).update is Sgd.update and not (self.weight_decay or self.momentum)

    def update(self, parameter: Tensor, gradient: Tensor, state: dict[str, Tensor], lr: float) -> None:
        if self.weight_decay:
            gradient = gradient.add(parameter, alpha=self.weight_decay)
        if self.momentum:
            if "momentum_buffer" in state:
                state["momentum_buffer"].mul_(self.momentum).add_(gradient)
            else:
                state["momentum_buffer"] = gradient.clone()
            gradient = gradient.add(state["momentum_buffer"], alpha=self.momentum) if self.nesterov else state["momentum_buffer"]
        parameter.add_(gradient, alpha=-lr)


@spec
class Adam(Optimiser):
    """Adam (Kingma & Ba 2015), with L2 in the gradient."""

    name: ClassVar[str] = "adam"
    lr: Positive = 1e-3
    betas: tuple[ShareBelowOne, ShareBelowOne] = (0.9, 0.999)
    """How much of the moments is kept from step to step, the first and the second."""

    def update(self, parameter: Tensor, gradient: Tensor, state: dict[str, Tensor], lr: float) -> None:
        decayed = gradient.add(parameter, alpha=self.weight_decay) if self.weight_decay else gradient
        self._adapt(parameter, decayed, state, lr)

    def _adapt(self, parameter: Tensor, gradient: Tensor, state: dict[str, Tensor], lr: float) -> None:
        if not state:
            state |= {"step": torch.tensor(0.0), "exp_avg": torch.zeros_like(parameter), "exp_avg_sq": torch.zeros_like(parameter)}
        state["step"] += 1
        (first, second), step = self.betas, state["step"].item()
        mean, square = state["exp_avg"], state["exp_avg_sq"]
        mean.lerp_(gradient, 1 - first)
        square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
        scale = (square.sqrt() / (1 - second**step) ** 0.5).add_(EPSILON)
        parameter.addcdiv_(mean, scale, value=-(lr / (1 - first**step)))


@spec
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019)."""

    name: ClassVar[str] = "adamw"
    weight_decay: NotNegative = 1e-2

    def update(self, parameter: Tensor, gradient: Tensor, state: dict[str, Tensor], lr: float) -> None:
        if self.weight_decay:
            parameter.mul_(1 - lr * self.weight_decay)
        self._adapt(parameter, gradient, state, lr)


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
    """What the rate is multiplied with every round."""
    floor: Share = 0.0
    """The share of the rate that it never goes below."""

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
    """Rounds between two steps."""
    decay: PositiveShare = 0.1
    """What the rate is multiplied with at each."""

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
    """Rounds until the rate is 0."""

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
    """Pairs of a round and a factor: from that round on, that factor."""

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
EPSILON = 1e-8
"""What keeps Adam from dividing by zero."""


class Mover:
    """Moves parameters against their gradients; what the optimiser keeps about them can be taken out and put back as a Record.

    >>> weight = torch.ones(2)
    >>> mover = Sgd(momentum=0.5).mover({"weight": weight})
    >>> mover.move([torch.ones(2)], lr=0.5)
    >>> weight.tolist(), mover.state()
    ([0.5, 0.5], Record(weight/momentum_buffer=float32[2]))
    """

    def __init__(self, optimiser: Optimiser, named: Mapping[str, Tensor], device: Device) -> None:
        self._optimiser, self._named, self._device = optimiser, named, device
        self._parameters = list(named.values())
        self._states: dict[str, dict[str, Tensor]] = {name: {} for name in named}

    @torch.no_grad()
    def move(self, gradients: Sequence[Tensor | None], lr: float) -> None:
        """One step; a parameter without a gradient stays where it is."""
        there = [each for each in gradients if each is not None]
        if self._optimiser.plain and len(there) == len(self._parameters):
            torch._foreach_add_(self._parameters, there, alpha=-lr)
            return
        for (name, parameter), gradient in zip(self._named.items(), gradients, strict=True):
            if gradient is not None:
                self._optimiser.update(parameter, gradient, self._states[name], lr)

    def state(self) -> Record:
        """What is kept, by parameter name: `conv1.weight/momentum_buffer`."""
        taken = {name: {key: self._device.fetch(value.clone()) for key, value in each.items()} for name, each in self._states.items()}
        return Record({name: each for name, each in taken.items() if each})

    def restore(self, state: Record) -> None:
        """Put back what `state` took; a parameter without any starts fresh."""
        for path, value in state.tensors.items():
            name, _, key = path.rpartition("/")
            if name in self._named:
                there = self._device.put(value) if value.dim() else value  # a counter stays where it is counted
                self._states[name][key] = there.clone()
