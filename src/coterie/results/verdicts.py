"""Verdicts: what paired runs show of a claim, corrected for how many claims are tested at once; and how many seeds that takes.

A claim says where an effect lies: above 0, below 0.8, within half a point of 0. The effect is taken seed by seed and has a confidence
interval. *Shown*: the interval lies where the claim says. *Shown contrary*: all of it lies elsewhere. *Not shown*: neither.

- Accuracies: the mean of paired differences, Student's t.
- Rounds to a target: the median of paired ratios, by order statistics (the interval that belongs to the sign test). A target that was not
  reached in R rounds is censored: all that counts of it is that it took more than R.

Comparisons of one family are corrected as Holm does (1979): the one that is decided most clearly has the widest interval, 1 - 0.05/m
for m comparisons, the next 1 - 0.05/(m - 1), and so on, until one is undecided; those that come after it share its level. So the
interval that is printed is the one that decides, and the chance of even one false *shown* in a family is at most 5%.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, mean, median, stdev
from typing import Literal, NamedTuple, TypeAlias

from coterie.results.statistics import ENOUGH

__all__ = [
    "Censored",
    "Differences",
    "Effect",
    "Finding",
    "Outcome",
    "Ratios",
    "Region",
    "decide",
    "seeds_for_difference",
    "seeds_for_ratio",
]

ALPHA = 0.05
"""The chance of one or more false findings in a family."""
POWER = 0.8
"""The chance that a study should have to see what is there."""
MOST_SEEDS = 1000

Outcome: TypeAlias = Literal["shown", "shown contrary", "not shown", "not run"]


class Region(NamedTuple):
    """Where an effect lies if a claim is true; its ends are not in it.

    >>> Region(0, math.inf).distance(0.5), Region(-1, 1).distance(0.75), Region(-1, 1).distance(3)
    (0.5, 0.25, 2)
    """

    low: float
    high: float

    def distance(self, value: float) -> float:
        """From a value to the nearest end."""
        return min(abs(value - end) for end in self)

    def outcome(self, low: float, high: float) -> Outcome:
        """What an interval shows of the claim."""
        if self.low < low and high < self.high:
            return "shown"
        return "shown contrary" if high < self.low or low > self.high else "not shown"


class Censored(NamedTuple):
    """A number of rounds; without one, only that it is more than `beyond`."""

    rounds: float | None
    beyond: float


@dataclass(frozen=True)
class Differences:
    """Paired differences, one a seed: their mean, with Student's t."""

    values: Sequence[float]

    @property
    def middle(self) -> float:
        """The mean."""
        return mean(self.values)

    def interval(self, confidence: float) -> tuple[float, float] | None:
        """Around the mean; None for fewer than three seeds.

        >>> low, high = Differences([0.01, 0.02, 0.03]).interval(0.95)
        >>> round(low, 4), round(high, 4)
        (-0.0048, 0.0448)
        """
        from scipy.special import stdtrit

        seeds = len(self.values)
        if seeds < ENOUGH:
            return None
        half = float(stdtrit(seeds - 1, (1 + confidence) / 2)) * stdev(self.values) / math.sqrt(seeds)
        return self.middle - half, self.middle + half

    def p_value(self, region: Region) -> float:
        """The least alpha at which the interval decides."""
        from scipy.special import stdtr

        seeds = len(self.values)
        if seeds < ENOUGH:
            return 1.0
        distance, error = region.distance(self.middle), stdev(self.values) / math.sqrt(seeds)
        if not distance:
            return 1.0
        return 2 * float(stdtr(seeds - 1, -distance / error)) if error else 0.0


@dataclass(frozen=True)
class Ratios:
    """Paired ratios of rounds, one a seed, each known or between bounds: their median, by order statistics.

    >>> ours, theirs = [Censored(10, 50)] * 6, [Censored(20, 50)] * 5 + [Censored(None, 50)]
    >>> Ratios.of(ours, theirs).interval(0.95)
    (0.0, 0.5)
    """

    lows: Sequence[float]
    highs: Sequence[float]

    @classmethod
    def of(cls, ours: Sequence[Censored], theirs: Sequence[Censored]) -> Ratios:
        """Of two arms' rounds, seed by seed; where neither got there, nothing is known."""
        bounds = [_ratio(*pair) for pair in zip(ours, theirs, strict=True)]
        return cls([low for low, _ in bounds], [high for _, high in bounds])

    @property
    def values(self) -> Sequence[float]:
        """The lower bounds: as many as seeds."""
        return self.lows

    @property
    def middle(self) -> float | None:
        """The median; None where censoring leaves it open."""
        low, high = median(self.lows), median(self.highs)
        return low if low == high else None

    def interval(self, confidence: float) -> tuple[float, float] | None:
        """Around the median; None where there are too few seeds for any."""
        within = [rank for rank in self._ranks() if self._level(rank) <= 1 - confidence + 1e-12]
        return self._between(within[-1]) if within else None

    def p_value(self, region: Region) -> float:
        """The least alpha at which the interval decides."""
        decided = [self._level(rank) for rank in self._ranks() if region.outcome(*self._between(rank)) != "not shown"]
        return min([*decided, 1.0])

    def _ranks(self) -> range:
        return range(1, (len(self.lows) + 1) // 2 + 1)

    def _level(self, rank: int) -> float:
        """The chance that the median lies outside of the values of a rank from below and from above."""
        seeds = len(self.lows)
        return min(1.0, 2.0 ** (1 - seeds) * sum(math.comb(seeds, each) for each in range(rank)))

    def _between(self, rank: int) -> tuple[float, float]:
        return sorted(self.lows)[rank - 1], sorted(self.highs)[-rank]


Effect: TypeAlias = Differences | Ratios


@dataclass(frozen=True)
class Finding:
    """What one comparison came to."""

    outcome: Outcome
    middle: float | None = None
    """The mean difference or the median ratio."""
    low: float | None = None
    high: float | None = None
    confidence: float | None = None
    """Of the interval, after the correction."""
    seeds: int = 0
    ratio: bool = False

    @property
    def could_have_seen(self) -> float | None:
        """The least difference, or the ratio nearest to 1, that so wide an interval would have shown; None where there is none.

        >>> Finding("not shown", 0.01, -0.01, 0.03, 0.95, 5).could_have_seen
        0.02
        """
        if self.low is None or self.high is None:
            return None
        if not self.ratio:
            return (self.high - self.low) / 2
        return math.sqrt(self.low / self.high) if self.low > 0 and math.isfinite(self.high) else None


def decide(tests: Sequence[tuple[Effect | None, Region]]) -> list[Finding]:
    """A finding for each comparison of one family; an effect that is None was not run.

    >>> clear, vague = Differences([0.05, 0.06, 0.055]), Differences([0.05, -0.06, 0.0])
    >>> [found.outcome for found in decide([(clear, Region(0, 1)), (vague, Region(0, 1)), (None, Region(0, 1))])]
    ['shown', 'not shown', 'not run']
    """
    ran = sorted((effect.p_value(region), at, effect, region) for at, (effect, region) in enumerate(tests) if effect is not None)
    found, stopped = {}, None
    for place, (p_value, at, effect, region) in enumerate(ran):
        level = stopped or ALPHA / (len(ran) - place)
        if p_value > level:
            stopped = level
        found[at] = _finding(effect, region, 1 - level)
    return [found.get(at, Finding("not run")) for at in range(len(tests))]


def _finding(effect: Effect, region: Region, confidence: float) -> Finding:
    bounds = effect.interval(confidence)
    outcome: Outcome = "not shown" if bounds is None else region.outcome(*bounds)
    low, high = bounds or (None, None)
    return Finding(outcome, effect.middle, low, high, confidence, len(effect.values), isinstance(effect, Ratios))


def _ratio(ours: Censored, theirs: Censored) -> tuple[float, float]:
    if ours.rounds is not None and theirs.rounds is not None:
        return ours.rounds / theirs.rounds, ours.rounds / theirs.rounds
    if ours.rounds is not None:
        return 0.0, ours.rounds / theirs.beyond
    return (0.0 if theirs.rounds is None else ours.beyond / theirs.rounds), math.inf


def seeds_for_difference(difference: float, spread: float, comparisons: int = 1, power: float = POWER) -> int:
    """How many seeds show a mean difference, where paired differences have a standard deviation, in so many comparisons.

    >>> seeds_for_difference(0.02, 0.01), seeds_for_difference(0.02, 0.01, comparisons=6)
    (5, 7)
    """
    from scipy.special import nctdtr, stdtrit

    for seeds in range(ENOUGH, MOST_SEEDS):
        critical = float(stdtrit(seeds - 1, 1 - ALPHA / comparisons / 2))
        if 1 - float(nctdtr(seeds - 1, abs(difference) / spread * math.sqrt(seeds), critical)) >= power:
            return seeds
    return MOST_SEEDS


def seeds_for_ratio(ratio: float, spread: float, comparisons: int = 1, power: float = POWER) -> int:
    """How many seeds show a median ratio, where the logarithms of paired ratios have a standard deviation, in so many comparisons.

    >>> seeds_for_ratio(0.8, 0.1), seeds_for_ratio(0.8, 0.1, comparisons=2)
    (6, 7)
    """
    share = NormalDist().cdf(abs(math.log(ratio)) / spread)
    for seeds in range(ENOUGH, MOST_SEEDS):
        against = _most_against(seeds, ALPHA / comparisons)
        if sum(math.comb(seeds, each) * (1 - share) ** each * share ** (seeds - each) for each in range(against + 1)) >= power:
            return seeds
    return MOST_SEEDS


def _most_against(seeds: int, alpha: float) -> int:
    """How many seeds may speak against an order before the sign test no longer shows it; -1 where none may be missing."""
    chance, against = 0.0, -1
    for each in range(seeds + 1):
        chance += 2 * math.comb(seeds, each) / 2**seeds
        if chance > alpha:
            break
        against = each
    return against
