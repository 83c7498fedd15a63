"""FedMD: Li & Wang, "FedMD: Heterogenous Federated Learning via Model Distillation", 2019 (arXiv 1910.03581).

Clients of any architecture upload class scores (pre-softmax) for public images; everyone digests towards their mean and then
revisits its own data. The digest is the mean absolute error, as in the authors' code; FCCL describes it as a squared one. In
FCCL's setting there is no training on labelled public data beforehand, and the public set is fixed (`alignment` draws a part of
it every round, as the paper does).
"""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor
from torch.nn import functional as F

from coterie.methods.public import PublicMethod
from coterie.settings import spec
from coterie.training.objectives import Objective, Step

__all__ = ["Digest", "FedMD"]


@spec
class Digest(Objective):
    """The distance of the logits from the consensus, averaged over all entries."""

    loss: Literal["l1", "mse"]

    def __call__(self, step: Step) -> Tensor:
        distance = F.l1_loss if self.loss == "l1" else F.mse_loss
        return distance(step.logits, step.frozen["consensus"])


@spec
class FedMD(PublicMethod):
    """Heterogeneous federated learning by model distillation.

    >>> FedMD().digest_loss
    'l1'
    """

    name: ClassVar[str] = "fedmd"

    digest_loss: Literal["l1", "mse"] = "l1"
    """The distance of a client's logits from the consensus: mean absolute, or mean squared."""

    def towards(self) -> Objective:
        return Digest(self.digest_loss)
