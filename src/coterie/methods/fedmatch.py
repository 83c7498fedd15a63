"""FedMatch in FCCL's setting: after Jeong, Yoon, Yang & Hwang, "Federated Semi-Supervised Learning with Inter-Client Consistency &
Disjoint Learning", ICLR 2021.

The original shares weights of one architecture and learns from few labels; FCCL compares with it over fully labelled private data,
unlabelled public data and different architectures, and releases no code. This is the adaptation of `methods.md`, section 9, and
its name says `public`: parameters are sums sigma + psi; sigma learns from the private labels, psi from the public images, by
agreement with the predictions (not the weights) of the two peers that predict most alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn import functional as F

from coterie.data.examples import crop_and_flip
from coterie.method import Reply, task
from coterie.methods.public import PublicMethod, completing
from coterie.models.additive import Additive, AdditiveNet, added, apart
from coterie.record import EMPTY, Record
from coterie.settings import STRICT
from coterie.site import Site
from coterie.training.objectives import CrossEntropy, Objective, Step
from coterie.training.optimisers import Adam
from coterie.training.settings import Training

__all__ = ["FedMatchPublic", "Unlabelled"]

NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass(frozen=True, config=STRICT)
class Unlabelled(Objective):
    """What psi minimises: agreement with helpers and with the common pseudo-label where the client is sure, and two penalties."""

    helpers: int
    inter: float
    agreement: float
    l1: float
    l2: float
    strong: bool = False
    """Whether the pseudo-label is learned on augmented images; what helpers say is about the plain ones. `fit` seeds the draws."""

    def __call__(self, step: Step) -> Tensor:
        net, sure = step.model, step.frozen["sure"]
        assert isinstance(net, AdditiveNet)
        log_p = step.logits.log_softmax(1)
        shaken = net(crop_and_flip(step.x, torch.default_generator)).log_softmax(1) if self.strong else log_p
        loss = self.agreement * (sure * F.nll_loss(shaken, step.frozen["labels"], reduction="none")).mean()
        for index in range(self.helpers):
            gaps = F.kl_div(log_p, step.frozen[f"helper {index}"], reduction="none").sum(1)
            loss = loss + self.inter / self.helpers * (sure * gaps).mean()
        for sigma, psi in zip(net.sigma.parameters(), net.psi, strict=True):
            loss = loss + self.l1 * psi.abs().sum() + self.l2 * (sigma - psi).square().sum()
        return loss


@dataclass(frozen=True, config=STRICT)
class FedMatchPublic(PublicMethod):
    """Disjoint learning from labels and from peers' predictions on public data: FedMatch as FCCL could have compared with it.

    >>> FedMatchPublic.name
    'fedmatch-public'
    """

    name: ClassVar[str] = "fedmatch-public"
    kinds: ClassVar[Mapping[str, str]] = {"helpers": "logits"}
    augments_together: ClassVar[bool] = False

    public: Annotated[Training, completing(augment="crop-flip")] = Training(
        epochs=1, batch=512, optimiser=Adam(lr=1e-3), augment="crop-flip"
    )
    """How psi is trained; here augmentation is each client's own, and only of what the pseudo-label is learned on."""
    helpers: Annotated[int, Field(ge=0)] = 2
    threshold: Annotated[float, Field(ge=0, le=1)] = 0.75
    """How sure of its own prediction a client must be to learn from a public image."""
    supervised: NotNegative = 10.0
    inter: NotNegative = 1e-2
    agreement: NotNegative = 1e-2
    l1: NotNegative = 1e-4
    l2: NotNegative = 10.0
    share: NotNegative = 0.2
    """psi starts as this share of sigma; both are scaled so that their sum is the pretrained network."""

    def first_memory(self, site: Site, params: Record) -> Record:
        return Record(parts=apart(params, _names(site), self.share))

    def present(self, site: Site, memory: Record) -> Record:
        return added(memory.group("parts"), _names(site))

    def agree(self, replies: Sequence[Reply]) -> Mapping[int, Record]:
        said = {reply.client: reply.record.tensors["logits"] for reply in replies}
        beliefs = {client: logits.softmax(1) for client, logits in said.items()}
        return {client: Record(helpers=self._nearest(client, said, beliefs)) for client in said}

    def _nearest(self, client: int, said: Mapping[int, Tensor], beliefs: Mapping[int, Tensor]) -> dict[str, Tensor]:
        """What the peers say that predict most alike; of equals the one with the lower number."""
        distances = sorted((float((said[client] - said[peer]).double().norm()), peer) for peer in said if peer != client)
        return {str(index): beliefs[peer] for index, (_, peer) in enumerate(distances[: self.helpers])}

    @task
    def learn(self, site: Site, memory: Record, message: Record) -> tuple[Record, Record]:
        """psi from the public data, then sigma from the private."""
        net = site.model("additive", Additive(site.architecture))
        parts = site.fit(
            memory.group("parts"),
            self.unlabelled(len(message.group("helpers"))),
            training=self.public.replace(augment="none"),
            data=self.images(site, message),
            frozen=self._tables(site, memory, message),
            model=net,
            trainable=lambda name: name.startswith("psi."),
            purpose="public",
        ).params
        fitted = site.fit(
            parts, self.supervised * CrossEntropy(), carried=memory, model=net, trainable=lambda name: name.startswith("sigma.")
        )
        site.show("terms", torch.tensor((fitted.loss,), dtype=torch.float64))
        return EMPTY, Record(parts=fitted.params) | fitted.carried

    def unlabelled(self, helpers: int) -> Objective:
        """What psi minimises with so many helpers."""
        return Unlabelled(helpers, self.inter, self.agreement, self.l1, self.l2, self.public.augment != "none")

    def _tables(self, site: Site, memory: Record, message: Record) -> dict[str, Tensor]:
        """By public image: what each helper says, the class most voices are for (of equals the lowest), whether the client is sure."""
        own = site.predict(self.present(site, memory), self.images(site, message)).softmax(1)
        helpers = list(message.group("helpers").tensors.values())
        votes = torch.stack([F.one_hot(belief.argmax(1), belief.shape[1]) for belief in (own, *helpers)]).sum(0)
        sure = (own.amax(1) >= self.threshold).to(own.dtype)
        return {"labels": votes.argmax(1), "sure": sure, **{f"helper {index}": belief for index, belief in enumerate(helpers)}}


def _names(site: Site) -> list[str]:
    return [name for name, _ in site.model().named_parameters()]
