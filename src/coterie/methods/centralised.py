"""Centralised training: all data in one place. The ceiling that federation is measured against.

A round is `training.epochs` epochs over everybody's data at the server; the data's way there is on the ledger as setup.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic.dataclasses import dataclass

from coterie.errors import UserError
from coterie.method import Federation, Method
from coterie.population import Population
from coterie.record import Record
from coterie.settings import STRICT
from coterie.site import SERVER, Site
from coterie.training.objectives import CrossEntropy

__all__ = ["Centralised"]

LABEL_BYTES = 8


@dataclass(frozen=True, config=STRICT)
class Centralised(Method):
    """One model trained on the union of all clients' training data.

    >>> Centralised().offers
    ('global', 'local_val', 'intra', 'inter')
    """

    name: ClassVar[str] = "centralised"
    offers: ClassVar[tuple[str, ...]] = ("global", "local_val", "intra", "inter")

    def check(self, population: Population) -> None:
        if population.partition.permutation is not None:
            raise UserError(
                "method 'centralised' cannot pool data in which every client has its own order of pixels (partition 'permuted')"
            )

    def start(self, fed: Federation) -> Record:
        channels, height, width = fed.population.pool.shape
        sizes = fed.population.partition.train.sizes
        for client in fed.clients:
            fed.charge(client, "up", "data", int(sizes[client]) * (channels * height * width + LABEL_BYTES))
        return Record(model=fed.server.fresh())

    def round(self, state: Record, fed: Federation) -> Record:
        carried = state.group("optimiser")
        fitted = fed.server.fit(
            state.group("model"), CrossEntropy(), data=fed.population.pooled(fed.clients), carried=Record(optimiser=carried)
        )
        return Record(model=fitted.params) | fitted.carried

    def models(self, state: Record, memory: Record, site: Site) -> Mapping[str, Record]:
        model = state.group("model")
        return {"global": model} if site.id == SERVER else dict.fromkeys(("local_val", "intra", "inter"), model)

    def welcome(self, state: Record) -> Record:
        return Record(model=state.group("model"))
