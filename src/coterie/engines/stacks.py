"""How the tasks of several clients are performed so that their trainings are one computation.

A task that wants to train is given weights that are yet to be trained (`coterie.awaited`), and goes on. One that only passes them on comes
to its end, and its reply is what the training gives; one that looks at them is put aside there. When all of a stack have come so far, their
trainings are done together, and who was put aside is run again from the beginning: a task is a function of its site, its memory and its
message. What cannot be stacked is trained at once, and no task is run again for it.

Where nothing but the mean of their replies is wanted, and those are nothing but the weights that the training gave, that is taken of all
weights at once, and none of them is laid down. Whether a task has looked at its weights, as it does where they are evaluated, decides
nothing: what it replies with is compared with them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

import torch

from coterie.awaited import Awaited, PutAside
from coterie.engines.engine import Job, Outcome, PartOfMean
from coterie.record import Record, Scalar, framed_bytes
from coterie.replies import Averaging
from coterie.training.loop import Fitted
from coterie.training.stacking import Awaiting, Request, Stack, fit_together, reason
from coterie.wire import Buffer

__all__ = ["Held", "Stacks", "Trainer"]

Key: TypeAlias = tuple[str, str, int, bool]
Done: TypeAlias = Callable[[], Fitted] | None
"""A training that was done together with others; None for one that a task does by itself."""


class Trainer:
    """What trains for one run of a task: trainings that are done are there, and for one more it need not wait if it does not look."""

    def __init__(self, done: list[Done]) -> None:
        self._done, self._turn = done, 0
        self.awaits: Request | None = None
        """What it is to wait for, when it looks at it or comes to its end."""
        self.given = Record()
        """The weights that it was given last."""
        self.reply = Record()
        """What it has replied."""

    def __call__(self, request: Request) -> Fitted:
        """A training that it wants."""
        if self.awaits is not None:  # it wants to go on from there
            raise PutAside(self.awaits)
        if self._turn == len(self._done):
            if reason(request) is None:
                return self._awaiting(request)
            self._done.append(None)  # nothing to wait for
        found = self._done[self._turn]
        self._turn += 1
        fitted = request.fit() if found is None else found()
        self.given = fitted.params
        return fitted

    def _awaiting(self, request: Request) -> Fitted:
        self.awaits = request
        if not Awaiting.can(request):
            raise PutAside(request)
        return Awaiting(request)


@dataclass(frozen=True)
class Held:
    """A task that waits for a training."""

    request: Request
    finish: Callable[[Stack, int, Buffer | None], Outcome] | None = None
    """What comes of it when that is done, as one of a stack; bytes are sent in the place of its reply. None where it was put aside, and is
    to be run again."""


Attempt: TypeAlias = Callable[[Job, Trainer], Outcome | Held]
"""Performs a job as far as it goes: to its end, or to a training that is to be done together with others."""


@dataclass(eq=False)
class _Client:
    """One of a stack, and how far it has come."""

    job: Job
    done: list[Done] = field(default_factory=list)
    """Its trainings, in the order in which it wants them."""
    held: Held | None = None
    """If it waits for one."""
    stack: Stack | None = None
    at: int = 0
    """The last that was done together with others, and which of those it is."""
    finish: Callable[[Buffer | None], Outcome] | None = None
    """If it has come to its end without looking at that."""
    outcome: Outcome | None = None
    scalars: Mapping[str, Scalar] = field(default_factory=dict)
    """Of its reply."""
    weights: Mapping[str, str] | None = None
    """Which tensor of its reply is which weight of its last training, where it replies with nothing else."""

    def perform(self, attempt: Attempt) -> None:
        """As far as it goes."""
        trainer = Trainer(self.done)
        found = attempt(self.job, trainer)
        self.scalars = trainer.reply.scalars
        if isinstance(found, Held):
            self.held = found
            self.weights = {name: value.weight_of for name, value in trainer.reply.tensors.items() if isinstance(value, Awaited)}
        else:
            self.outcome = found
            self.weights = self._passed_on(trainer) if found.error is None and self.job.mean is not None else None

    def _passed_on(self, trainer: Trainer) -> Mapping[str, str] | None:
        """The same of one that was given its weights: now, before another has a chance to change them."""
        if self.stack is None:
            return None
        given = {value.data_ptr(): name for name, value in trainer.given.tensors.items()}
        found = {name: given.get(value.data_ptr(), "") for name, value in trainer.reply.tensors.items()}
        fresh = self.stack.fitted(self.at).params.tensors
        same = all(found[name] and torch.equal(value, fresh[found[name]]) for name, value in trainer.reply.tensors.items())
        return found if same else None

    def go_on(self, stack: Stack | None, at: int) -> None:
        """What it waits for is done."""
        assert self.held is not None
        self.stack, self.at = stack, at
        if stack is not None and self.held.finish is not None:
            self.finish = partial(self.held.finish, stack, at)
        else:
            self.done.append(None if stack is None else partial(stack.fitted, at))
        self.held = None


class Stacks:
    """The stack that is being performed here: each of its jobs comes to its end when it is asked for, so that its reply is under way while
    the others are still at work, and no more than one reply lies in memory."""

    def __init__(self, attempt: Attempt, encode: Callable[[Record], Buffer]) -> None:
        self._attempt, self._encode = attempt, encode
        self._clients: dict[Key, _Client] = {}
        self._seconds = 0.0
        """What each has had of the time that was spent together."""

    def outcome(self, job: Job) -> Outcome:
        """What came of one job of a stack."""
        key = _key(job)
        if key not in self._clients:
            each = (replace(job, client=client, memory=memory, stack=()) for client, memory in job.stack)
            self._clients, self._seconds = {_key(one): _Client(one) for one in each}, 0.0
            if job.mean is not None:
                self._merge(job.mean, list(self._clients.values()))
        client = self._clients[key]
        while client.outcome is None:
            self._go_on(client)
        del self._clients[key]
        return replace(client.outcome, seconds=client.outcome.seconds + self._seconds)

    def _go_on(self, client: _Client) -> None:
        """Perform a job to its end; if it wants to train, all that have come as far as it do so together."""
        began = time.perf_counter()
        if client.finish is not None:
            client.outcome = client.finish(None)
        elif client.held is None:
            client.perform(self._attempt)
        if client.outcome is None:
            for each in self._clients.values():
                if each.outcome is None and each.finish is None and each.held is None:
                    each.perform(self._attempt)
            waiting = [each for each in self._clients.values() if each.held is not None]
            stack = _fitted([each.held.request for each in waiting if each.held is not None])
            for at, each in enumerate(waiting):
                each.go_on(stack, at)
            self._seconds += (time.perf_counter() - began) / len(self._clients)

    def _merge(self, mean: Averaging, clients: Sequence[_Client]) -> None:
        """Have the mean of all replies sent in their place, if they are nothing but weights that one training has given."""
        self._go_on(clients[0])
        for each in clients:
            if each.outcome is None and each.finish is None:  # it looked
                each.perform(self._attempt)
        first, weights = clients[0], [_weight(mean, each.scalars) for each in clients]
        alike = all(each.held is None and each.stack is first.stack and each.weights == first.weights for each in clients)
        if first.stack is None or not first.weights or not alike or not all(weights):
            return
        if not first.stack.averages or not mean.holds(first.weights):
            return
        merged = first.stack.mean(weights)
        record = Record({name: merged[weight] for name, weight in first.weights.items()})
        for each, norm in zip(clients, first.stack.norms(), strict=True):
            data = self._encode(record) if each is clients[-1] else b""
            found = each.outcome or (each.finish and each.finish(data))
            assert found is not None
            part = PartOfMean(dict(each.scalars), framed_bytes(record.tensors, each.scalars), norm)
            each.outcome = replace(found, reply=data, part=part if found.error is None else None)


def _key(job: Job) -> Key:
    return job.message, job.task, job.client, job.mean is None


def _weight(mean: Averaging, scalars: Mapping[str, Scalar]) -> int:
    """How much a reply counts; 0 where that is no whole number, and somebody must look at it."""
    weight = scalars.get("examples") if mean.weighting == "samples" else 1
    return weight if type(weight) is int and weight > 0 else 0


def _fitted(requests: list[Request]) -> Stack | None:
    """Of all; what fails for all may be one client's fault, and is found when each is done by itself."""
    try:
        return fit_together(requests) if requests else None
    except Exception:
        return None
