"""FCCL: Huang, Ye & Du, "Learn from Others and Be Yourself in Heterogeneous Federated Learning", CVPR 2022.

Learn from others: on unlabelled public images, the cross-correlation M between a client's logits and the federation's mean logits
(Pearson over the batch) is driven to 1 on the diagonal and to -1 off it,

    L_col = sum_u (1 - M_uu)^2 + lam * sum_{u != v} (M_uv + 1)^2

Be yourself: on private data, cross-entropy and two distillation terms, from the client's model at the end of the previous round and
from its pretrained model, which stays for ever,

    L_loc = CE + KL(previous || student) + KL(pretrained || student)

This is the paper: all public logits are exchanged once per round (`coterie.methods.fccl_lockstep` is the authors' code). Pairwise -1
is impossible for more than two classes, so the loss has a floor; `off_diagonal = 0` is Barlow Twins' target.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from torch import Tensor

from coterie.method import Federation
from coterie.methods.public import PublicMethod, digest, public_images, revisit
from coterie.record import EMPTY, Record
from coterie.settings import NotNegative, spec
from coterie.site import Site
from coterie.training.objectives import CrossEntropy, Distillation, Objective, Step

__all__ = ["FCCL", "CrossCorrelation", "correlation"]

LOOKED_AT = 512
"""Images from which a correlation matrix is computed for people to look at."""


def correlation(a: Tensor, b: Tensor) -> Tensor:
    """Pearson's correlation of every column of `a` with every column of `b`, over the rows; 0 where a column is constant.

    >>> z = torch.tensor([[1.0, 3.0], [2.0, 3.0], [4.0, 3.0]])
    >>> correlation(z, 2 * z + 5).round(decimals=4).abs().tolist()
    [[1.0, 0.0], [0.0, 0.0]]
    """
    return _standardised(a).T @ _standardised(b)


def _standardised(z: Tensor) -> Tensor:
    """Columns of mean 0 and length 1; those that vary by no more than rounding become 0 and pass no gradient."""
    centred = z - z.mean(0)
    rounding = 8 * torch.finfo(z.dtype).eps * z.detach().abs().amax(0) * len(z) ** 0.5
    constant = centred.detach().norm(dim=0) <= rounding
    length = torch.where(constant, 1.0, centred).norm(dim=0)  # never that of a constant column, whose gradient is not a number
    return torch.where(constant, 0.0, centred) / torch.where(constant, 1.0, length)


@spec
class CrossCorrelation(Objective):
    """The collaborative loss L_col."""

    lam: float = 0.0051
    target: float = -1.0

    def __call__(self, step: Step) -> Tensor:
        m = correlation(step.logits, step.frozen["consensus"])
        apart = ~torch.eye(len(m), dtype=torch.bool)
        return (1 - m.diagonal()).square().sum() + self.lam * (m[apart] - self.target).square().sum()


@spec
class FCCL(PublicMethod):
    """Federated cross-correlation and continual learning; without its three extra losses it is `local` after the same pretraining.

    >>> FCCL().lam, FCCL().off_diagonal
    (0.0051, -1)
    """

    name: ClassVar[str] = "fccl"

    lam: NotNegative = 0.0051
    """Weight of the entries off the diagonal."""
    off_diagonal: Literal[-1, 0] = -1
    """What correlations between different classes are driven to: the paper's -1, or Barlow Twins' 0."""
    correlation: NotNegative = 1.0
    """Weight of the whole collaborative loss; at 0 nothing is exchanged."""
    previous: NotNegative = 1.0
    """Weight of the distillation from the previous round's model."""
    pretrained: NotNegative = 1.0
    """Weight of the distillation from the pretrained model."""

    def exchange(self, fed: Federation) -> Record | Mapping[int, Record]:
        return super().exchange(fed) if self.correlation else EMPTY

    def first_memory(self, site: Site) -> Record:
        model = site.initial()
        return Record(model=model, pretrained=model)

    def digested(self, site: Site, memory: Record, message: Record) -> Record:
        """Learn from others: minimise L_col on the public images."""
        if "logits" not in message:
            return memory.group("model")
        digested = digest(self, site, memory.group("model"), message, self.towards())
        if site.logging:
            first = torch.arange(min(LOOKED_AT, len(message.tensors["logits"])))
            own = site.predict(digested, public_images(self, site, message).only(first))
            site.log("public correlation", correlation(own, message.tensors["logits"][first]).double())
        return digested

    def towards(self) -> Objective:
        return self.correlation * CrossCorrelation(self.lam, self.off_diagonal)

    def revisited(self, site: Site, memory: Record, start: Record) -> Record:
        """Be yourself: minimise L_loc on the private data, with the model of the last round and the pretrained one as teachers."""
        weights = {"previous": self.previous, "pretrained": self.pretrained}
        networks = {"previous": memory.group("previous") or memory.group("model"), "pretrained": memory.group("pretrained")}
        teachers = {name: site.frozen(networks[name], name) for name, weight in weights.items() if weight > 0}
        objective = CrossEntropy() + self.previous * Distillation("previous") + self.pretrained * Distillation("pretrained")
        fitted = revisit(site, memory, start, objective, teachers)
        if site.logging and len(site.test):
            own = site.predict(fitted.params, site.test.only(torch.arange(min(LOOKED_AT, len(site.test)))))
            site.log("private correlation", correlation(own, own).double())
        return Record(model=fitted.params, pretrained=memory.group("pretrained"), optimiser=fitted.optimiser)
