"""Arms of a comparison side by side, in numbers: means and spreads over seeds, what targets took, paired differences.

A difference is taken seed by seed against a baseline (same data, same partition, same first weights), and comes with its 95%
confidence interval (Student's t, each comparison by itself). Where the interval includes 0, no difference was shown.
Nothing here needs torch.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

from coterie.errors import UserError, nearest

__all__ = ["Contrast", "Difference", "Estimate", "Reach", "Run", "Standing", "contrast", "estimate", "interval"]

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Run:
    """One run: what is compared, its seed, its summary."""

    label: str
    seed: int
    summary: Mapping[str, Any]


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds and the standard deviation between them; None with one seed."""

    mean: float
    spread: float | None
    seeds: int


@dataclass(frozen=True)
class Standing:
    """One arm: accuracy under every protocol, and what it cost."""

    label: str
    accuracy: Mapping[str, Estimate]
    up: float
    down: float
    setup: float
    seconds: Estimate


@dataclass(frozen=True)
class Reach:
    """What it took one arm to reach a target; nothing is said of arms of which a seed did not."""

    label: str
    protocol: str
    target: str
    reached: int
    """By how many seeds."""
    seeds: int
    rounds: Estimate | None = None
    bytes: Estimate | None = None
    """Setup included."""
    fewer_rounds: float | None = None
    """Rounds of the baseline for one of this."""
    fewer_bytes: float | None = None


@dataclass(frozen=True)
class Difference:
    """Accuracy of one arm less the baseline's, paired by seed."""

    label: str
    protocol: str
    mean: float
    low: float | None
    high: float | None
    seeds: int

    @property
    def shown(self) -> bool | None:
        """Whether the interval excludes 0; None where there is none."""
        return None if self.low is None or self.high is None else not self.low <= 0 <= self.high


@dataclass(frozen=True)
class Contrast:
    """A whole comparison."""

    baseline: str
    standings: Sequence[Standing]
    reaches: Sequence[Reach]
    differences: Sequence[Difference]


def estimate(values: Sequence[float]) -> Estimate:
    """Mean and spread.

    >>> estimate([1.0, 3.0])
    Estimate(mean=2.0, spread=1.4142135623730951, seeds=2)
    """
    return Estimate(mean(values), stdev(values) if len(values) > 1 else None, len(values))


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The confidence interval of the mean of paired differences; None for fewer than two.

    >>> low, high = interval([0.01, 0.02, 0.03])
    >>> round(low, 4), round(high, 4)
    (-0.0048, 0.0448)
    """
    from scipy.special import stdtrit

    if len(values) < 2:
        return None
    half = float(stdtrit(len(values) - 1, (1 + CONFIDENCE) / 2)) * stdev(values) / math.sqrt(len(values))
    return mean(values) - half, mean(values) + half


def contrast(runs: Iterable[Run], baseline: str | None = None) -> Contrast:
    """Everything about a comparison; the baseline is the first arm if none is named.

    >>> def run(label, seed, accuracy):
    ...     traffic = dict.fromkeys(("up", "down", "setup_up", "setup_down"), 0)
    ...     found = {"global": {"accuracy": {"last": accuracy}}}
    ...     return Run(label, seed, {"protocols": found, "targets": {}, "bytes": traffic, "seconds": 1.0})
    >>> noise = contrast([run("a", 0, 0.90), run("a", 1, 0.92), run("b", 0, 0.93), run("b", 1, 0.91)]).differences[0]
    >>> noise.label, round(noise.mean, 3), noise.shown
    ('b', 0.01, False)
    """
    arms: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        arms[run.label].append(run)
    base = baseline or next(iter(arms))
    if base not in arms:
        raise UserError(f"--baseline {base}: not one of what is compared, {nearest(base, arms)}")
    reference = {run.seed: run for run in arms[base]}
    reaches = [reach for label, members in arms.items() for reach in _reaches(label, members, arms[base])]
    differences = [each for label, members in arms.items() if label != base for each in _differences(label, members, reference)]
    return Contrast(base, [_standing(label, members) for label, members in arms.items()], reaches, differences)


def _protocols(runs: Iterable[Run]) -> list[str]:
    return list(dict.fromkeys(protocol for run in runs for protocol in run.summary["protocols"]))


def _accuracy(run: Run, protocol: str) -> float:
    found: float = run.summary["protocols"][protocol]["accuracy"]["last"]
    return found


def _setup(run: Run) -> int:
    traffic = run.summary["bytes"]
    return int(traffic["setup_up"] + traffic["setup_down"])


def _standing(label: str, runs: Sequence[Run]) -> Standing:
    accuracy = {protocol: estimate([_accuracy(run, protocol) for run in runs]) for protocol in _protocols(runs)}
    up, down = (mean(run.summary["bytes"][direction] for run in runs) for direction in ("up", "down"))
    return Standing(label, accuracy, up, down, mean(map(_setup, runs)), estimate([run.summary["seconds"] for run in runs]))


def _crossings(runs: Sequence[Run], protocol: str, target: str) -> list[tuple[int, int]]:
    """Rounds and bytes of every seed that reached a target."""
    found = ((run, run.summary["targets"].get(protocol, {}).get(target, {}).get("first_crossing")) for run in runs)
    return [(crossing["round"], crossing["bytes"] + _setup(run)) for run, crossing in found if crossing is not None]


def _reaches(label: str, runs: Sequence[Run], base: Sequence[Run]) -> Iterable[Reach]:
    for protocol, targets in runs[0].summary["targets"].items():
        for target in targets:
            ours, theirs = _crossings(runs, protocol, target), _crossings(base, protocol, target)
            if len(ours) < len(runs):
                yield Reach(label, protocol, target, len(ours), len(runs))
                continue
            rounds, sent = (estimate(column) for column in zip(*ours, strict=True))
            ratios: list[float | None] = [None, None]
            if len(theirs) == len(base):
                ratios = [_ratio(mean(b), own.mean) for b, own in zip(zip(*theirs, strict=True), (rounds, sent), strict=True)]
            yield Reach(label, protocol, target, len(ours), len(runs), rounds, sent, *ratios)


def _ratio(base: float, own: float) -> float | None:
    return base / own if base and own else None


def _differences(label: str, runs: Sequence[Run], base: Mapping[int, Run]) -> Iterable[Difference]:
    for protocol in _protocols(runs):
        pairs = [(run, base[run.seed]) for run in runs if run.seed in base and protocol in base[run.seed].summary["protocols"]]
        if pairs:
            gaps = [_accuracy(ours, protocol) - _accuracy(theirs, protocol) for ours, theirs in pairs]
            low, high = interval(gaps) or (None, None)
            yield Difference(label, protocol, mean(gaps), low, high, len(gaps))
