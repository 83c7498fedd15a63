"""FedProx: Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020.

FedAvg whose clients also pay for the distance to the model they received: mu/2 * ||w - w_G||^2 over parameters.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass

from coterie.methods.fedavg import FedAvg
from coterie.methods.regularisers import ProximalTerm, Terms
from coterie.settings import STRICT

__all__ = ["FedProx"]


@dataclass(frozen=True, config=STRICT)
class FedProx(FedAvg):
    """FedAvg with a proximal term; mu = 0 is FedAvg to the bit.

    >>> FedProx(mu=0.1).objective()
    Sum(terms=(CrossEntropy(), Weighted(weight=0.1, term=Proximal())))
    >>> FedProx(mu=0.0).objective()
    Sum(terms=(CrossEntropy(),))
    """

    name: ClassVar[str] = "fedprox"
    mu: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.01

    def added(self) -> Terms:
        return (ProximalTerm(self.mu), *self.terms)
