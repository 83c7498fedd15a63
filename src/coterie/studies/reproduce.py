"""A paper's table, run again: our number beside the paper's, with what differs, and a verdict for each of its claims."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean
from typing import Any, Literal

from coterie import durable
from coterie.errors import UserError, nearest
from coterie.ledger import events
from coterie.results.statistics import Estimate, estimate
from coterie.results.tables import Cell, Sheet, as_markdown, estimated
from coterie.running.rounds import LEDGER
from coterie.studies.arms import Arm, arm
from coterie.studies.compare import Watch, compare
from coterie.studies.recipe import (
    ACCURACIES,
    CellPlan,
    Claim,
    Comparison,
    Key,
    Measure,
    Recipe,
    TableOfPaper,
    cells_of,
    key_of,
)

__all__ = ["Judged", "Measured", "Reproduction", "Verdict", "arms_for", "judge", "reproduce"]

Verdict = Literal["holds", "holds in part", "does not hold here", "not testable here", "not judged"]


SMOKE = "smoke"
"""The scale that only shows that a recipe runs: too small for a verdict on any claim."""


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
    def bounds(self) -> tuple[float, float]:
        """Between what the mean over seeds lies: one number, or no upper bound where a target was not reached."""
        low = mean(self.rounds if value is None else value for value in self.values)
        return low, math.inf if None in self.values else low

    def at(self, seed: int) -> Measured:
        """As if there were only one seed, the one at a position."""
        return Measured(self.paper, self.measure, (self.values[seed],), self.rounds, self.target)

    def __str__(self) -> str:
        if self.measure in ACCURACIES:
            return estimated(self.estimate)
        if self.estimate is None:
            return f">{self.bounds[0]:.0f}"
        return f"{self.estimate.mean:.4g}" + ("" if self.estimate.spread is None else f" ± {self.estimate.spread:.2g}")


@dataclass(frozen=True)
class Judged:
    """A claim, its verdict and what came of each of its comparisons: True, False, or None where it could not be told."""

    claim: Claim
    verdict: Verdict
    comparisons: tuple[bool | None, ...]
    agreeing: tuple[int, ...]
    """By how many seeds, taken alone, each comparison holds."""


@dataclass(frozen=True)
class Reproduction:
    """All that came of a recipe."""

    recipe: Recipe
    scale: str
    cells: Mapping[Key, Measured]
    judged: Sequence[Judged]
    about: Mapping[str, Any]
    """Command, date, versions, digest of the code, seconds."""

    def sheets(self) -> list[Sheet]:
        """The paper's tables with our numbers, and the verdicts."""
        seeds = len(self.recipe.scales[self.scale].seeds)
        return [*(_sheet(self, block, seeds) for block in self.recipe.tables), _verdicts(self.judged, seeds)]

    def markdown(self) -> str:
        """A page."""
        scale = self.recipe.scales[self.scale]
        about = [f"- {key}: {value}" for key, value in self.about.items()]
        differs = [f"- {sentence}" for sentence in scale.differs] or ["- nothing that we know of"]
        head = [f"# {self.recipe.title}", "", self.recipe.paper, "", self.recipe.numbers, "", f"Scale: {self.scale} ({scale.takes})", ""]
        return "\n".join(
            [*head, as_markdown(self.sheets()), "What differs from the paper:", "", *differs, "", "How it was run:", "", *about, ""]
        )

    def table(self) -> dict[str, Any]:
        """As plain data."""
        cells = [
            {**key._asdict(), "measure": found.measure, "target": found.target, "paper": found.paper, "values": found.values}
            | {"rounds": found.rounds, "mean": found.estimate and found.estimate.mean, "spread": found.estimate and found.estimate.spread}
            for key, found in self.cells.items()
        ]
        claims = [
            {"claim": each.claim.text, "verdict": each.verdict, "comparisons": each.comparisons, "agreeing_seeds": each.agreeing}
            for each in self.judged
        ]
        scale = self.recipe.scales[self.scale]
        head = {"recipe": self.recipe.name, "paper": self.recipe.paper, "scale": self.scale, "seeds": scale.seeds, "differs": scale.differs}
        return {**head, "about": self.about, "cells": cells, "claims": claims}

    def write(self, folder: Path) -> None:
        """`result.json`, `result.md`, and the figure of it."""
        from coterie.results.report.reproduced import figure_of
        from coterie.style import save_figure, styled

        folder.mkdir(parents=True, exist_ok=True)
        with styled():
            save_figure(figure_of(self.table()), folder, "result", ("svg", "png"))
        durable.write(folder / "result.json", json.dumps(self.table(), indent=2) + "\n")
        durable.write(folder / "result.md", self.markdown())


def reproduce(recipe: Recipe, scale: str, watch: Watch, *, runs: Path, data: Path | None = None, jobs: int | None = None) -> Reproduction:
    """Run every cell of a recipe with every seed, reusing what is there, and judge its claims."""
    arms = arms_for(recipe, scale, runs, data)
    summaries = compare(arms, watch, data=data, jobs=jobs).complete().summaries
    found = {each.folder: summary for each, summary in zip(arms, summaries, strict=True)}
    paper = dict(recipe.numbered())
    cells = {}
    for key, plan in cells_of(recipe, scale):
        folders = [each.folder for each in _arms(recipe, scale, runs, key, plan, data)]
        cells[key] = _found(plan, paper[key], [found[folder] for folder in folders])
    about = {"command": f"coterie reproduce {recipe.name} --scale {scale}", **_about(arms, list(found.values()))}
    judged = [_not_judged(claim) if scale == SMOKE and claim.comparisons else judge(claim, cells) for claim in recipe.claims]
    return Reproduction(recipe, scale, cells, judged, about)


def arms_for(recipe: Recipe, scale: str, runs: Path, data: Path | None = None) -> list[Arm]:
    """The runs that a scale needs, each once."""
    if scale not in recipe.scales:
        raise UserError(f"recipe '{recipe.name}' has no scale '{scale}': {nearest(scale, recipe.scales)}")
    arms = (each for key, plan in cells_of(recipe, scale) for each in _arms(recipe, scale, runs, key, plan, data))
    return list({each.folder: each for each in arms}.values())


def _arms(recipe: Recipe, scale: str, runs: Path, key: Key, plan: CellPlan, data: Path | None) -> list[Arm]:
    return [arm(plan.experiment.replace(seed=seed), runs, str(key), data) for seed in recipe.scales[scale].seeds]


def judge(claim: Claim, cells: Mapping[Key, Measured]) -> Judged:
    """A claim holds if all its comparisons do, in part if some do; what is not known speaks for neither.

    >>> ours, theirs = Measured(20, "rounds", (19.0, 23.0), 99), Measured(626, "rounds", (None, 80.0), 99)
    >>> cells = {Key("t", "a", "c"): ours, Key("t", "b", "c"): theirs}
    >>> comparison = Comparison(left="t / a / c", relation="<", right="t / b / c", factor=0.5)
    >>> judged = judge(Claim(text="a needs less than half", comparisons=(comparison,)), cells)
    >>> judged.verdict, judged.agreeing
    ('holds', (2,))
    """
    found = tuple(_holds(each, cells) for each in claim.comparisons)
    verdict: Verdict = "does not hold here"
    if not found or all(each is None for each in found):
        verdict = "not testable here"
    elif all(found):
        verdict = "holds"
    elif any(found):
        verdict = "holds in part"
    seeds = range(min((len(cell.values) for cell in cells.values()), default=0))
    alone = [{key: cell.at(seed) for key, cell in cells.items()} for seed in seeds]
    return Judged(claim, verdict, found, tuple(sum(_holds(each, one) is True for one in alone) for each in claim.comparisons))


def _not_judged(claim: Claim) -> Judged:
    return Judged(claim, "not judged", (), ())


def _holds(comparison: Comparison, cells: Mapping[Key, Measured]) -> bool | None:
    """Whether it holds for the means over seeds; None where a cell is missing or a bound leaves it open."""
    sides = [_bounds(side, cells) for side in (comparison.left, comparison.right)]
    if sides[0] is None or sides[1] is None:
        return None
    left, right = sides[0], tuple(comparison.factor * bound for bound in sides[1])
    (low, high), (below, above) = (left, right) if comparison.relation == "<" else (right, left)
    if high < below:
        return True
    return False if low >= above else None


def _bounds(side: str | float, cells: Mapping[Key, Measured]) -> tuple[float, float] | None:
    if not isinstance(side, str):
        return side, side
    found = cells.get(key_of(side))
    return None if found is None else found.bounds


def _found(plan: CellPlan, paper: float | None, summaries: Sequence[Mapping[str, Any]]) -> Measured:
    return Measured(paper, plan.measure, tuple(_value(plan, summary) for summary in summaries), plan.experiment.rounds, plan.target)


def _value(plan: CellPlan, summary: Mapping[str, Any]) -> float | None:
    if plan.measure == "rounds":
        crossing = summary["targets"][plan.protocol][str(plan.target)]["first_crossing"]
        return None if crossing is None else float(crossing["round"])
    if plan.measure == "new client epochs":
        return float(mean(new_client["epochs_to_plateau"] for new_client in summary["new_clients"]))
    if plan.measure == "new client accuracy":
        return float(mean(new_client["accuracy"][plan.epoch] for new_client in summary["new_clients"]))
    return float(summary["protocols"][plan.protocol]["accuracy"][plan.measure])


def _about(arms: Sequence[Arm], summaries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first = next(events(arms[0].folder / LEDGER))
    seconds = round(sum(summary["seconds"] for summary in summaries))
    versions = ", ".join(f"{name} {version}" for name, version in first["versions"].items())
    return {"date": datetime.now(UTC).date().isoformat(), "versions": versions, "code": first["code"], "seconds on one core": seconds}


def _sheet(result: Reproduction, block: TableOfPaper, seeds: int) -> Sheet:
    """One table of the paper: for each column the paper's number and ours; rounds with how many times fewer than the first row."""
    rows = []
    for row in block.rows:
        cells = [Cell(row.name)]
        for column in result.recipe.columns:
            key, first = Key(block.name, row.name, column), Key(block.name, block.rows[0].name, column)
            cells += [Cell(_paper(result, key, first)), Cell(_ours(result.cells, key, first))]
        rows.append(tuple(cells))
    ours = [found for key, found in result.cells.items() if key.table == block.name]
    targets = sorted({found.target for found in ours if found.measure == "rounds" and found.target is not None})
    reach = f", rounds to {', '.join(f'{100 * target:g}%' for target in targets)}" if targets else ""
    columns = tuple(f"{column}: {whose}" for column in result.recipe.columns for whose in ("paper", "ours"))
    note = (
        f"ours: {'one seed' if seeds == 1 else f'mean ± standard deviation over {seeds} seeds'}; '>': a seed was not there when it stopped"
    )
    return Sheet(f"{block.name}{reach} at {result.scale} scale", ("", *columns), tuple(rows), note)


def _paper(result: Reproduction, key: Key, first: Key) -> str:
    numbers = dict(result.recipe.numbered())
    number, reference = numbers[key], numbers[first]
    if number is None:
        return "-"
    if result.recipe.measure_of(key) in ACCURACIES:
        return f"{100 * number:.2f}%"
    return f"{number:.0f}" + (f" ({reference / number:.1f}×)" if reference and key != first else "")


def _ours(cells: Mapping[Key, Measured], key: Key, first: Key) -> str:
    found, reference = cells.get(key), cells.get(first)
    if found is None:
        return "not run"
    if found.measure != "rounds" or reference is None or key == first or found.estimate is None:
        return str(found)
    more = ">" if reference.estimate is None else ""
    return f"{found} ({more}{reference.bounds[0] / found.estimate.mean:.1f}×)"


def _verdicts(judged: Sequence[Judged], seeds: int) -> Sheet:
    rows = tuple((Cell(each.claim.text), Cell(each.verdict), Cell(_detail(each, seeds))) for each in judged)
    return Sheet("the paper's claims", ("claim", "verdict", "comparisons"), rows)


def _detail(each: Judged, seeds: int) -> str:
    if each.verdict == "not judged":
        return "smoke scale only shows that the recipe runs"
    if not each.comparisons:
        return each.claim.untestable
    holds, open_ = each.comparisons.count(True), each.comparisons.count(None)
    words = [f"{holds} of {len(each.comparisons)} hold"] + ([f"{open_} cannot be told"] if open_ else [])
    if seeds > 1:
        words.append(f"{sum(each.agreeing)} of {seeds * len(each.comparisons)} seed by seed")
    return ", ".join(words)
