"""Local training, also called SOLO: every client on its own, nothing exchanged. The floor that federation must beat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass

from coterie.method import Federation, Method, task
from coterie.record import EMPTY, Record
from coterie.settings import STRICT
from coterie.site import Site
from coterie.training.objectives import CrossEntropy

__all__ = ["Local", "pretrained"]


def pretrained(site: Site, epochs: int) -> Record:
    """A client's fresh network after so many epochs on its own data."""
    alone = site.training.replace(epochs=epochs, state="fresh")
    return site.fit(site.fresh(), CrossEntropy(), training=alone, purpose="pretrain").params


@dataclass(frozen=True, config=STRICT)
class Local(Method):
    """Each client trains its own model, of any architecture, and keeps it; no byte moves.

    >>> Local().offers[0]
    'local_post'
    """

    name: ClassVar[str] = "local"
    offers: ClassVar[tuple[str, ...]] = ("local_post", "local_val", "intra", "inter")
    mixes_architectures: ClassVar[bool] = True

    pretraining: Annotated[int, Field(ge=0)] = 0
    """Epochs before the first round, for a fair comparison with methods that have them too."""

    def start(self, fed: Federation) -> Record:
        if self.pretraining:
            for _ in fed.ask("pretrain", clients=fed.clients):
                pass
        return EMPTY

    @task
    def pretrain(self, site: Site, memory: Record, message: Record) -> tuple[Record, Record]:
        """Train alone; the optimiser's state ends here."""
        return EMPTY, Record(model=pretrained(site, self.pretraining))

    def round(self, state: Record, fed: Federation) -> Record:
        for _ in fed.ask("train"):
            pass
        return state

    @task
    def train(self, site: Site, memory: Record, message: Record) -> tuple[Record, Record]:
        """Train on from where this client stopped last time."""
        fitted = site.fit(memory.group("model") or site.fresh(), CrossEntropy(), carried=memory)
        return EMPTY, Record(model=fitted.params) | fitted.carried

    def models(self, state: Record, memory: Record, site: Site) -> Mapping[str, Record]:
        return dict.fromkeys(self.offers, memory.group("model")) if "model" in memory else {}
