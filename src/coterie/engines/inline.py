"""The debugging engine: every job in this process, one after the other; an exception arrives with its own traceback."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from coterie.engines.engine import Engine, Job, Outcome, RunContext
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

    def open(self, context: RunContext) -> None:
        memories = Memories(context.folder, context.memory_budget)
        self._performer = self.performer(context.method, context.population, memories)

    def deliver(self, jobs: Sequence[Job]) -> Iterator[Outcome]:
        return map(self._performer.perform, jobs)

    def close(self) -> None:
        pass
