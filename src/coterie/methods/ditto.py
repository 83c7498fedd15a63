"""Ditto: Li, Hu, Beirami & Smith, "Ditto: Fair and Robust Federated Learning Through Personalization", ICML 2021 (Algorithm 1).

The global model w is FedAvg's. Beside it every client keeps a personal model v that is trained, in the rounds it takes part in, on

    F_k(v) + lam / 2 * ||v - w||^2,    w the global model as received

It never leaves the client; the bytes are FedAvg's. Without a personal model yet, v starts from the first w that a client receives.
"""

from __future__ import annotations

from typing import ClassVar

from coterie.method import task
from coterie.methods.fedavg import FedAvg
from coterie.protocols import Model
from coterie.record import Record
from coterie.settings import NotNegative, spec
from coterie.site import Site
from coterie.training.objectives import CrossEntropy, Proximal

__all__ = ["Ditto"]


@spec
class Ditto(FedAvg):
    """FedAvg, and beside it a personal model that is pulled towards the global one; lam = 0 trains the personal model alone.

    >>> Ditto().protocols[:2]
    ('local_post', 'local_val')
    """

    name: ClassVar[str] = "ditto"
    evaluates: ClassVar[tuple[Model, ...]] = ("personal", "global", "start")

    lam: NotNegative = 0.1
    """How strongly the personal model is pulled towards the global one."""

    @task
    def train(self, site: Site, memory: Record, message: Record) -> tuple[Record, Record]:
        """FedAvg's training for the global model, and the personal model's."""
        w = message.group("model")
        v = memory.group("personal") or w
        site.evaluate("start", v)
        reply, kept = self.returned(site, memory, message, self.trained(site, memory, message, w))
        objective = CrossEntropy() + self.lam * Proximal(w)
        personal = site.fit(v, objective, optimiser=memory.group("moments"), purpose="personal")
        site.evaluate("personal", personal.params)
        return reply, kept | Record(personal=personal.params, moments=personal.optimiser)
