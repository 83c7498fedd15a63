"""Which clients are trained as one computation: decided by the cohort and the experiment, never by where they run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from coterie.engines.engine import Job

__all__ = ["in_stacks"]


def in_stacks(jobs: Sequence[Job], size: int | None, architecture_of: Callable[[int], int]) -> list[Job]:
    """The same jobs, each with those it goes with: of one message, one network and as many samples, `size` at a time, in their order.

    >>> jobs = [Job(client, "train", 1, "message", cost=60 + client // 3) for client in range(5)]
    >>> [[client for client, _ in job.stack] for job in in_stacks(jobs, 2, lambda client: 0)]
    [[0, 1], [0, 1], [], [3, 4], [3, 4]]
    """
    if size is None:
        return list(jobs)
    alike: dict[Any, list[Job]] = defaultdict(list)
    for job in jobs:
        alike[job.message, job.visit, job.keep, job.cost, job.limit, architecture_of(job.client)].append(job)
    stacks: dict[int, tuple[tuple[int, str | None], ...]] = {}
    for group in alike.values():
        for start in range(0, len(group), size):
            some = tuple((each.client, each.memory) for each in group[start : start + size])
            stacks |= dict.fromkeys((client for client, _ in some), some if len(some) > 1 else ())
    return [replace(job, stack=stacks[job.client]) for job in jobs]
