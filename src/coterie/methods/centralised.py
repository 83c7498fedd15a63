"""Centralised training: all data in one place. The ceiling that federation is measured against.

A round is `training.epochs` epochs over everybody's data at the server, whose Site holds them; their way there is on the ledger as setup.
"""

from __future__ import annotations

from typing import ClassVar

from coterie.errors import UserError
from coterie.method import Federation, Method
from coterie.population import Population
from coterie.record import Record
from coterie.settings import spec
from coterie.training.objectives import CrossEntropy

__all__ = ["Centralised"]


@spec
class Centralised(Method):
    """One model trained on the union of all clients' training data.

    >>> Centralised().protocols[0], Centralised.gathers_data
    ('global', True)
    """

    name: ClassVar[str] = "centralised"
    gathers_data: ClassVar[bool] = True

    def check(self, population: Population) -> None:
        if population.partition.permutation is not None:
            raise UserError(
                "method 'centralised' cannot pool data in which every client has its own order of pixels (partition 'permuted')"
            )

    def start(self, fed: Federation) -> Record:
        return Record(model=fed.server.fresh())

    def round(self, state: Record, fed: Federation) -> Record:
        fitted = fed.server.fit(state.group("model"), CrossEntropy(), optimiser=state.group("optimiser"))
        return Record(model=fitted.params, optimiser=fitted.optimiser)

    def for_new_client(self, state: Record, architecture: int) -> Record:
        return Record(model=state.group("model"))
