"""Numbers of a comparison: curves over seeds, scores, targets, clients, bytes and seconds. The page and the figures both draw these."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import mean, stdev
from typing import Any

from coterie.results.report.gather import Arm, Comparison
from coterie.results.report.read import Amount, Run
from coterie.results.summary import RUNNING, crossing

__all__ = [
    "POINTS",
    "Axis",
    "Curve",
    "Spread",
    "Target",
    "axis_of",
    "curve_of",
    "final",
    "kinds_by_size",
    "kinds_of",
    "last_of",
    "metrics_of",
    "protocols_of",
    "seconds_of",
    "sends",
    "spread",
    "targets_of",
    "thin",
]

POINTS = 300
"""Points of a drawn curve; longer ones are thinned, which the page says."""
SETUP = "setup"


@dataclass(frozen=True)
class Spread:
    """A value for each seed, and what they come to."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Over seeds."""
        return mean(self.values)

    @property
    def deviation(self) -> float | None:
        """Standard deviation over seeds; none of one seed."""
        return stdev(self.values) if len(self.values) > 1 else None


@dataclass(frozen=True)
class Axis:
    """The rounds of an arm that are drawn, and what had been spent by then, on average over seeds."""

    rounds: list[int]
    bytes: list[float]
    seconds: list[float]


@dataclass(frozen=True)
class Curve:
    """A metric at the rounds of an axis; None where nothing was measured."""

    mean: list[float | None]
    low: list[float | None]
    high: list[float | None]
    seeds: list[list[float | None]]


@dataclass(frozen=True)
class Target:
    """What reaching an accuracy took, for each seed; None where it was not reached."""

    rounds: list[int | None]
    bytes: list[float | None]
    seconds: list[float | None]

    def of(self, what: str) -> list[float]:
        """The seeds that reached it."""
        return [value for value in getattr(self, what) if value is not None]


def spread(values: Iterable[float]) -> Spread | None:
    """Values over seeds, if there are any.

    >>> found = spread([0.25, 0.75])
    >>> found.mean, round(found.deviation, 3), spread([])
    (0.5, 0.354, None)
    """
    kept = tuple(values)
    return Spread(kept) if kept else None


def thin(rounds: Sequence[int], points: int = POINTS) -> list[int]:
    """At most so many rounds, evenly spaced, with the first and the last.

    >>> thin(range(1, 11), 4), thin([3, 5])
    ([1, 4, 7, 10], [3, 5])
    """
    if len(rounds) <= points:
        return list(rounds)
    step = (len(rounds) - 1) / (points - 1)
    return [rounds[round(index * step)] for index in range(points)]


def protocols_of(comparison: Comparison) -> list[str]:
    """Protocols with a curve: first what most arms were measured under, then in the experiment's order."""
    arms: dict[str, set[int]] = defaultdict(set)
    for index, arm in enumerate(comparison.arms):
        asked = [p for run in arm.runs for p in run.experiment.get("evaluation", {}).get("protocols", ())]
        for protocol in [*asked, *(p for run in arm.runs for p in run.curves)]:
            if any(protocol in run.curves for run in arm.runs):
                arms[protocol].add(index)
    return sorted(arms, key=lambda protocol: -len(arms[protocol]))


def metrics_of(comparison: Comparison, protocol: str) -> list[str]:
    """Metrics under a protocol, accuracy first."""
    found = dict.fromkeys(metric for run in comparison.runs for metric in run.curves.get(protocol, ()))
    return sorted(found, key=lambda metric: metric != "accuracy")


def axis_of(arm: Arm) -> Axis:
    """Where the arm's curves have points."""
    measured = {r for run in arm.runs for curves in run.curves.values() for curve in curves.values() for r in curve}
    rounds = thin(sorted(measured))
    return Axis(rounds, _mean_at(arm.runs, _bytes_by, rounds), _mean_at(arm.runs, _seconds_by, rounds))


def curve_of(arm: Arm, protocol: str, metric: str, axis: Axis) -> Curve | None:
    """Mean, lowest and highest over seeds, and each seed."""
    found = [run.curves[protocol][metric] for run in arm.runs if metric in run.curves.get(protocol, ())]
    if not found:
        return None
    seeds = [[_finite(curve.get(r)) for r in axis.rounds] for curve in found]
    columns = [[value for value in column if value is not None] for column in zip(*seeds, strict=True)]

    def over(what: Callable[[list[float]], float]) -> list[float | None]:
        return [what(column) if column else None for column in columns]

    return Curve(over(mean), over(min), over(max), seeds)


def final(run: Run, protocol: str, metric: str) -> float:
    """The last value of a curve."""
    curve = run.curves[protocol][metric]
    return curve[max(curve)]


def last_of(arm: Arm, protocol: str, metric: str) -> Spread | None:
    """The last value of every seed that was measured so."""
    return spread(final(run, protocol, metric) for run in arm.runs if run.curves.get(protocol, {}).get(metric))


def targets_of(arm: Arm, protocol: str, target: float, running: bool) -> Target | None:
    """Rounds, bytes and seconds to the first round that reaches an accuracy, or in which the mean of the last five does."""
    found = [run for run in arm.runs if "accuracy" in run.curves.get(protocol, ())]
    if not found:
        return None
    rounds = [crossing(dict(sorted(run.curves[protocol]["accuracy"].items())), target, RUNNING if running else 1) for run in found]
    return Target(
        rounds,
        [None if r is None else _bytes_by(run, [r])[0] for run, r in zip(found, rounds, strict=True)],
        [None if r is None else _seconds_by(run, [r])[0] for run, r in zip(found, rounds, strict=True)],
    )


def sends(arm: Arm) -> bool:
    """Whether anything crosses the network in its rounds: not where one trains alone, or where all data lies in one place."""
    return any(run.total("up") or run.total("down") for run in arm.runs)


def kinds_of(arm: Arm) -> dict[tuple[str, str], Amount]:
    """Kind and direction -> bytes, a run on average; what moved before the first round has a kind of its own."""
    total: dict[tuple[str, str], Amount] = defaultdict(Amount)
    for run in arm.runs:
        for number, sent in run.traffic.items():
            for (direction, kind), amount in sent.items():
                here = total[SETUP if number == 0 else kind, direction]
                here.payload += amount.payload
                here.framed += amount.framed
    return {key: Amount(round(a.payload / len(arm.runs)), round(a.framed / len(arm.runs))) for key, a in sorted(total.items())}


def kinds_by_size(found: Sequence[Mapping[tuple[str, str], Amount]]) -> list[str]:
    """Kinds that weigh anything, the heaviest first, and the setup last.

    >>> kinds_by_size([{("setup", "up"): Amount(9), ("labels", "up"): Amount(1), ("weights", "up"): Amount(5), ("none", "up"): Amount(0)}])
    ['weights', 'labels', 'setup']
    """
    size: dict[str, int] = defaultdict(int)
    for each in found:
        for (kind, _), sent in each.items():
            size[kind] += sent.payload
    return sorted((kind for kind in size if size[kind]), key=lambda kind: (kind == SETUP, -size[kind]))


def seconds_of(arm: Arm) -> dict[str, float]:
    """Where the seconds of a run went, on average: what was measured, and the rest, which is the server's."""
    runs = len(arm.runs)
    total = sum(sum(run.seconds.values()) for run in arm.runs) / runs
    places: dict[str, float] = defaultdict(float)
    for run in arm.runs:
        for place, seconds in run.where.items():
            places[place] += seconds / runs
    work = places.pop("work", 0.0)
    rest = max(0.0, total - sum(places.values()))
    return {**dict(sorted(places.items())), "server": rest, "total": total, "work": work}


def _mean_at(runs: Sequence[Run], by: Callable[[Run, Sequence[int]], list[float]], rounds: Sequence[int]) -> list[float]:
    columns = zip(*(by(run, rounds) for run in runs), strict=True)
    return [mean(column) for column in columns]


def _bytes_by(run: Run, rounds: Sequence[int]) -> list[float]:
    """Payload bytes up and down until the end of each round, the setup included."""
    return _sums({r: sum(a.payload for a in sent.values()) for r, sent in run.traffic.items()}, rounds)


def _seconds_by(run: Run, rounds: Sequence[int]) -> list[float]:
    return _sums(run.seconds, rounds)


def _sums(by_round: Mapping[int, float], rounds: Sequence[int]) -> list[float]:
    """Running sums at some rounds, which rise."""
    order = sorted(by_round)
    sums = [0.0, *accumulate(by_round[r] for r in order)]
    at, found = 0, []
    for round in rounds:
        while at < len(order) and order[at] <= round:
            at += 1
        found.append(sums[at])
    return found


def _finite(value: Any) -> float | None:
    return value if value is not None and math.isfinite(value) else None
