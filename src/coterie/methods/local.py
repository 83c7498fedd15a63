"""Local training, also called SOLO: every client on its own, nothing exchanged. The floor that federation must beat."""

from __future__ import annotations

from typing import ClassVar

from coterie.method import Federation, Method, task
from coterie.protocols import Model
from coterie.record import EMPTY, Record
from coterie.settings import spec
from coterie.site import Site
from coterie.training.objectives import CrossEntropy

__all__ = ["Local"]


@spec
class Local(Method):
    """Each client trains its own model, of any architecture, and keeps it; no byte moves.

    >>> Local().protocols[0]
    'local_post'
    """

    name: ClassVar[str] = "local"
    evaluates: ClassVar[tuple[Model, ...]] = ("personal", "start")
    mixes_architectures: ClassVar[bool] = True

    def start(self, fed: Federation) -> Record:
        return EMPTY

    def round(self, state: Record, fed: Federation) -> Record:
        fed.ask("train")
        return state

    @task
    def train(self, site: Site, memory: Record, message: Record) -> tuple[Record, Record]:
        """Train on from where this client stopped last time."""
        start = memory.group("model") or site.initial()
        site.evaluate("start", start)
        fitted = site.fit(start, CrossEntropy(), optimiser=memory.group("optimiser"))
        site.evaluate("personal", fitted.params)
        return EMPTY, Record(model=fitted.params, optimiser=fitted.optimiser)
