"""FedAvg: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.

Every round a cohort trains from the server's model on its own data; the server takes the mean, weighted by samples.
FedSGD is this with one epoch of one batch that holds everything (`epochs = 1, batch = "all"`).

Methods that extend it change one of three things that a client does: what it makes of a message (`received`), how it trains
(`trained`), and what it sends back and keeps (`returned`).
"""

from __future__ import annotations

from typing import ClassVar

import torch

from coterie.aggregation import MEAN, Aggregator
from coterie.method import Federation, Method, aggregate, task
from coterie.methods.regularisers import Regularisers
from coterie.protocols import Model
from coterie.record import Record
from coterie.replies import Weighting
from coterie.settings import spec
from coterie.site import Site
from coterie.training.loop import Fitted, Frozen
from coterie.training.objectives import CrossEntropy, Objective

__all__ = ["FedAvg"]


@spec
class FedAvg(Method):
    """Federated averaging.

    >>> FedAvg(weighting="uniform")
    FedAvg(weighting='uniform', aggregation=WeightedMean(clip=None), regularisers=())
    """

    name: ClassVar[str] = "fedavg"
    evaluates: ClassVar[tuple[Model, ...]] = ("global", "start", "personal")

    weighting: Weighting = "samples"
    """How clients count in a mean: by their numbers of samples, or all alike."""
    aggregation: Aggregator = MEAN
    """What is taken over replies: their mean, or a rule that a few liars, or whoever sees the model, can do less with."""
    regularisers: Regularisers = ()
    """What clients add to their loss, beside what the method itself adds."""

    def start(self, fed: Federation) -> Record:
        return Record(model=fed.server.fresh())

    def round(self, state: Record, fed: Federation) -> Record:
        sent = Record(model=state.group("model"))
        return aggregate(self.aggregation, fed, fed.ask("train", sent, like=sent), sent, "model", weighting=self.weighting)

    @task
    def train(self, site: Site, memory: Record, message: Record) -> tuple[Record, Record]:
        """Local training from the server's model."""
        start = self.received(site, memory, message)
        site.evaluate("start", start)
        fitted = self.trained(site, memory, message, start)
        site.evaluate("personal", fitted.params)
        if fitted.parts:
            site.log("losses", torch.tensor(fitted.parts, dtype=torch.float64))
        return self.returned(site, memory, message, fitted)

    def received(self, site: Site, memory: Record, message: Record) -> Record:
        """The network that a client starts from."""
        return message.group("model")

    def trained(self, site: Site, memory: Record, message: Record, start: Record) -> Fitted:
        """Local training."""
        return site.fit(start, self.objective(), optimiser=memory.group("optimiser"), frozen=self.frozen(site, start))

    def returned(self, site: Site, memory: Record, message: Record, fitted: Fitted) -> tuple[Record, Record]:
        """What goes back, and what stays: nothing but, if it is to be kept, the optimiser's state."""
        return Record(model=fitted.params, examples=len(site.train)), Record(optimiser=fitted.optimiser)

    def added(self) -> Regularisers:
        """All that is added to the cross-entropy."""
        return self.regularisers

    def objective(self) -> Objective:
        """What clients minimise."""
        return sum((each.objective() for each in self.added()), start=CrossEntropy())

    def frozen(self, site: Site, start: Record) -> dict[str, Frozen]:
        """The frozen networks that the regularisers look at."""
        return {name: run for each in self.added() for name, run in each.frozen(site, start).items()}

    def for_new_client(self, state: Record, architecture: int) -> Record:
        return Record(model=state.group("model"))

    def unevaluated(self) -> Method | None:
        return self if type(self) is FedAvg else None  # a method that extends it does something else
