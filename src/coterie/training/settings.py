"""How a participant trains: epochs, batch, optimiser, schedule, as settings of an experiment."""

from __future__ import annotations

from dataclasses import field
from dataclasses import replace as replace_fields
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainSerializer
from pydantic.dataclasses import dataclass as settings

from coterie.settings import STRICT
from coterie.training.optimisers import OPTIMISERS, SCHEDULES, Constant, Optimiser, Schedule, Sgd, StatePolicy

__all__ = ["Training"]


@settings(frozen=True, config=STRICT)
class Training:
    """How a participant trains in one round.

    >>> Training(epochs=5, batch="all").optimiser.lr
    0.1
    """

    epochs: Annotated[int, Field(ge=0)] = 1
    batch: Annotated[int, Field(ge=1)] | Literal["all"] = 32
    optimiser: Annotated[
        Optimiser,
        BeforeValidator(lambda value: OPTIMISERS.resolve(value, "training.optimiser")),
        PlainSerializer(OPTIMISERS.dump),
    ] = field(default_factory=Sgd)
    schedule: Annotated[
        Schedule, BeforeValidator(lambda value: SCHEDULES.resolve(value, "training.schedule")), PlainSerializer(SCHEDULES.dump)
    ] = field(default_factory=Constant)
    state: StatePolicy = "fresh"
    """Whether the optimiser's state (momentum, moments) starts anew every round or is kept by the client."""
    clip: Annotated[float, Field(gt=0)] | None = None
    """Gradient norms above this are scaled down to it; two networks trained side by side are clipped each by itself."""
    augment: Literal["none", "crop-flip"] = "none"

    def replace(self, **changes: Any) -> Training:
        """These settings with some of them changed."""
        return replace_fields(self, **changes)
