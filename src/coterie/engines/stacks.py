"""How the tasks of several clients are performed so that their trainings are one computation.

A task is a function of its site, its memory and its message, so it can be run again: it is run until it wants to train, put aside, and when
all of a stack have been, their trainings are done together; then each is run again from its beginning, and finds its training done.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from coterie.engines.engine import Job, Outcome
from coterie.training.loop import Fitted
from coterie.training.stacking import Request, fit_together

__all__ = ["PutAside", "Stacks", "Trainer"]

Trainer: TypeAlias = Callable[[Request], Fitted]
Attempt: TypeAlias = Callable[[Job, Trainer], Outcome | Request]
"""Performs a job as far as it goes: to its end, or to a training that is to be done together with others."""


class PutAside(BaseException):
    """A task wants to train and must wait for the others; not an Exception, so that no task takes it for one of its own."""

    def __init__(self, request: Request) -> None:
        self.request = request


class _Done:
    """The trainings of one task that are done: those that it wants beyond them are put aside."""

    def __init__(self) -> None:
        self.fitted = list[Fitted | None]()
        """None for one that the task is to do by itself."""

    def trainer(self) -> Trainer:
        """For one more run of the task."""
        known = iter(self.fitted)

        def train(request: Request) -> Fitted:
            try:
                found = next(known)
            except StopIteration:
                raise PutAside(request) from None
            return request.fit() if found is None else found

        return train


class Stacks:
    """Outcomes of the jobs of the last stack that was performed here, until they are asked for."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._ready: dict[tuple[str, str, int], Outcome] = {}

    def outcome(self, job: Job) -> Outcome:
        """What came of one job of a stack."""
        key = (job.message, job.task, job.client)
        if key not in self._ready:
            self._ready = {(job.message, job.task, client): each for client, each in self._together(job).items()}
        return self._ready.pop(key)

    def _together(self, job: Job) -> dict[int, Outcome]:
        began, outcomes = time.perf_counter(), dict[int, Outcome]()
        waiting = [replace(job, client=client, memory=memory, stack=()) for client, memory in job.stack]
        done = {each.client: _Done() for each in waiting}
        while waiting:
            wanted = dict[Job, Request]()
            for each in waiting:
                found = self._attempt(each, done[each.client].trainer())
                if isinstance(found, Request):
                    wanted[each] = found
                else:
                    outcomes[each.client] = found
            for each, fitted in zip(wanted, _fitted(list(wanted.values())), strict=True):
                done[each.client].fitted.append(fitted)
            waiting = list(wanted)
        seconds = (time.perf_counter() - began) / len(outcomes)
        return {client: replace(each, seconds=seconds) for client, each in outcomes.items()}


def _fitted(requests: list[Request]) -> list[Fitted | None]:
    """Of each; what fails for all may be one client's fault, and is found when each is done by itself."""
    try:
        together = fit_together(requests) if requests else None
    except Exception:
        together = None
    return [None] * len(requests) if together is None else [*together]
