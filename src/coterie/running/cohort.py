"""Who takes part in a round, and at whom protocols about clients are measured: seeded draws that no engine influences."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

import torch

from coterie.seeds import generator

__all__ = ["draw_cohort", "evaluation_set"]


def draw_cohort(seed: int, round: int, clients: int, size: int) -> tuple[int, ...]:
    """The clients of a round, in a seeded order that no engine influences.

    >>> draw_cohort(0, 1, clients=5, size=5) == tuple(range(5)), len(set(draw_cohort(0, 1, clients=100, size=10)))
    (True, 10)
    """
    if size == clients:
        return tuple(range(clients))
    return tuple(torch.randperm(clients, generator=generator(seed, round, "cohort"))[:size].tolist())


@lru_cache(2)  # every round asks, and a choice among a million takes longer than some rounds
def evaluation_set(seed: int, clients: int, wanted: int | tuple[int, ...] | Literal["all"]) -> tuple[int, ...]:
    """The clients that protocols about clients are measured at: those named, all, or a fixed, seeded choice of so many.

    >>> evaluation_set(0, 100, 10) == evaluation_set(0, 100, 10), evaluation_set(0, 3, "all"), evaluation_set(0, 9, (4, 2))
    (True, (0, 1, 2), (2, 4))
    """
    if isinstance(wanted, tuple):
        return tuple(sorted(set(wanted)))
    if wanted == "all" or wanted >= clients:
        return tuple(range(clients))
    return tuple(sorted(torch.randperm(clients, generator=generator(seed, "evaluated"))[:wanted].tolist()))
