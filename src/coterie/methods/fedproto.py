"""FedProto: Tan et al., "FedProto: Federated Prototype Learning across Heterogeneous Clients", AAAI 2022.

Models do not travel, class means of features do. A client's prototype of class j is the mean of f_i(x) over its samples of j after local
training; the server's is the mean of those over the clients that hold j, weighted by their samples. Clients minimise

    L = CE + lam * L_R,    L_R = sum_j |C_i^j - Cbar^j|^2

with C_i^j the mean over the samples of the batch (`distance = "classes"`), or, as in the authors' code, the mean squared error of every
sample's features to the prototype of its class (`distance = "samples"`, the default, where lam = 1 is the authors' setting). The printed
equation 6 divides the weighted mean once more by the number of clients, which no code does; neither do we. A class that no client of a
round holds keeps its last prototype. Prediction is by the nearest global prototype; before the first round's end, by the head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coterie.errors import UserError
from coterie.method import Federation, Method, task
from coterie.models import staged
from coterie.population import Population
from coterie.protocols import Model
from coterie.record import Record
from coterie.settings import NotNegative, spec
from coterie.site import ModelCache, Site
from coterie.training.objectives import CrossEntropy, Objective, Step

__all__ = ["FedProto", "PrototypeDistance", "nearest_prototype"]

Distance = Literal["samples", "classes"]


@dataclass(frozen=True)
class PrototypeDistance(Objective):
    """L_R: how far features are from the global prototypes of their classes; classes without one add nothing."""

    prototypes: Tensor
    known: Tensor
    """By class, whether there is a prototype."""
    distance: Distance

    def placed(self, put: Callable[[Tensor], Tensor]) -> Objective:
        return PrototypeDistance(put(self.prototypes), put(self.known), self.distance)

    def __call__(self, step: Step) -> Tensor:
        f, y = step.features, step.y
        if self.distance == "samples":
            here = self.known[y]
            return (here[:, None] * (f - self.prototypes[y]).square()).sum() / f.numel()
        members = F.one_hot(y, len(self.known)).to(f.dtype)
        means = members.T @ f / members.sum(0).clamp(min=1)[:, None]
        here = self.known & (members.sum(0) > 0)
        return (here[:, None] * (means - self.prototypes).square()).sum()


def nearest_prototype(prototypes: Tensor, known: Tensor) -> Callable[[nn.Module, Tensor], Tensor]:
    """How a network answers by prototypes: minus the distance of its features to each; classes without a prototype never win.

    >>> from coterie.models import MLP
    >>> net = MLP(hidden=(3,)).build((1, 2, 2), 2)
    >>> answer = nearest_prototype(torch.tensor([[9.0, 9.0, 9.0], [0.0, 0.0, 0.0]]), torch.tensor([True, True]))
    >>> answer(net, torch.zeros(1, 1, 2, 2)).argmax().item()
    1
    """

    def answer(net: nn.Module, x: Tensor) -> Tensor:
        distances = torch.cdist(staged(net).features(x), prototypes)
        return torch.where(known, -distances, -distances.amax(1, keepdim=True) - 1)

    return answer


@spec
class FedProto(Method):
    """Class means of features travel, models do not; lam = 0 trains every client alone.

    >>> FedProto().protocols[0]
    'local_post'
    """

    name: ClassVar[str] = "fedproto"
    evaluates: ClassVar[tuple[Model, ...]] = ("personal",)
    mixes_architectures: ClassVar[bool] = True

    lam: NotNegative = 1.0
    """How strongly features are pulled towards the prototypes of their classes."""
    distance: Distance = "samples"
    """Of what distances are taken: of every sample's features, or of the means of a batch's classes."""

    def check(self, population: Population) -> None:
        cache, some = ModelCache(), {population.architecture_of(client): client for client in range(population.clients)}
        widths = {_width(population.site(client, 0, cache)) for client in some.values()}
        if len(widths) > 1:
            raise UserError(f"method 'fedproto' needs models whose features are equally wide, these have {sorted(widths)}")

    def start(self, fed: Federation) -> Record:
        classes = fed.server.train.classes
        return Record(
            prototypes=torch.zeros(classes, _width(fed.server), dtype=fed.server.dtype), counts=torch.zeros(classes, dtype=torch.int64)
        )

    def round(self, state: Record, fed: Federation) -> Record:
        before, sums, held = state.tensors["prototypes"], torch.zeros((), dtype=torch.float64), state.tensors["counts"] * 0
        for reply in fed.ask("train", state, like=state, check=_miscounted).needing("examples"):
            counts = reply.record.tensors["counts"]
            sums, held = sums + counts[:, None] * reply.record.tensors["prototypes"].double(), held + counts
        fresh = (sums / held.clamp(min=1)[:, None]).to(before.dtype)
        return Record(
            prototypes=torch.where((held > 0)[:, None], fresh, before), counts=torch.where(held > 0, held, state.tensors["counts"])
        )

    @task
    def train(self, site: Site, memory: Record, message: Record) -> tuple[Record, Record]:
        """Local training near the global prototypes; the client's own go back, with how many samples each is of."""
        shared, known = message.tensors["prototypes"], message.tensors["counts"] > 0
        objective = CrossEntropy() + (self.lam if known.any() else 0.0) * PrototypeDistance(shared, known, self.distance)
        fitted = site.fit(memory.group("model") or site.initial(), objective, optimiser=memory.group("optimiser"))
        if known.any():
            site.evaluate("personal", fitted.params, output=nearest_prototype(site.put(shared), site.put(known)))
        else:
            site.evaluate("personal", fitted.params)
        members = F.one_hot(site.train.labels, site.train.classes).to(site.dtype)
        counts = members.sum(0)
        own = members.T @ site.features(fitted.params, site.train) / counts.clamp(min=1)[:, None]
        reply = Record(prototypes=own, counts=counts.long(), examples=len(site.train))
        return reply, Record(model=fitted.params, optimiser=fitted.optimiser)


def _miscounted(reply: Record) -> str | None:
    """Why its counts cannot be: their sum is the client's examples, which the server knows how to bound."""
    counts = reply.tensors["counts"]
    right = bool((counts >= 0).all()) and sum(counts.tolist()) == reply["examples"]  # a sum of tensors wraps around
    return None if right else "counts are not those of its examples"


def _width(site: Site) -> int:
    """How many features the head of a site's network sees."""
    with torch.no_grad():
        return staged(site.model().eval()).features(site.blank()).shape[1]
