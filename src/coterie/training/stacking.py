"""Clients trained side by side as one computation: their weights stacked, every step taken for all of them at once.

For small clients most of a step is not arithmetic; a stack pays that once. Dense networks under the usual loss, which most small clients
have, have their step written out or are trained in the span of their samples (`dense.py`); all others are left to `torch.func.vmap`. Sums
are formed in another order than by `fit`, so that the bits are others (`tests/training/test_stacking.py` says how close): whoever wants it
says so (`training.stack`), it is part of the experiment, and who is stacked with whom is decided by the cohort alone. What cannot be
stacked (`reason`) is trained by `fit`, one by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from coterie.awaited import PutAside, awaited
from coterie.data.examples import Samples
from coterie.devices import CPU, Device
from coterie.record import EMPTY, Record
from coterie.training.dense import Dense, Span, layers_of, mean_of, norms_of, one_of
from coterie.training.descent import descent_of
from coterie.training.loop import MADE_AT_ONCE, Fitted, Options, fit, order_of, sizes_of
from coterie.training.objectives import CrossEntropy, Objective, Step
from coterie.training.optimisers import Sgd
from coterie.training.settings import Training

__all__ = ["Awaiting", "Request", "Stack", "fit_together", "reason"]

SPAN = 128
"""Samples that a client's training may go through to be done in their span: what that costs grows with their square."""


@dataclass(frozen=True, eq=False)
class Request:
    """A training that is wanted: what `fit` is called with."""

    model: nn.Module
    start: Record
    data: Samples
    objective: Objective
    training: Training
    seed: int
    round: int
    options: Options
    device: Device = CPU
    purpose: str = "train"

    def fit(self) -> Fitted:
        """By itself."""
        how = {"seed": self.seed, "round": self.round, "device": self.device}
        return fit(self.model, self.start, self.data, self.objective, self.training, **how, **self.options)  # type: ignore[arg-type]

    def goes_with(self, other: Request) -> bool:
        """Whether both are the same computation on other numbers."""
        alike = self.model is other.model and self.objective == other.objective and self.training == other.training
        return alike and len(self.data) == len(other.data) and self.start.tensors.keys() == other.start.tensors.keys()


class Awaiting(Fitted):
    """What a training is yet to give: its weights can be passed on, and who looks at how it went is put aside."""

    def __init__(self, request: Request) -> None:
        weights = Record({name: awaited(request, name) for name in request.start.tensors})
        for name, value in {"request": request, "params": weights, "optimiser": EMPTY, "parts": ()}.items():
            object.__setattr__(self, name, value)

    @staticmethod
    def can(request: Request) -> bool:
        """Whether all that is asked of it before it is done is known: the loss is no sum of terms that are told apart."""
        return request.objective == CrossEntropy()

    def __getattr__(self, name: str) -> Any:  # what was not set
        raise PutAside(self.__dict__["request"])


def reason(request: Request) -> str | None:
    """Why a training cannot be stacked, or None; the experiment alone decides that, never where it runs.

    >>> from coterie.models import MLP
    >>> from coterie.training.objectives import CrossEntropy
    >>> net, training = MLP().build((1, 2, 2), 2), Training(clip=1.0)
    >>> reason(Request(net, EMPTY, [], CrossEntropy(), training, 0, 1, {}))
    'gradients are clipped'
    """
    return next((each for each, holds in REASONS.items() if holds(request)), None)


def _keeps_state(request: Request) -> bool:
    optimiser = request.training.optimiser
    return not isinstance(optimiser, Sgd) or bool(optimiser.momentum or optimiser.nesterov)


def _only_alone(request: Request) -> bool:
    if request.objective == CrossEntropy():
        return False
    return descent_of(request.model, dict(request.model.named_parameters()), request.objective, request.training) is not None


def _peculiar(module: nn.Module) -> bool:
    """Whether it, or a part of it, looks at the batch or draws at random; every client's network is asked, so without `modules`."""
    if isinstance(module, nn.modules.batchnorm._BatchNorm) or (isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0):
        return True
    return any(map(_peculiar, (each for each in module._modules.values() if each is not None)))


REASONS: Mapping[str, Callable[[Request], bool]] = {
    "its objective looks at more than logits and labels": lambda request: not request.objective.stackable,
    "its optimiser keeps a state": _keeps_state,
    "gradients are clipped": lambda request: request.training.clip is not None,
    "images are changed at random": lambda request: request.training.augment != "none",
    "it has options of its own": lambda request: any(
        value for key, value in request.options.items() if key not in ("optimiser", "clip_apart")
    ),
    "its network has layers that look at the batch or draw at random": lambda request: _peculiar(request.model),
    "its steps are written out for one client only, which is faster than a stack whose steps are derived": _only_alone,
}
"""Why a training cannot be stacked, in the order in which they are looked at."""


def fit_together(requests: Sequence[Request]) -> Stack | None:
    """Trainings that are done as one; None where they cannot be, and each is to be done by itself."""
    first = requests[0]
    if reason(first) is not None or not all(map(first.goes_with, requests)) or len(requests) == 1:
        return None
    return Stack(requests)


class Stack:
    """Trainings that were one computation. A client's weights are laid down when they are asked for, so that those of all never lie in
    memory together, and those of nobody where their mean is all that is asked for."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self._requests, self._first = requests, requests[0]
        self._model = self._first.model.train()
        self._device = self._first.device
        self._lr = self._first.training.optimiser.lr * self._first.training.schedule.factor(self._first.round)
        samples, training = len(self._first.data), self._first.training
        self._sizes = list(sizes_of(self._model, samples, training))
        """Of the batches of each epoch, which all have alike."""
        self._orders = [_positions(samples, each.seed, self._sizes) for each in requests]
        self._way = self._chosen()
        self._losses = self._fit()

    def __len__(self) -> int:
        return len(self._requests)

    def _chosen(self) -> _Way:
        """How they are trained: decided by the network, the objective and the numbers of samples."""
        training, names = self._first.training, layers_of(self._model) if self._first.objective == CrossEntropy() else None
        if names is None:
            return _Derived(self._first, self._stacked(), self._lr)
        decay, starts = 1 - self._lr * training.optimiser.weight_decay, [each.start.tensors for each in self._requests]
        samples = sum(map(sum, self._sizes))
        if samples <= SPAN and all(_same(start, starts[0]) for start in starts):
            start = {name: self._device.put(value).clone() for name, value in starts[0].items()}  # tasks may edit theirs meanwhile
            return Span(names, start, len(starts), samples, self._lr, decay)
        return Dense(names, self._stacked(), self._lr, decay)

    def _stacked(self) -> dict[str, Tensor]:
        starts = [each.start.tensors for each in self._requests]
        return {name: self._device.put(torch.stack([start[name] for start in starts])) for name in starts[0]}

    def _fit(self) -> list[list[float]]:
        """Of each client, the mean loss over the last epoch and its terms."""
        with nullcontext() if isinstance(self._way, _Derived) else torch.inference_mode():
            losses = [loss for x, y, sizes in self._made() for loss in self._way.steps(x, y, sizes)]
        return self._means(losses[-len(self._sizes[-1]) :]) if losses else [[math.nan]] * len(self._requests)

    def _means(self, losses: list[Tensor]) -> list[list[float]]:
        """Over the steps of an epoch, of each client: the loss, and its terms if it has several."""
        means: list[list[float]] = self._device.fetch(torch.stack(losses)).double().mean(0).reshape(len(self._requests), -1).tolist()
        return means

    def fitted(self, at: int) -> Fitted:
        """What has come of one of them."""
        return self.told(at, Record({name: self._device.fetch(value) for name, value in self._way.trained(at).items()}))

    def told(self, at: int, params: Record = EMPTY) -> Fitted:
        """How one of them went, with these weights."""
        (loss, *parts), sizes = self._losses[at], [size for epoch in self._sizes for size in epoch]
        return Fitted(params, EMPTY, loss, tuple(parts), len(sizes), sum(sizes), self._lr)

    @property
    def averages(self) -> bool:
        """Whether all weights are such that a mean of them can be taken here as exactly as anywhere."""
        return {value.dtype for value in self._first.start.tensors.values()} in ({torch.float32}, {torch.float64})

    def mean(self, weights: Sequence[float]) -> dict[str, Tensor]:
        """The mean of what has come of all, weighted, by name."""
        weight, kind = torch.tensor(weights, dtype=torch.float64), next(iter(self._first.start.tensors.values())).dtype
        shares = self._device.put((weight / weight.sum()).to(kind))
        return {name: self._device.fetch(value) for name, value in self._way.mean(shares).items()}

    def norms(self) -> list[float]:
        """Of the weights of each the L2 norm, or more."""
        norms: list[float] = self._device.fetch(self._way.norms()).double().tolist()
        return norms

    def _made(self) -> Iterator[tuple[Tensor, Tensor, list[int]]]:
        """Inputs and labels (clients x samples x ...) of some steps, of many if they are small, and the size of each step's batch."""
        left, begin = [size for epoch in self._sizes for size in epoch], 0
        together = len(left) if isinstance(self._way, Span) else 1
        while left:
            sizes, left = left[:together], left[together:]
            chosen = slice(begin, begin + sum(sizes))
            made = [request.data.batch(order[chosen]) for request, order in zip(self._requests, self._orders, strict=True)]
            x, y = (self._device.put(torch.stack(each)) for each in zip(*made, strict=True))
            yield x, y, sizes
            begin, together = chosen.stop, max(1, MADE_AT_ONCE * len(sizes) // max(x.nbytes, 1))


def _positions(samples: int, seed: int, sizes: Sequence[Sequence[int]]) -> Tensor:
    """What a client's steps go through, epoch after epoch, whose batches are of these sizes."""
    return torch.cat([torch.empty(0, dtype=torch.int64), *(order_of(samples, seed, at)[: sum(each)] for at, each in enumerate(sizes))])


def _same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Whether two starts are the same weights."""
    return all(value.data_ptr() == other[name].data_ptr() or torch.equal(value, other[name]) for name, value in one.items())


class _Way(Protocol):
    """How a stack is trained."""

    def steps(self, x: Tensor, y: Tensor, sizes: list[int]) -> list[Tensor]:
        """Steps on batches that follow each other (clients x samples x ...): of each the clients' losses, or those and their terms
        (clients x terms)."""

    def trained(self, at: int) -> Mapping[str, Tensor]:
        """What one client's network has become: nobody who keeps it keeps the whole stack."""

    def mean(self, shares: Tensor) -> Mapping[str, Tensor]:
        """The mean of all clients' networks, each with its share."""

    def norms(self) -> Tensor:
        """The L2 norm of each client's network, or more."""


class _Derived:
    """Any network, under any objective that can be stacked."""

    def __init__(self, request: Request, tensors: dict[str, Tensor], lr: float) -> None:
        self._judged, self._tensors, self._lr = _Judged(request.model, request.objective), tensors, lr
        self._moving = {name: tensors[name] for name, _ in request.model.named_parameters()}
        self._mover = request.training.optimiser.mover(self._moving, request.device)
        self._gradients = vmap(grad_and_value(self._loss, has_aux=True), randomness="different")

    def steps(self, x: Tensor, y: Tensor, sizes: list[int]) -> list[Tensor]:
        return [self._step(*batch) for batch in zip(torch.split(x, sizes, 1), torch.split(y, sizes, 1), strict=True)]

    def _step(self, x: Tensor, y: Tensor) -> Tensor:
        gradients, (loss, parts) = self._gradients(self._moving, x, y)
        self._mover.move([gradients[name] for name in self._moving], self._lr)
        return torch.stack([loss, *parts], dim=1)

    def trained(self, at: int) -> Mapping[str, Tensor]:
        return one_of(self._tensors, at)

    def mean(self, shares: Tensor) -> Mapping[str, Tensor]:
        return mean_of(self._tensors, shares)

    def norms(self) -> Tensor:
        return norms_of(self._tensors.values())

    def _loss(self, moving: Mapping[str, Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Of one client and batch."""
        loss, *parts = functional_call(self._judged, {f"net.{name}": each for name, each in moving.items()}, (x, y))
        return loss, tuple(parts)


class _Judged(nn.Module):
    """A network with its objective, so that both see the weights of one client."""

    def __init__(self, net: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.net, self._objective = net, objective

    def forward(self, x: Tensor, y: Tensor) -> list[Tensor]:
        """The loss, and its terms."""
        step = Step(self.net, x, y, {})
        return [self._objective(step), *step.parts]
