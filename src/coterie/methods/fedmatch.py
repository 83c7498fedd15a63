"""FedMatch in FCCL's setting: after Jeong, Yoon, Yang & Hwang, "Federated Semi-Supervised Learning with Inter-Client Consistency &
Disjoint Learning", ICLR 2021.

The original shares weights of one architecture and learns from few labels; FCCL compares with it over fully labelled private data,
unlabelled public data and different architectures, and releases no code. This is the adaptation of `docs/methods.md`, and
its name says `public`: parameters are sums sigma + psi; sigma learns from the private labels, psi from the public images, by
agreement with the predictions (not the weights) of the two peers that predict most alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coterie.data.examples import crop_and_flip
from coterie.method import Federation, task
from coterie.methods.public import PublicMethod, completing, public_images, subject
from coterie.models.additive import Additive, AdditiveNet, added, apart
from coterie.record import Record
from coterie.settings import NotNegative, Share, Whole, spec
from coterie.site import Site
from coterie.training.objectives import CrossEntropy, Objective, Step
from coterie.training.optimisers import Adam
from coterie.training.settings import Training

__all__ = ["FedMatchPublic", "Unlabelled", "voted"]


@spec
class Unlabelled(Objective):
    """What psi minimises: agreement with helpers and with the common pseudo-label over the images of which the network now is sure, and
    two penalties, the second of which pulls psi to sigma."""

    helpers: int
    threshold: float
    inter: float
    agreement: float
    l1: float
    l2: float
    strong: bool = False
    """Whether the pseudo-label is learned on augmented images; what helpers say is about the plain ones. `fit` seeds the draws."""

    def __call__(self, step: Step) -> Tensor:
        net = step.model
        assert isinstance(net, AdditiveNet)
        loss = step.logits.new_zeros(())
        for sigma, psi in zip(net.sigma.parameters(), net.psi, strict=True):
            loss = loss + self.l1 * psi.abs().sum() + self.l2 * (sigma - psi).square().sum()
        own = step.logits.detach().softmax(1)
        sure = own.amax(1) >= self.threshold
        return loss + self._consistent(step, own, sure) if bool(sure.any()) else loss

    def _consistent(self, step: Step, own: Tensor, sure: Tensor) -> Tensor:
        """The mean over the sure images: of KL(helper || own), and of the pseudo-label's cross-entropy."""
        beliefs = [step.frozen[f"helper {index}"] for index in range(self.helpers)]
        shaken = step.model(crop_and_flip(step.x, torch.default_generator)) if self.strong else step.logits
        loss = self.agreement * F.cross_entropy(shaken[sure], voted(own, *beliefs)[sure])
        log_p = step.logits[sure].log_softmax(1)
        for belief in beliefs:
            loss = loss + self.inter / self.helpers * F.kl_div(log_p, belief[sure], reduction="batchmean")
        return loss


def voted(*beliefs: Tensor) -> Tensor:
    """The class that most voices are for, image by image; of equals the lowest.

    >>> voted(torch.tensor([[0.9, 0.1]]), torch.tensor([[0.2, 0.8]]), torch.tensor([[0.4, 0.6]])).item()
    1
    """
    return torch.stack([F.one_hot(belief.argmax(1), belief.shape[1]) for belief in beliefs]).sum(0).argmax(1)


@spec
class FedMatchPublic(PublicMethod):
    """Disjoint learning from labels and from peers' predictions on public data: FedMatch as FCCL could have compared with it.

    >>> FedMatchPublic(helpers=3, inter=0.02).unlabelled(helpers=2)  # a round in which only two others answered
    Unlabelled(helpers=2, threshold=0.75, inter=0.02, agreement=0.01, l1=0.0001, l2=10.0, strong=True)
    """

    name: ClassVar[str] = "fedmatch-public"

    public: Annotated[Training, completing(augment="crop-flip")] = Training(
        epochs=1, batch=512, optimiser=Adam(lr=1e-3), augment="crop-flip"
    )
    """How psi is trained; here augmentation is each client's own, and only of what the pseudo-label is learned on."""
    helpers: Whole = 2
    threshold: Share = 0.75
    """How sure of its own prediction a network must be, at that step, to learn from a public image."""
    supervised: NotNegative = 10.0
    inter: NotNegative = 1e-2
    agreement: NotNegative = 1e-2
    l1: NotNegative = 1e-4
    l2: NotNegative = 10.0
    share: NotNegative = 0.2
    """psi starts as this share of sigma; both are scaled so that their sum is the pretrained network."""

    def first_memory(self, site: Site) -> Record:
        return Record(model=apart(site.initial(), _names(site), self.share))

    def handed(self, server: Site) -> Record:
        """sigma and psi, each averaged by itself, as in the original."""
        return apart(server.fresh(), _names(server), self.share)

    def present(self, site: Site, memory: Record) -> Record:
        return added(memory.group("model"), _names(site))

    def exchange(self, fed: Federation) -> Mapping[int, Record]:
        about, rows = subject(fed), self.alignment or len(fed.server.public)
        like = Record(logits=torch.zeros(rows, fed.server.train.classes, dtype=fed.server.dtype))
        replies = fed.ask("predict", about, like=like, keep_guests=True)
        said = {reply.client: reply.record.tensors["logits"] for reply in replies}
        asking = said | {guest: record.tensors["logits"] for guest, record in replies.guests.items()}
        beliefs = {client: logits.softmax(1) for client, logits in said.items()}
        return {client: about | Record(logits=self._nearest(client, own, said, beliefs)) for client, own in asking.items()}

    def _nearest(self, client: int, own: Tensor, said: Mapping[int, Tensor], beliefs: Mapping[int, Tensor]) -> dict[str, Tensor]:
        """What the others say that predict most alike; of equals the one with the lower number."""
        distances = sorted((float((own - said[other]).double().norm()), other) for other in said if other != client)
        return {str(index): beliefs[other] for index, (_, other) in enumerate(distances[: self.helpers])}

    @task
    def predict(self, site: Site, memory: Record, message: Record) -> tuple[Record, Record]:
        """What this client says of the public images, as they are."""
        memory = memory or self.first_memory(site)
        return Record(logits=site.predict(self.present(site, memory), public_images(self, site, message, together=False))), memory

    def digested(self, site: Site, memory: Record, message: Record) -> Record:
        """psi after the public data."""
        said = message.group("logits").tensors
        return site.fit(
            memory.group("model"),
            self.unlabelled(len(said)),
            training=self.public.replace(augment="none"),
            data=public_images(self, site, message, together=False),
            frozen={f"helper {index}": belief for index, belief in said.items()},
            model=_net(site),
            trainable=lambda name: name.startswith("psi."),
            purpose="public",
        ).params

    def unlabelled(self, helpers: int) -> Objective:
        """What psi minimises with so many helpers."""
        return Unlabelled(helpers, self.threshold, self.inter, self.agreement, self.l1, self.l2, self.public.augment != "none")

    def revisited(self, site: Site, memory: Record, start: Record) -> Record:
        """sigma after the private data."""
        fitted = site.fit(
            start,
            self.supervised * CrossEntropy(),
            optimiser=memory.group("optimiser"),
            model=_net(site),
            trainable=lambda name: name.startswith("sigma."),
        )
        kept = Record(model=fitted.params, optimiser=fitted.optimiser)
        site.evaluate("personal", self.present(site, kept))
        site.log("losses", torch.tensor((fitted.loss,), dtype=torch.float64))
        return kept


def _net(site: Site) -> nn.Module:
    return site.model("additive", Additive(site.architecture))


def _names(site: Site) -> list[str]:
    return [name for name, _ in site.model().named_parameters()]
