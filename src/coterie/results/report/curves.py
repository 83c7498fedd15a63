"""Curves over seeds, thinned to what can be drawn. The page and the figures both draw these."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from coterie.results.comparison import ArmRuns
from coterie.results.gather import Report
from coterie.results.statistics import running_sums
from coterie.results.tally import Tally

__all__ = ["HIDDEN", "METRICS", "POINTS", "Axis", "Curve", "axis_of", "curve_of", "loss_of", "metrics_of", "thin"]

POINTS = 300
"""Points of a drawn curve; longer ones are thinned, which the page says."""
HIDDEN = ("worst", "worst_tenth", "spread")
"""What stands beside a mean accuracy over clients, and has curves of its own."""
METRICS = {
    "accuracy": "accuracy",
    "worst": "accuracy of the worst client",
    "worst_tenth": "accuracy of the worst tenth of clients",
    "spread": "standard deviation over clients",
    "top5": "top-5 accuracy",
    "loss": "loss",
}
"""Names as people read them, in the order in which they are offered."""


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


def thin(rounds: Sequence[int], points: int = POINTS) -> list[int]:
    """At most so many rounds, evenly spaced, with the first and the last.

    >>> thin(range(1, 11), 4), thin([3, 5])
    ([1, 4, 7, 10], [3, 5])
    """
    if len(rounds) <= points:
        return list(rounds)
    step = (len(rounds) - 1) / (points - 1)
    return [rounds[round(index * step)] for index in range(points)]


def metrics_of(report: Report, protocol: str) -> list[str]:
    """Metrics under a protocol, accuracy first."""
    found = {metric for tally in report.tallies for metric in tally.means.get(protocol, ())}
    found |= {metric for metric in HIDDEN if any(_values(tally, protocol, metric) for tally in report.tallies)}
    return sorted(found, key=lambda metric: (list(METRICS).index(metric) if metric in METRICS else len(METRICS), metric))


def axis_of(arm: ArmRuns) -> Axis:
    """Where the arm's curves have points."""
    tallies = [run.tally for run in arm.runs]
    rounds = thin(sorted({r for tally in tallies for each in tally.means.values() for means in each.values() for r in means}))
    sent, seconds = [tally.bytes_by(rounds) for tally in tallies], [running_sums(tally.seconds, rounds) for tally in tallies]
    return Axis(rounds, _mean_at(sent), _mean_at(seconds))


def curve_of(arm: ArmRuns, protocol: str, metric: str, axis: Axis) -> Curve | None:
    """Mean, lowest and highest over seeds, and each seed."""
    return _over([_values(run.tally, protocol, metric) for run in arm.runs], axis.rounds)


def loss_of(arm: ArmRuns) -> tuple[list[int], Curve] | None:
    """The loss of the training in each round: at clients, or at the server where only that trains."""
    found = [run.tally.losses() or run.tally.losses("server") for run in arm.runs]
    rounds = thin(sorted({round for losses in found for round in losses}))
    curve = _over(found, rounds)
    return None if curve is None else (rounds, curve)


def _values(tally: Tally, protocol: str, metric: str) -> dict[int, float]:
    if metric not in HIDDEN:
        return tally.curve(protocol, metric)
    means = tally.means.get(protocol, {}).get("accuracy", {})
    return {round: value for round, mean in sorted(means.items()) if (value := getattr(mean, metric)) is not None}


def _over(curves: Iterable[Mapping[int, float]], rounds: Sequence[int]) -> Curve | None:
    found = [curve for curve in curves if curve]
    if not found:
        return None
    seeds = [[_finite(curve.get(each)) for each in rounds] for curve in found]
    columns = [[value for value in column if value is not None] for column in zip(*seeds, strict=True)]

    def over(what: Callable[[list[float]], float]) -> list[float | None]:
        return [what(column) if column else None for column in columns]

    return Curve(over(mean), over(min), over(max), seeds)


def _mean_at(rows: Sequence[Sequence[float]]) -> list[float]:
    return [mean(column) for column in zip(*rows, strict=True)]


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
