"""FedAvg: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.

Every round a cohort trains from the server's model on its own data; the server takes the mean, weighted by samples.
FedSGD is this with one epoch of one batch that holds everything (`epochs = 1, batch = "all"`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic.dataclasses import dataclass

from coterie.fit import CrossEntropy, Objective
from coterie.method import Federation, Method, Weighting, task, weighted_mean
from coterie.named import STRICT
from coterie.record import Record
from coterie.site import SERVER, Site

__all__ = ["FedAvg"]


@dataclass(frozen=True, config=STRICT)
class FedAvg(Method):
    """Federated averaging.

    >>> FedAvg(weighting="uniform")
    FedAvg(weighting='uniform')
    """

    name: ClassVar[str] = "fedavg"
    offers: ClassVar[tuple[str, ...]] = ("global", "local_pre", "local_post", "local_val", "intra", "inter")
    observes: ClassVar[tuple[str, ...]] = ("local_pre", "local_post")

    weighting: Weighting = "samples"

    def start(self, fed: Federation) -> Record:
        return Record(model=fed.server.fresh())

    def round(self, state: Record, fed: Federation) -> Record:
        replies = fed.ask("train", state, like=state)
        return Record(model=weighted_mean(replies, "model", self.weighting))

    @task
    def train(self, site: Site, memory: Record, message: Record) -> tuple[Record, Record]:
        """Local training from the server's model; the client keeps nothing but, if asked to, its optimiser's state."""
        start = message.group("model")
        site.observe("local_pre", start)
        fitted = site.fit(start, self.objective(), carried=memory)
        site.observe("local_post", fitted.params)
        return Record(model=fitted.params, examples=len(site.train)), fitted.carried

    def objective(self) -> Objective:
        """What clients minimise."""
        return CrossEntropy()

    def models(self, state: Record, memory: Record, site: Site) -> Mapping[str, Record]:
        model = state.group("model")
        return {"global": model} if site.id == SERVER else dict.fromkeys(("local_val", "intra", "inter"), model)

    def welcome(self, state: Record) -> Record:
        return state
