"""SCAFFOLD: Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020 (Algorithm 1, option II).

Server and clients keep control variates, c and c_i, that start at 0. A client corrects every gradient by c - c_i, and afterwards

    c_i+ = c_i - c + (x - y_i) / (K lr),    x <- x + server_lr * mean(y_i - x),    c <- c + |S| / N * mean(c_i+ - c_i)

with K its steps, S the cohort and N all clients. The paper's local SGD is plain: with momentum or weight decay the corrected gradient
stands where the gradient stood. Model and variate travel both ways, twice FedAvg's bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from coterie.method import Federation, aggregate
from coterie.methods.fedavg import FedAvg
from coterie.record import Record
from coterie.settings import Positive, spec
from coterie.site import Site
from coterie.training.loop import Fitted
from coterie.training.objectives import Objective, Slope, Step

__all__ = ["Correction", "Scaffold"]


@dataclass(frozen=True, eq=False)
class Correction(Objective):
    """<w, c - c_i>, whose gradient is the correction c - c_i (Algorithm 1, line 10)."""

    direction: Mapping[str, Tensor]
    """By name of the parameter."""

    @property
    def shallow(self) -> bool:
        return True

    def placed(self, put: Callable[[Tensor], Tensor]) -> Objective:
        return Correction({name: put(value) for name, value in self.direction.items()})

    def __call__(self, step: Step) -> Tensor:
        along = self.direction
        return torch.stack([(p * along[name]).sum() for name, p in step.model.named_parameters()]).sum()

    def back(self, step: Step, weight: Tensor, parameters: Mapping[str, Tensor]) -> Slope:
        along = self.direction
        value = torch.stack([(p.detach() * along[name]).sum() for name, p in parameters.items()]).sum()
        return Slope(value, None, [weight * along[name] for name in parameters])


@spec
class Scaffold(FedAvg):
    """FedAvg with control variates against client drift.

    >>> Scaffold().weighting, Scaffold().server_lr
    ('uniform', 1.0)
    """

    name: ClassVar[str] = "scaffold"

    weighting: Literal["uniform"] = "uniform"
    """All clients count alike, as in the paper."""
    server_lr: Positive = 1.0
    """How far the server goes along the mean of the clients' changes."""

    def start(self, fed: Federation) -> Record:
        model, net = fed.server.fresh(), fed.server.model()
        return Record(model=model, variate={name: torch.zeros_like(model.tensors[name]) for name, _ in net.named_parameters()})

    def round(self, state: Record, fed: Federation) -> Record:
        replies = fed.ask("train", state, like=state)
        around = state | Record(variate=state.group("variate").map(torch.zeros_like))  # of variates the change is sent
        mean = aggregate(self.aggregation, fed, replies, around, "model", "variate", weighting=self.weighting)
        share = replies.count / len(fed.clients)
        variate = state.group("variate").combine(mean.group("variate"), lambda c, change: c + share * change)
        return Record(model=self._moved(state, mean.group("model")), variate=variate)

    def _moved(self, state: Record, mean: Record) -> Record:
        """The server's step, of parameters only: BatchNorm's statistics are the clients' mean, because a variance is not extrapolated."""
        if self.server_lr == 1:
            return mean
        before = state.group("variate").combine(state.group("model"), lambda _, x: x)
        return mean | before.combine(mean, lambda x, y: x + self.server_lr * (y - x))

    def trained(self, site: Site, memory: Record, message: Record, start: Record) -> Fitted:
        c = message.group("variate")
        correction = Correction(c.combine(self._own(memory, c), lambda ours, own: ours - own).tensors)
        objective = self.objective() + correction
        return site.fit(start, objective, optimiser=memory.group("optimiser"), frozen=self.frozen(site, start))

    def returned(self, site: Site, memory: Record, message: Record, fitted: Fitted) -> tuple[Record, Record]:
        c = message.group("variate")
        before = after = self._own(memory, c)
        if fitted.steps:
            moved = fitted.steps * fitted.lr
            drift = c.combine(message.group("model"), lambda _, x: x).combine(fitted.params, lambda x, y: (x - y) / moved)
            after = before.combine(c, lambda own, ours: own - ours).combine(drift, torch.add)
        change = after.combine(before, torch.sub)
        reply = Record(model=fitted.params, variate=change, examples=len(site.train))
        return reply, Record(variate=after, optimiser=fitted.optimiser)

    def _own(self, memory: Record, c: Record) -> Record:
        """This client's variate, which starts at 0."""
        return memory.group("variate") or c.map(torch.zeros_like)
