"""Claims of a paper, judged on the cells of its table: a finding for every comparison, a verdict for every claim.

All comparisons that the paper's claims come to in one recipe are one family, and our own questions are another; each family is corrected
for its size (`coterie.results.verdicts`). A claim is shown if all its comparisons are, and shown contrary if one of them is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from coterie.results.statistics import ACCURACIES, Estimate, estimate
from coterie.results.tables import estimated
from coterie.results.verdicts import Censored, Differences, Effect, Finding, Outcome, Ratios, Region, decide
from coterie.studies.recipe import COUNTS, Claim, Comparison, Key, Measure, Side, key_of

__all__ = ["Judged", "Measured", "Verdict", "judge", "region_of", "worded"]

Verdict: TypeAlias = Outcome | Literal["not testable", "not judged"]


@dataclass(frozen=True)
class Measured:
    """A cell after it was run: a value for each seed; None where the target was not reached in `rounds`."""

    paper: float | None
    measure: Measure
    values: tuple[float | None, ...]
    rounds: int
    target: float | None = None

    @property
    def estimate(self) -> Estimate | None:
        """Mean and spread; None where a seed did not reach the target."""
        known = [value for value in self.values if value is not None]
        return estimate(known) if len(known) == len(self.values) else None

    @property
    def reached(self) -> int:
        """In how many seeds."""
        return sum(value is not None for value in self.values)

    def __str__(self) -> str:
        if self.measure in ACCURACIES:
            return estimated(self.estimate)
        if self.estimate is None:
            return f">{self.rounds} in {len(self.values) - self.reached} of {len(self.values)}"
        return f"{self.estimate.mean:.4g}" + ("" if self.estimate.spread is None else f" ± {self.estimate.spread:.2g}")


@dataclass(frozen=True)
class Judged:
    """A claim, its verdict, and what came of each of its comparisons."""

    claim: Claim
    verdict: Verdict
    findings: tuple[Finding, ...] = ()
    shares: bool = True
    """Whether differences are of accuracies, told in points."""

    @property
    def detail(self) -> str:
        """How many comparisons are shown, and what the least clear one could have seen."""
        if self.verdict in ("not testable", "not judged"):
            return self.claim.untestable or "smoke scale only shows that the recipe runs"
        counts = [(sum(each.outcome == outcome for each in self.findings), outcome) for outcome in ("shown", "shown contrary", "not run")]
        words = [f"{count} of {len(self.findings)} {outcome}" for count, outcome in counts if count]
        return "; ".join([*(words or ["none shown"]), *([f"could have seen {' and '.join(self._least())}"] if self._least() else [])])

    def _least(self) -> list[str]:
        """The coarsest of what could have been seen where nothing was shown: of ratios the farthest from 1, of differences the largest."""
        seen = [(each.ratio, each.could_have_seen) for each in self.findings if each.outcome == "not shown"]
        ratios, differences = ([size for kind, size in seen if kind is ratio and size is not None] for ratio in (True, False))
        largest = max(differences, default=0.0)
        points = f"{100 * largest:.1f} points" if largest >= 0.0005 else "less than 0.1 points"
        told = points if self.shares else f"{largest:.2g}"
        return [*([f"x{min(ratios):.2g}"] if ratios else []), *([told] if differences else [])]


def judge(claims: Sequence[Claim], cells: Mapping[Key, Measured]) -> list[Judged]:
    """A verdict for each of a recipe's claims.

    >>> values = {"a": (0.9, 0.91, 0.92), "b": (0.5, 0.52, 0.51)}
    >>> cells = {Key("t", row, "c"): Measured(None, "last", found, 9) for row, found in values.items()}
    >>> higher = Comparison(left="t / a / c", relation=">", right="t / b / c")
    >>> [found] = judge([Claim(text="a is better", comparisons=(higher,))], cells)
    >>> found.verdict, worded(found.findings[0], "last")
    ('shown', '+40.0 [+37.5, +42.5] points')
    """
    found: dict[int, Judged] = {}
    for family in (True, False):
        mine = [at for at, claim in enumerate(claims) if bool(claim.number) is family]
        tests = [_test(each, cells) for at in mine for each in claims[at].comparisons]
        findings = iter(decide(tests))
        for at in mine:
            own = tuple(next(findings) for _ in claims[at].comparisons)
            shares = all(cells[key].measure in (*ACCURACIES, *COUNTS) for key in map(key_of, _cells(claims[at])) if key in cells)
            found[at] = Judged(claims[at], _verdict([each.outcome for each in own]), own, shares)
    return [found[at] for at in range(len(claims))]


def _cells(claim: Claim) -> list[str]:
    return [name for each in claim.comparisons for name in each.cells]


def _verdict(outcomes: Sequence[Outcome]) -> Verdict:
    if not outcomes:
        return "not testable"
    if "shown contrary" in outcomes:
        return "shown contrary"
    return outcomes[0] if len(set(outcomes)) == 1 else "not shown"


def _test(comparison: Comparison, cells: Mapping[Key, Measured]) -> tuple[Effect | None, Region]:
    """The effect that a comparison is about, and where the claim says that it lies."""
    found = [cells.get(key_of(name)) for name in comparison.cells]
    measured = [cell for cell in found if cell is not None]
    counts = bool(measured) and all(cell.measure in COUNTS for cell in measured)
    if len(measured) < len(found) or not measured:
        return None, region_of(comparison, counts)
    if counts:
        return Ratios.of(_counts(comparison.left, measured), _counts(comparison.right, measured[::-1])), region_of(comparison, counts)
    seeds = range(len(measured[0].values))
    left = [_value(comparison.left, cells, seed) for seed in seeds]
    right = [0.0 if isinstance(comparison.right, float) else comparison.factor * _value(comparison.right, cells, seed) for seed in seeds]
    return Differences([ours - theirs for ours, theirs in zip(left, right, strict=True)]), region_of(comparison, counts)


def region_of(comparison: Comparison, counts: bool) -> Region:
    """Where the effect lies if the claim is true: a ratio of counts, or a difference.

    >>> region_of(Comparison(left="t / a / c", relation="<", right="t / b / c", factor=0.8), counts=True)
    Region(low=-inf, high=0.8)
    """
    number = comparison.right if isinstance(comparison.right, float) else 0.0
    end = comparison.factor * (1.0 if counts else number)
    if comparison.relation == "~":
        margin = comparison.margin or 0.0
        return Region(end / (1 + margin), end * (1 + margin)) if counts else Region(end - margin, end + margin)
    return Region(end, math.inf) if comparison.relation == ">" else Region(-math.inf, end)


def _counts(side: Side, measured: Sequence[Measured]) -> list[Censored]:
    cell = measured[0]
    if isinstance(side, float):
        return [Censored(side, side)] * len(cell.values)
    return [Censored(value, cell.rounds) for value in cell.values]


def _value(side: Side, cells: Mapping[Key, Measured], seed: int) -> float:
    names = [side] if isinstance(side, str) else list(side) if isinstance(side, tuple) else []
    values = [cells[key_of(name)].values[seed] or 0.0 for name in names]
    return values[0] - sum(values[1:])


def worded(finding: Finding, measure: Measure) -> str:
    """An effect and its interval, as people read them: points of accuracy, or a ratio.

    >>> worded(Finding("not shown", 0.75, 0.5, math.inf, 0.95, 6, ratio=True), "rounds")
    'x0.75 [0.5, -]'
    """
    if finding.middle is None and finding.low is None:
        return "-"
    if finding.ratio:
        middle = "open" if finding.middle is None else f"{finding.middle:.2g}"
        ends = [("-" if end is None or not math.isfinite(end) else f"{end:.2g}") for end in (finding.low, finding.high)]
        return f"x{middle} [{ends[0]}, {ends[1]}]"
    scale, unit = (100, " points") if measure in ACCURACIES else (1, "")
    ends = ["-" if end is None else f"{scale * end:+.1f}" if unit else f"{end:+.3g}" for end in (finding.middle, finding.low, finding.high)]
    return f"{ends[0]} [{ends[1]}, {ends[2]}]{unit}"
