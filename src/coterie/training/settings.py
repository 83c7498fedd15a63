"""How a participant trains: epochs, batch, optimiser, schedule, as settings of an experiment."""

from __future__ import annotations

from dataclasses import field
from dataclasses import replace as replace_fields
from typing import Annotated, Any, Literal

from pydantic import Field

from coterie.settings import Count, Positive, Whole, field_of, spec
from coterie.training.optimisers import OPTIMISERS, SCHEDULES, Constant, Optimiser, Schedule, Sgd, StatePolicy

__all__ = ["Training"]


@spec
class Training:
    """How a participant trains in one round.

    >>> Training(epochs=5, batch="all").optimiser.lr
    0.1
    """

    epochs: Whole = 1
    """Passes over its data that a client makes in a round."""
    steps: Whole | None = None
    """So many steps in place of epochs."""
    batch: Count | Literal["all"] = 32
    """Samples in a step; `all` for one step an epoch."""
    optimiser: Annotated[Optimiser, field_of(OPTIMISERS, "training.optimiser", Sgd)] = field(default_factory=Sgd)
    """How gradients become steps: a name or a table, see `coterie list optimisers`."""
    schedule: Annotated[Schedule, field_of(SCHEDULES, "training.schedule", Constant)] = field(default_factory=Constant)
    """How the learning rate changes over rounds, see `coterie list schedules`."""
    state: StatePolicy = "fresh"
    """Whether the optimiser's state (momentum, moments) starts anew every round or is kept by the client."""
    clip: Positive | None = None
    """Gradient norms above this are scaled down to it; networks trained side by side are clipped each by itself."""
    augment: Literal["none", "crop-flip"] = "none"
    """Whether images are shifted and mirrored at random."""
    stack: Annotated[int, Field(ge=2)] | None = None
    """So many clients of one network and as many samples are trained as one computation, where that can be (`coterie.training.stacking`):
    faster for small clients, the same on every engine, and not bit for bit what they are one by one, which is why it is said here."""

    def replace(self, **changes: Any) -> Training:
        """These settings with some of them changed."""
        return replace_fields(self, **changes)
