"""Which clients are trained as one computation, and answer as one where nothing but the mean of their replies is wanted.

That is decided by the cohort, the experiment and the method, never by where they run.

The last stacks of a cohort are smaller: replies come when a stack is trained, so that those of large ones would come all at once, at the
end, when nobody has anything else to do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from coterie.engines.engine import Job
from coterie.replies import Averaging

__all__ = ["in_stacks", "together"]

FEW = 12
"""Clients of the smallest stacks, where `training.stack` is no less: fewer cost more than they save."""
LEFT = 3
"""A stack has at most this part of those who are left: a third."""


def in_stacks(
    jobs: Sequence[Job],
    size: int | None,
    architecture_of: Callable[[int], int],
    mean_of: Callable[[Sequence[int]], Averaging | None] = lambda clients: None,
) -> list[Job]:
    """The same jobs, each with those it goes with: of one message, one network and as many samples, at most `size`, in their order.

    `mean_of` says of some clients what is wanted of their replies, where nothing else is.

    >>> jobs = [Job(client, "train", 1, "message", cost=60 + client // 3) for client in range(5)]
    >>> [[client for client, _ in job.stack] for job in in_stacks(jobs, 2, lambda client: 0)]
    [[0, 1], [0, 1], [], [3, 4], [3, 4]]
    """
    if size is None:
        return list(jobs)
    alike: dict[Any, list[Job]] = defaultdict(list)
    for job in jobs:
        alike[job.message, job.visit, job.keep, job.cost, job.limit, architecture_of(job.client)].append(job)
    found: dict[int, dict[str, Any]] = {}
    for group in alike.values():
        for some in (group[place] for place in _places(len(group), size)):
            stack = tuple((each.client, each.memory) for each in some) if len(some) > 1 else ()
            mean = mean_of([each.client for each in some]) if stack else None
            found |= {each.client: {"stack": stack, "mean": mean} for each in some}
    return [replace(job, **found[job.client]) for job in jobs]


def together(jobs: Sequence[Job]) -> list[list[Job]]:
    """Jobs by what is looked at as one, in the order of the first of each: a client by itself, or a stack of which a mean is wanted.

    >>> jobs = in_stacks([Job(client, "train", 1, "", cost=client % 2) for client in range(5)], 5, lambda client: 0)
    >>> [[job.client for job in some] for some in together(jobs)]
    [[0], [1], [2], [3], [4]]
    >>> jobs = [replace(job, mean=Averaging(("model",))) for job in jobs]
    >>> [[job.client for job in some] for some in together(jobs)]
    [[0, 2, 4], [1, 3]]
    """
    found: dict[int, list[Job]] = defaultdict(list)
    for job in jobs:
        found[job.client if job.mean is None else job.stack[0][0]].append(job)
    return list(found.values())


def _places(clients: int, size: int) -> Iterator[slice]:
    """Where each stack of so many clients begins and ends.

    >>> [place.stop - place.start for place in _places(100, 25)]
    [25, 25, 17, 12, 12, 9]
    """
    start = 0
    while start < clients:
        stop = min(start + min(size, max(FEW, -(-(clients - start) // LEFT))), clients)
        yield slice(start, stop)
        start = stop
