"""Which clients are trained as one computation: decided by the cohort and the experiment, never by where they run.

The last stacks of a cohort are smaller: replies come when a stack is trained, so that those of large ones would come all at once, at the
end, when nobody has anything else to do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from coterie.engines.engine import Job

__all__ = ["in_stacks"]

FEW = 5
"""Clients of the smallest stacks, where `training.stack` is no less: fewer cost more than they save."""
LEFT = 3
"""A stack has at most this part of those who are left: a third."""


def in_stacks(jobs: Sequence[Job], size: int | None, architecture_of: Callable[[int], int]) -> list[Job]:
    """The same jobs, each with those it goes with: of one message, one network and as many samples, at most `size`, in their order.

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
        for place in _places(len(group), size):
            some = tuple((each.client, each.memory) for each in group[place])
            stacks |= dict.fromkeys((client for client, _ in some), some if len(some) > 1 else ())
    return [replace(job, stack=stacks[job.client]) for job in jobs]


def _places(clients: int, size: int) -> Iterator[slice]:
    """Where each stack of so many clients begins and ends.

    >>> [place.stop - place.start for place in _places(100, 25)]
    [25, 25, 17, 11, 8, 5, 5, 4]
    """
    start = 0
    while start < clients:
        stop = min(start + min(size, max(FEW, -(-(clients - start) // LEFT))), clients)
        yield slice(start, stop)
        start = stop
