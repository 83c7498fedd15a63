"""The debugging engine: every job in this process, one after the other; an exception arrives with its own traceback.

It cannot stop a task: one that hangs, hangs the run, and one that exits or crashes ends it. A task that is merely late is found out
afterwards.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

from coterie.engines.engine import Engine, Job, Outcome, RunContext
from coterie.engines.surroundings import Generators
from coterie.engines.worker import Memories, Performer

__all__ = ["Inline"]


class Inline(Engine):
    """Performs jobs where it stands.

    >>> from coterie import Experiment, run
    >>> import tempfile
    >>> run(Experiment.load("digits-two-class", ["rounds=1"]), tempfile.mkdtemp(), engine=Inline()).summary["rounds"]
    1
    """

    performer: type[Performer] = Performer

    def __init__(self) -> None:
        self._before: list[Callable[[], None]] = []

    def open(self, context: RunContext) -> None:
        memories = Memories(context.folder, context.memory_budget)
        self._performer = self.performer(context.method, context.population, memories)
        self._stops = _Stops()
        self._before = [Generators().restore, self._stops.forget, self._performer.close]

    def deliver(self, jobs: Sequence[Job]) -> Iterator[Outcome]:
        for job in jobs:
            outcome = self._performer.perform(job)
            if self._stops.heard:
                raise KeyboardInterrupt
            yield outcome

    def close(self) -> None:
        while self._before:
            self._before.pop()()


class _Stops:
    """Tells a person's Ctrl-C, or a signal that is treated like it, from a KeyboardInterrupt that a task raises by itself."""

    def __init__(self) -> None:
        self.heard = False
        self._handlers: dict[int, Callable[[int, FrameType | None], Any]] = {}
        if threading.current_thread() is threading.main_thread():  # no other hears signals
            found = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
            self._handlers = {number: handler for number, handler in found.items() if callable(handler)}
        for number in self._handlers:
            signal.signal(number, self._hear)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self.heard = True
        self._handlers[number](number, frame)

    def forget(self) -> None:
        """Put the handlers back."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
