"""A paper's table, run again: our number beside the paper's, with what differs, and a verdict for each of its claims."""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from coterie import durable
from coterie.errors import UserError, nearest
from coterie.results.read import read_whole
from coterie.results.statistics import ACCURACIES
from coterie.results.tables import Cell, Sheet, as_markdown
from coterie.results.tally import Tally
from coterie.results.verdicts import Finding
from coterie.studies.arms import Arm, arm
from coterie.studies.compare import Watch, compare, finished
from coterie.studies.earlier import Earlier, runs_by_seed
from coterie.studies.judging import Judged, Measured, judge, region_of, worded
from coterie.studies.measures import value_of
from coterie.studies.recipe import CellPlan, Comparison, Key, Recipe, TableOfPaper, cells_of, key_of

__all__ = ["Reproduction", "arms_for", "reproduce"]

SMOKE = "smoke"
"""The scale that only shows that a recipe runs: too small for a verdict on any claim."""


@dataclass(frozen=True)
class Reproduction:
    """All that came of a recipe."""

    recipe: Recipe
    scale: str
    seeds: Sequence[int]
    """Those that all cells have; fewer than planned where not all was run."""
    cells: Mapping[Key, Measured]
    judged: Sequence[Judged]
    about: Mapping[str, Any]
    """Command, date, versions, digest of the code, commit, seconds."""
    runs: Mapping[int, Sequence[str]] = field(default_factory=dict)
    """Seed -> the names of its runs."""

    def sheets(self) -> list[Sheet]:
        """The paper's tables with our numbers, the verdicts, and what they rest on."""
        return [*self._tables(), _verdicts(self.judged), *_comparisons(self)]

    def _tables(self) -> list[Sheet]:
        return [_sheet(self, block) for block in self.recipe.tables]

    def markdown(self) -> str:
        """A page."""
        tail = [f"{title}:\n\n" + "\n".join(f"- {line}" for line in lines) for title, lines in self._lists().items() if lines]
        return "\n\n".join([f"# {self.recipe.title}", *self._lead(), as_markdown(self.sheets()).rstrip("\n"), *tail]) + "\n"

    def page(self) -> str:
        """The same to look at, with figures."""
        from coterie.results.report.reproduced import study_page

        sheets = [*self._tables(), *_comparisons(self)]  # the page begins with the verdicts
        return study_page(self.recipe.title, self._lead(), self.table(), sheets, self._lists())

    def _lead(self) -> list[str]:
        scale = self.recipe.scales[self.scale]
        planned = f" of {len(scale.seeds)} planned" if len(self.seeds) < len(scale.seeds) else ""
        return [self.recipe.paper, self.recipe.numbers, f"Scale: {self.scale}; seeds: {len(self.seeds)}{planned}"]

    def _lists(self) -> dict[str, Sequence[str]]:
        scale = self.recipe.scales[self.scale]
        return {
            "What differs from the paper": scale.differs or ("nothing that we know of",),
            "Why so many seeds": [f"{each.seeds} seeds: {each.claim} ({each.pilot})" for each in scale.power],
            "How it was run": [f"{key}: {value}" for key, value in self.about.items()],
        }

    def table(self) -> dict[str, Any]:
        """As plain data."""
        cells = [
            {**key._asdict(), "measure": found.measure, "target": found.target, "paper": found.paper, "values": found.values}
            | {"rounds": found.rounds, "mean": found.estimate and found.estimate.mean, "spread": found.estimate and found.estimate.spread}
            for key, found in self.cells.items()
        ]
        claims = [
            {"number": each.claim.number, "claim": each.claim.text, "verdict": each.verdict, "detail": each.detail}
            | {"comparisons": [_told(self, *pair) for pair in zip(each.claim.comparisons, each.findings, strict=False)]}
            for each in self.judged
        ]
        scale = self.recipe.scales[self.scale]
        head = {"recipe": self.recipe.name, "paper": self.recipe.paper, "scale": self.scale, "seeds": self.seeds, "planned": scale.seeds}
        return {**head, "differs": scale.differs, "about": self.about, "runs": self.runs, "cells": cells, "claims": claims}

    def write(self, folder: Path) -> None:
        """`result.json`, `result.md`, `result.html`, and the figure of it."""
        from coterie.results.report.reproduced import figure_of
        from coterie.style import save_figure, styled

        folder.mkdir(parents=True, exist_ok=True)
        with styled():
            save_figure(figure_of(self.table()), folder, "result", ("svg", "png"))
        durable.write(folder / "result.json", json.dumps(self.table(), indent=2) + "\n")
        durable.write(folder / "result.md", self.markdown())
        durable.write(folder / "result.html", self.page())


def reproduce(
    recipe: Recipe,
    scale: str,
    watch: Watch,
    *,
    runs: Path,
    data: Path | None = None,
    jobs: int | None = None,
    done: bool = False,
    earlier: Path | None = None,
) -> Reproduction:
    """Run every cell of a recipe with every seed, reusing what is there, and judge its claims.

    Args:
        recipe: what to run.
        scale: at which of its scales.
        watch: who is told how far it is.
        runs: where runs are and go.
        data: the data folder.
        jobs: how many runs at once.
        done: whether to look only at the seeds that are done.
        earlier: a `result.json` of the same runs, whose seeds are taken from there.
    """
    planned, paper = arms_for(recipe, scale, runs, data), dict(recipe.numbered())
    before = Earlier() if earlier is None else Earlier.read(earlier, planned)
    arms = [each for each in planned if each.experiment.seed not in before.seeds]
    if arms and not done:
        compare(arms, watch, data=data, jobs=jobs).complete()
    seeds = _whole(recipe, scale, arms)
    tallies = {each.folder: read_whole(each.folder).tally for each in arms if each.experiment.seed in seeds}
    cells = {
        key: _measured(plan, paper[key], [_value(plan, key, seed, before, tallies, runs, data) for seed in seeds])
        for key, plan in cells_of(recipe, scale)
    }
    about = {"command": f"coterie reproduce {recipe.name} --scale {scale}", **_about(list(tallies.values()), before)}
    judged = judge(recipe.claims, cells)
    if scale == SMOKE:
        judged = [Judged(each.claim, "not judged" if each.findings else each.verdict) for each in judged]
    named = {seed: names for seed, names in runs_by_seed(planned).items() if seed in seeds}
    return Reproduction(recipe, scale, seeds, cells, judged, about, named)


def arms_for(recipe: Recipe, scale: str, runs: Path, data: Path | None = None, earlier: Path | None = None) -> list[Arm]:
    """The runs that a scale needs, each once, seed by seed, so that what is stopped early has whole seeds; without those done earlier."""
    if scale not in recipe.scales:
        raise UserError(f"recipe '{recipe.name}' has no scale '{scale}': {nearest(scale, recipe.scales)}")
    plans = list(cells_of(recipe, scale))
    each_of = (_arm(seed, runs, key, plan, data) for seed in recipe.scales[scale].seeds for key, plan in plans)
    arms = list({each.folder: each for each in each_of}.values())
    known = () if earlier is None else Earlier.read(earlier, arms).seeds
    return [each for each in arms if each.experiment.seed not in known]


def _arm(seed: int, runs: Path, key: Key, plan: CellPlan, data: Path | None) -> Arm:
    return arm(plan.experiment.replace(seed=seed), runs, str(key), data)


def _whole(recipe: Recipe, scale: str, arms: Sequence[Arm]) -> list[int]:
    """The seeds whose runs are all there."""
    missing = {each.experiment.seed for each in arms if not finished(each)}
    found = [seed for seed in recipe.scales[scale].seeds if seed not in missing]
    if not found:
        raise UserError(f"no seed of recipe '{recipe.name}' at scale '{scale}' has all its runs: leave out --done to run them")
    return found


def _value(
    plan: CellPlan, key: Key, seed: int, before: Earlier, tallies: Mapping[Path, Tally], runs: Path, data: Path | None
) -> float | None:
    """A cell's number with one seed."""
    if seed in before.seeds:
        return before.values[key][seed]
    return value_of(plan, tallies[_arm(seed, runs, key, plan, data).folder])


def _measured(plan: CellPlan, paper: float | None, values: Sequence[float | None]) -> Measured:
    new = plan.experiment.new_clients
    limit = new.epochs if plan.measure == "new client epochs" and new is not None else plan.experiment.rounds
    return Measured(paper, plan.measure, tuple(values), limit, plan.target)


def _about(tallies: Sequence[Tally], before: Earlier) -> dict[str, Any]:
    if not tallies:
        return {key: value for key, value in before.about.items() if key != "command"}
    first = tallies[0].start
    seconds = round(sum(sum(tally.seconds.values()) for tally in tallies)) + before.about.get("seconds on one core", 0)
    versions = ", ".join(f"{name} {version}" for name, version in first["versions"].items())
    found = {"date": datetime.now(UTC).date().isoformat(), "versions": versions, "code": first["code"], "commit": _commit()}
    return {**found, "seconds on one core": seconds, **before.told()}


def _commit() -> str:
    """The commit of the checkout that this is run from; empty where there is none."""
    words = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short=12", "HEAD"]
    try:
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def _told(result: Reproduction, comparison: Comparison, finding: Finding) -> dict[str, Any]:
    plain = {key: None if value in (math.inf, -math.inf) else value for key, value in asdict(finding).items()}  # JSON has no infinity
    cell = result.cells.get(key_of(comparison.cells[0]))
    unit = "ratio" if finding.ratio else "points" if cell is not None and cell.measure in ACCURACIES else "value"
    claimed = [end if math.isfinite(end) else None for end in region_of(comparison, finding.ratio)]
    return {"comparison": str(comparison), "unit": unit, **plain, "claimed": claimed, "could_have_seen": finding.could_have_seen}


def _sheet(result: Reproduction, block: TableOfPaper) -> Sheet:
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
    seeds = len(result.seeds)
    note = f"ours: {'one seed' if seeds == 1 else f'mean ± standard deviation over {seeds} seeds'}; '>': not there when it stopped"
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
    if found.measure != "rounds" or reference is None or key == first or found.estimate is None or reference.estimate is None:
        return str(found)
    return f"{found} ({reference.estimate.mean / found.estimate.mean:.1f}×)"


def _verdicts(judged: Sequence[Judged]) -> Sheet:
    rows = tuple((each.claim.number or "ours", each.claim.text, each.verdict, each.detail) for each in judged)
    return Sheet("claims", ("claim", "text", "verdict", "comparisons"), rows, keys=2)


def _comparisons(result: Reproduction) -> list[Sheet]:
    """Every comparison with its effect and interval; none where nothing is judged."""
    rows = [
        (each.claim.number or "ours", str(comparison), *_effect(result, comparison, found), found.outcome)
        for each in result.judged
        for comparison, found in zip(each.claim.comparisons, each.findings, strict=False)
        if found.confidence is not None
    ]
    family = "what Holm's correction gives it among the paper's comparisons, or among ours"
    note = f"Effects are paired by seed. An interval's confidence is {family}."
    columns = ("claim", "comparison", "effect", "confidence", "verdict")
    return [Sheet("what the verdicts rest on", columns, tuple(rows), note, keys=2)] if rows else []


def _effect(result: Reproduction, comparison: Comparison, found: Finding) -> tuple[str, str]:
    measure = result.cells[key_of(comparison.cells[0])].measure
    return worded(found, measure), f"{100 * (found.confidence or 0):.4g}%"
