"""FedMMD and its L2 rival: Yao et al., "Two-Stream Federated Learning: Reduce the Communication Costs", VCIP 2018 (arXiv 1908.05891).

FedAvg whose clients train beside a second, frozen stream, the model they received, and pay for drifting away from it: by the
multi-kernel MMD between the two streams' outputs, or by their squared difference. Where paper and authors' code disagree we hold
everything but the term fixed across methods (same network, same dropout, a fixed split), take the mean of models and not their sum
(Algorithm 1, line 7), and leave the code's floor of 1e-4 under MMD^2 to a setting.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from coterie.methods.fedavg import FedAvg
from coterie.methods.regularisers import L2Term, MMDTerm, Output, Terms
from coterie.settings import STRICT

__all__ = ["FedMMD", "TwoStreamL2"]

Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass(frozen=True, config=STRICT)
class FedMMD(FedAvg):
    """FedAvg with a multi-kernel MMD constraint between the received and the trained model; lam = 0 is FedAvg to the bit.

    >>> FedMMD(lam=0.0).objective()
    Sum(terms=(CrossEntropy(),))
    """

    name: ClassVar[str] = "fedmmd"
    lam: Weight = 0.1
    on: Output = "logits"
    kernels: Literal["fixed", "mean"] = "fixed"
    floor: Weight = 0.0

    def added(self) -> Terms:
        return (MMDTerm(self.lam, self.on, self.kernels, self.floor), *self.terms)


@dataclass(frozen=True, config=STRICT)
class TwoStreamL2(FedAvg):
    """FedAvg with a squared-difference constraint between the received and the trained model's outputs.

    >>> TwoStreamL2().added()[0].reduction
    'sum'
    """

    name: ClassVar[str] = "two-stream-l2"
    lam: Weight = 0.01
    on: Output = "logits"
    reduction: Literal["sum", "mean"] = "sum"

    def added(self) -> Terms:
        return (L2Term(self.lam, self.on, self.reduction), *self.terms)
