"""FedAvg: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.

Every round a cohort trains from the server's model on its own data; the server takes the mean, weighted by samples.
FedSGD is this with one epoch of one batch that holds everything (`epochs = 1, batch = "all"`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic.dataclasses import dataclass

from coterie.method import Exhibit, Federation, Method, Weighting, task, weighted_mean
from coterie.methods.regularisers import Terms
from coterie.record import Record
from coterie.settings import STRICT
from coterie.site import SERVER, Site
from coterie.training.loop import Fitted, Frozen
from coterie.training.objectives import CrossEntropy, Objective

__all__ = ["FedAvg"]


@dataclass(frozen=True, config=STRICT)
class FedAvg(Method):
    """Federated averaging.

    >>> FedAvg(weighting="uniform")
    FedAvg(weighting='uniform', terms=())
    """

    name: ClassVar[str] = "fedavg"
    offers: ClassVar[tuple[str, ...]] = ("global", "local_pre", "local_post", "local_val", "intra", "inter")
    observes: ClassVar[tuple[str, ...]] = ("local_pre", "local_post")
    exhibits: ClassVar[Mapping[str, Exhibit]] = {
        "terms": Exhibit("Training loss by term: cross-entropy, then what is added", "lines", x="round", y="loss"),
    }

    weighting: Weighting = "samples"
    terms: Terms = ()
    """What clients add to their loss, beside what the method itself adds."""

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
        fitted = site.fit(start, self.objective(), carried=memory, frozen=self.frozen(site, start))
        site.observe("local_post", fitted.params)
        self.show_terms(site, fitted)
        return Record(model=fitted.params, examples=len(site.train)), fitted.carried

    def show_terms(self, site: Site, fitted: Fitted) -> None:
        """Put the terms of the last epoch's loss on show, where there are several."""
        if fitted.parts:
            site.show("terms", torch.tensor(fitted.parts, dtype=torch.float64))

    def added(self) -> Terms:
        """All terms beside the cross-entropy."""
        return self.terms

    def objective(self) -> Objective:
        """What clients minimise."""
        return sum((term.objective() for term in self.added()), start=CrossEntropy())

    def frozen(self, site: Site, start: Record) -> dict[str, Frozen]:
        """The frozen networks that the terms look at."""
        return {name: run for term in self.added() for name, run in term.frozen(site, start).items()}

    def models(self, state: Record, memory: Record, site: Site) -> Mapping[str, Record]:
        model = state.group("model")
        return {"global": model} if site.id == SERVER else dict.fromkeys(("local_val", "intra", "inter"), model)

    def welcome(self, state: Record) -> Record:
        return state
