"""The debugging engine: every job in this process, one after the other; an exception arrives with its own traceback."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from coterie.engines.engine import Engine, Job, Outcome, Stage
from coterie.engines.worker import Memories, Performer

__all__ = ["Inline"]


class Inline(Engine):
    """Performs jobs where it stands.

    >>> Inline().close()
    """

    performer: type[Performer] = Performer

    def open(self, stage: Stage) -> None:
        memories = Memories(stage.folder, stage.memory_budget)
        self._performer = self.performer(stage.method, stage.population, memories)

    def deliver(self, jobs: Sequence[Job]) -> Iterator[Outcome]:
        return map(self._performer.perform, jobs)

    def close(self) -> None:
        pass
