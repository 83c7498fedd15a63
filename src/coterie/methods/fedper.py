"""FedPer: Arivazhagan, Aggarwal, Singh & Choudhary, "Federated Learning with Personalization Layers", arXiv 1912.00818.

Base layers are averaged as in FedAvg, personal layers (the last ones) stay with their client; both are trained together. Personal
layers start at random, each client's its own. There is no global model: what travels are the base layers.
"""

from __future__ import annotations

from typing import ClassVar

from coterie.errors import UserError, nearest
from coterie.method import Federation, fine_tune, task
from coterie.methods.fedavg import FedAvg
from coterie.models import staged
from coterie.population import Population
from coterie.protocols import Model
from coterie.record import EMPTY, Record
from coterie.settings import spec
from coterie.site import SERVER, ModelCache, Site
from coterie.training.loop import Fitted

__all__ = ["FedPer"]


@spec
class FedPer(FedAvg):
    """Base layers are averaged, personal layers stay; without any personal layer it is FedAvg to the bit.

    >>> FedPer().personal
    ('head',)
    """

    name: ClassVar[str] = "fedper"
    evaluates: ClassVar[tuple[Model, ...]] = ("personal", "start")

    personal: tuple[str, ...] = ("head",)
    """The stages of the network that stay with the client."""

    def check(self, population: Population) -> None:
        levels = staged(population.site(SERVER, 0, ModelCache()).model()).levels
        for stage in self.personal:
            if stage not in levels:
                raise UserError(f"method.personal = '{stage}': no such stage of the network, {nearest(stage, levels)}")

    def start(self, fed: Federation) -> Record:
        return Record(model=fed.server.fresh().drop(*self.personal))

    def received(self, site: Site, memory: Record, message: Record) -> Record:
        return message.group("model") | (memory.group("personal") or site.fresh().select(*self.personal))

    def returned(self, site: Site, memory: Record, message: Record, fitted: Fitted) -> tuple[Record, Record]:
        reply = Record(model=fitted.params.drop(*self.personal), examples=len(site.train))
        return reply, Record(personal=fitted.params.select(*self.personal), optimiser=fitted.optimiser)

    def kept_model(self, state: Record, memory: Record, site: Site) -> Record:
        return self.received(site, memory, state) if memory else EMPTY

    @task
    def adapt(self, site: Site, memory: Record, message: Record) -> tuple[Record, Record]:
        """A new client trains from the base layers and personal layers of its own."""
        return fine_tune(site, message, self.received(site, EMPTY, message)), memory
