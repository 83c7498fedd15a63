"""The statistics of results, each defined once: over seeds, over clients, and paired between two arms.

A difference is taken seed by seed (same data, same partition, same first weights) and comes with its 95% confidence interval
(Student's t, each comparison by itself). Where the interval includes 0, no difference was shown; with fewer than three seeds there
is no interval that says anything. Quartiles are those that numpy calls linear, for the page and for the figures alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import mean, median, pstdev, quantiles, stdev
from typing import Literal, TypeAlias

__all__ = [
    "ACCURACIES",
    "RUNNING",
    "Box",
    "Difference",
    "Estimate",
    "Fairness",
    "Verdict",
    "best_of",
    "box",
    "crossing",
    "estimate",
    "fairness",
    "interval",
    "paired",
    "running_sums",
]

CONFIDENCE = 0.95
ENOUGH = 3
"""Seeds from which on there is an interval: with two, Student's t has one degree of freedom, and any difference fits in."""
ACCURACIES = ("last", "best", "swing", "new client accuracy")
"""What a cell of a study may measure that is a share of 1."""
RUNNING = 5
"""Evaluations in a running mean."""
TENTH = 10

Verdict: TypeAlias = Literal["higher", "lower", "no difference shown", "too few seeds", "one seed: no interval"]


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds and the standard deviation between them; None with one seed."""

    mean: float
    spread: float | None
    seeds: int


@dataclass(frozen=True)
class Difference:
    """What one arm has more than another, paired by seed; the ends of its interval are None where there is none.

    >>> Difference(0.02, 0.01, 0.03, 3).verdict, Difference(0.5, None, None, 2).verdict
    ('higher', 'too few seeds')
    """

    mean: float
    low: float | None
    high: float | None
    seeds: int

    @property
    def shown(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high

    @property
    def verdict(self) -> Verdict:
        """In words."""
        if self.low is None:
            return "one seed: no interval" if self.seeds == 1 else "too few seeds"
        if not self.shown:
            return "no difference shown"
        return "higher" if self.mean > 0 else "lower"


@dataclass(frozen=True)
class Box:
    """The five numbers of a box plot: its whiskers end at the lowest and the highest value."""

    lowest: float
    first: float
    median: float
    third: float
    highest: float


@dataclass(frozen=True)
class Fairness:
    """What a mean over clients hides."""

    clients: int
    worst: float
    worst_tenth: float
    """The mean of the worst tenth of clients, at least one."""
    spread: float
    """The standard deviation over clients; 0 for one."""


def estimate(values: Iterable[float]) -> Estimate:
    """Mean and spread over seeds.

    >>> estimate([1.0, 3.0])
    Estimate(mean=2.0, spread=1.4142135623730951, seeds=2)
    """
    kept = list(values)
    return Estimate(mean(kept), stdev(kept) if len(kept) > 1 else None, len(kept))


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The confidence interval of the mean of paired differences; None for fewer than three.

    >>> low, high = interval([0.01, 0.02, 0.03])
    >>> round(low, 4), round(high, 4), interval([0.4, 0.6])
    (-0.0048, 0.0448, None)
    """
    from scipy.special import stdtrit

    if len(values) < ENOUGH:
        return None
    half = float(stdtrit(len(values) - 1, (1 + CONFIDENCE) / 2)) * stdev(values) / math.sqrt(len(values))
    return mean(values) - half, mean(values) + half


def paired(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Difference | None:
    """The difference of two arms, each a value by seed; None where they share no seed.

    >>> paired({0: 0.75, 1: 0.5}, {0: 0.5, 7: 0.1})
    Difference(mean=0.25, low=None, high=None, seeds=1)
    """
    gaps = [value - theirs[seed] for seed, value in ours.items() if seed in theirs]
    if not gaps:
        return None
    low, high = interval(gaps) or (None, None)
    return Difference(mean(gaps), low, high, len(gaps))


def box(values: Sequence[float]) -> Box:
    """The five numbers, with numpy's linear quartiles.

    >>> box([1, 2, 3, 4, 10])
    Box(lowest=1, first=2.0, median=3, third=4.0, highest=10)
    """
    first, third = (values[0], values[0]) if len(values) == 1 else quantiles(values, n=4, method="inclusive")[::2]
    return Box(min(values), first, median(values), third, max(values))


def fairness(values: Sequence[float]) -> Fairness:
    """Worst client, worst tenth and spread of what clients have.

    >>> fairness([0.9, 0.5, 0.7])
    Fairness(clients=3, worst=0.5, worst_tenth=0.5, spread=0.16329931618554522)
    """
    order = sorted(values)
    return Fairness(len(order), order[0], mean(order[: max(1, len(order) // TENTH)]), pstdev(order))


def crossing(curve: Mapping[int, float], target: float, running: int = 1) -> int | None:
    """The first round in which the mean of the last `running` values reaches `target`; rounds rise.

    >>> crossing({1: 0.5, 2: 0.9, 3: 0.8}, 0.9), crossing({1: 0.5, 2: 0.9, 3: 0.8}, 0.85, running=2)
    (2, 3)
    """
    rounds, values = list(curve), list(curve.values())
    for end in range(running, len(values) + 1):
        if sum(values[end - running : end]) / running >= target:
            return rounds[end - 1]
    return None


def best_of(values: Iterable[float], metric: str) -> float:
    """The best value of a metric: the lowest loss, the highest of all else.

    >>> best_of([0.2, 0.7], "accuracy"), best_of([0.2, 0.7], "loss")
    (0.7, 0.2)
    """
    return min(values) if metric == "loss" else max(values)


def running_sums(by_round: Mapping[int, float], rounds: Sequence[int]) -> list[float]:
    """What had come together by the end of each of some rounds, which rise.

    >>> running_sums({0: 5, 1: 10, 3: 10}, [1, 2, 3])
    [15, 15, 25]
    """
    order = sorted(by_round)
    sums = [0, *accumulate(by_round[each] for each in order)]
    at, found = 0, []
    for each in rounds:
        while at < len(order) and order[at] <= each:
            at += 1
        found.append(sums[at])
    return found
