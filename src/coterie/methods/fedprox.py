"""FedProx: Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020.

FedAvg whose clients also pay for the distance to the model they received: mu/2 * ||w - w_G||^2 over parameters.
"""

from __future__ import annotations

from typing import ClassVar

from coterie.methods.fedavg import FedAvg
from coterie.methods.regularisers import ProximalRegulariser, Regularisers
from coterie.settings import NotNegative, spec

__all__ = ["FedProx"]


@spec
class FedProx(FedAvg):
    """FedAvg with a proximal term; mu = 0 is FedAvg to the bit.

    >>> FedProx(mu=0.1).objective()
    Sum(terms=(CrossEntropy(), Weighted(weight=0.1, term=Proximal())))
    >>> FedProx(mu=0.0).objective()
    Sum(terms=(CrossEntropy(),))
    """

    name: ClassVar[str] = "fedprox"
    mu: NotNegative = 0.01
    """How strongly a client is held near the model that it received."""

    def added(self) -> Regularisers:
        return (ProximalRegulariser(self.mu), *self.regularisers)
