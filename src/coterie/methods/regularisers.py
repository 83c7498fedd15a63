"""What an experiment can add to the clients' loss: `regularisers = [{ name = "proximal", mu = 0.01 }, { name = "mmd" }]`.

A regulariser is an objective, its weight, and the frozen networks it looks at. Methods of the FedAvg family take any number of them,
so MMD inside FedFusion inside FedProx is a matter of configuration.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, TypeAlias

from coterie.methods.mmd import L2Regulariser, MMDRegulariser, Regulariser
from coterie.settings import NotNegative, Registry, field_of, spec
from coterie.training.objectives import Objective, Proximal

__all__ = ["REGULARISERS", "ProximalRegulariser", "Regulariser", "Regularisers"]


@spec
class ProximalRegulariser(Regulariser):
    """FedProx's: mu/2 times the squared distance of the parameters to those received."""

    name: ClassVar[str] = "proximal"
    mu: NotNegative = 0.01
    """How strongly a client is held near the model that it received."""

    def objective(self) -> Objective:
        return self.mu * Proximal()


REGULARISERS = Registry("regulariser", Regulariser, [ProximalRegulariser, MMDRegulariser, L2Regulariser])
Regularisers: TypeAlias = tuple[Annotated[Regulariser, field_of(REGULARISERS, "method.regularisers")], ...]
"""The type of a method's `regularisers` field."""
