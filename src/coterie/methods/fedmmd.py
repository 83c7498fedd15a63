"""FedMMD and its L2 rival: Yao, Huang & Sun, "Two-Stream Federated Learning: Reduce the Communication Costs", VCIP 2018; in full, with
FedFusion: Yao, Huang, Wu, Zhang & Sun, "Federated Learning with Additional Mechanisms on Clients to Reduce Communication Costs", arXiv
1908.05891, whose sections and algorithms we cite.

FedAvg whose clients train beside a second, frozen stream, the model they received, and pay for drifting away from it: by the
multi-kernel MMD between the two streams' outputs, or by their squared difference (both in `coterie.methods.mmd`). Where paper and
authors' code disagree we change nothing but the term across methods (same network, same dropout, a fixed split), take the mean of
models and not their sum (Algorithm 1, line 7), and leave the code's floor of 1e-4 under MMD^2 to a setting.
"""

from __future__ import annotations

from typing import ClassVar

from coterie.methods.fedavg import FedAvg
from coterie.methods.mmd import L2Regulariser, L2Settings, MMDRegulariser, MMDSettings
from coterie.methods.regularisers import Regularisers
from coterie.settings import spec

__all__ = ["FedMMD", "TwoStreamL2"]


@spec
class FedMMD(MMDSettings, FedAvg):
    """FedAvg with a multi-kernel MMD constraint between the received and the trained model; lam = 0 is FedAvg to the bit.

    >>> FedMMD(lam=0.0).objective()
    Sum(terms=(CrossEntropy(),))
    """

    name: ClassVar[str] = "fedmmd"

    def added(self) -> Regularisers:
        return (MMDRegulariser(self.lam, self.on, self.kernels, self.floor), *self.regularisers)


@spec
class TwoStreamL2(L2Settings, FedAvg):
    """FedAvg with a squared-difference constraint between the received and the trained model's outputs.

    >>> TwoStreamL2().added()[0].reduction
    'sum'
    """

    name: ClassVar[str] = "two-stream-l2"

    def added(self) -> Regularisers:
        return (L2Regulariser(self.lam, self.on, self.reduction), *self.regularisers)
