"""How the tasks of several clients are performed so that their trainings are one computation.

A task is a function of its site, its memory and its message, so it can be run again: it is run until it wants to train, put aside, and when
all of a stack have been, their trainings are done together; then each is run again from its beginning, and finds its training done. What
cannot be stacked is trained at once, and no task is run again for it.

Where nothing but the mean of their replies is wanted, it is taken here, as each comes: none of them need travel.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

from coterie.engines.engine import Job, Outcome, Part
from coterie.record import Record, framed_bytes
from coterie.replies import Mean, Means, Reply, norm_of
from coterie.training.loop import Fitted
from coterie.training.stacking import Request, fit_together, reason
from coterie.wire import Buffer

__all__ = ["Answer", "PutAside", "Stacks", "Trainer"]

Trainer: TypeAlias = Callable[[Request], Fitted]
Answer: TypeAlias = Callable[[Record], tuple[Buffer, Part | None]]
"""What is sent of a reply: its bytes, or its part in a mean."""
Attempt: TypeAlias = Callable[[Job, Trainer, Answer], Outcome | Request]
"""Performs a job as far as it goes: to its end, or to a training that is to be done together with others."""


class PutAside(BaseException):
    """A task wants to train and must wait for the others; not an Exception, so that no task takes it for one of its own."""

    def __init__(self, request: Request) -> None:
        self.request = request


class _Done:
    """The trainings of one task that are done: those that it wants beyond them are put aside."""

    def __init__(self) -> None:
        self.fitted = list[Callable[[], Fitted] | None]()
        """In the order in which it wants them; None for one that it is to do by itself."""

    def trainer(self) -> Trainer:
        """For one more run of the task."""
        turns = itertools.count()

        def train(request: Request) -> Fitted:
            turn = next(turns)
            if turn == len(self.fitted):
                if reason(request) is None:
                    raise PutAside(request)
                self.fitted.append(None)  # nothing to wait for
            found = self.fitted[turn]
            return request.fit() if found is None else found()

        return train


class _Merging:
    """The mean of a stack's replies in the making: what is sent of the last one is the mean."""

    def __init__(self, wanted: Mean, clients: int, answer: Answer) -> None:
        self._means, self._clients, self._answer = Means(wanted), clients, answer
        self._merged, self._form = 0, dict[str, Any]()

    def __call__(self, reply: Record) -> tuple[Buffer, Part | None]:
        try:
            part = self._part(reply)
        except Exception:  # it is of another form than those before it, or lacks its weight: the server will look at each
            return b"", None
        return self._answer(self._means.record())[0] if self._merged == self._clients else b"", part

    def _part(self, reply: Record) -> Part:
        tensors = reply.tensors
        form = {name: (value.dtype, value.shape) for name, value in tensors.items()}
        if form != (self._form or form) or not self._means.wanted.holds(form):
            raise TypeError("replies of a stack have one form, all of which is averaged")
        part = Part(self._merged, reply.scalars, framed_bytes(reply), norm_of(tensors.values()))
        self._means.add(Reply(0, reply))
        self._merged, self._form = self._merged + 1, form
        return part


class Stacks:
    """The stack that is being performed here: each of its jobs comes to its end when it is asked for, so that its reply is under way while
    the others are still at work, and no more than one reply lies in memory."""

    def __init__(self, attempt: Attempt, answer: Answer) -> None:
        self._attempt, self._alone = attempt, answer
        self._answer = answer
        self._waiting: dict[tuple[str, str, int], tuple[Job, _Done]] = {}
        self._ready: dict[tuple[str, str, int], Outcome] = {}
        self._size, self._seconds = 0, 0.0
        """How many it has, and what each has had of the time that was spent together."""

    def outcome(self, job: Job) -> Outcome:
        """What came of one job of a stack."""
        key = _key(job)
        if key not in self._waiting and key not in self._ready:
            each = (replace(job, client=client, memory=memory, stack=()) for client, memory in job.stack)
            self._waiting, self._ready = {_key(one): (one, _Done()) for one in each}, {}
            self._size, self._seconds = len(job.stack), 0.0
            self._answer = self._alone if job.mean is None else _Merging(job.mean, self._size, self._alone)
        while key in self._waiting:
            self._go_on(key)
        return self._ready.pop(key)

    def _go_on(self, key: tuple[str, str, int]) -> None:
        """Perform a job to its end; if it wants to train, all that have come as far as it do so together."""
        first = self._performed(key)
        if first is None:
            return
        began = time.perf_counter()
        found = {each: first if each == key else self._performed(each) for each in list(self._waiting)}
        wanted = {each: request for each, request in found.items() if request is not None}
        for each, fitted in zip(wanted, _fitted(list(wanted.values())), strict=True):
            self._waiting[each][1].fitted.append(fitted)
        self._seconds += (time.perf_counter() - began) / self._size

    def _performed(self, key: tuple[str, str, int]) -> Request | None:
        """What a job wants to train next, or None if it is done."""
        job, done = self._waiting[key]
        found = self._attempt(job, done.trainer(), self._answer)
        if isinstance(found, Request):
            return found
        del self._waiting[key]
        self._ready[key] = replace(found, seconds=found.seconds + self._seconds)
        return None


def _key(job: Job) -> tuple[str, str, int]:
    return job.message, job.task, job.client


def _fitted(requests: list[Request]) -> list[Callable[[], Fitted] | None]:
    """Of each; what fails for all may be one client's fault, and is found when each is done by itself."""
    try:
        together = fit_together(requests) if requests else None
    except Exception:
        together = None
    return [None] * len(requests) if together is None else [*together]
