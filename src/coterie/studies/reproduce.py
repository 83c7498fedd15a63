"""A paper's table, run again: our number beside the paper's, with what differs, and a verdict for each of its claims.

A recipe is data, a TOML file: tables of rows and columns whose cells are experiments (one base, and changes that apply to some
tables, rows or columns), the paper's numbers, claims as comparisons between cells, and scales with what differs from the paper.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from statistics import mean
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, ValidationError

from coterie import durable
from coterie.errors import UserError, nearest
from coterie.ledger import events
from coterie.results.statistics import Estimate, estimate
from coterie.results.tables import Cell, Sheet, as_markdown, percent
from coterie.running.experiment import Experiment, Section, Share, assign, find, tomllib_load
from coterie.running.rounds import LEDGER
from coterie.settings import explain
from coterie.studies.compare import Arm, Watch, arm, compare

__all__ = ["Found", "Key", "Recipe", "Reproduction", "Verdict", "arms_for", "cells_of", "judge", "recipes", "reproduce"]

Measure = Literal["rounds", "last", "best", "new_client epochs", "new_client accuracy"]
ACCURACIES = ("last", "best", "new_client accuracy")
"""Measures that are shares of 1."""
Verdict = Literal["holds", "holds in part", "does not hold here", "not testable here"]


class Key(NamedTuple):
    """Names a cell; written `table / row / column` in a claim."""

    table: str
    row: str
    column: str

    def __str__(self) -> str:
        return " / ".join(self)


class Change(Section):
    """What is set in some cells: those of a table, a row, a column, or all."""

    table: str | None = None
    row: str | None = None
    column: str | None = None
    set: dict[str, Any] = Field(default_factory=dict)
    """Keys of the experiment, as in its file."""
    target: Share | None = None
    """The accuracy whose first crossing is the cell's number of rounds."""
    measure: Measure | None = None
    """The first round at the target, the last or best accuracy, the new clients' epochs until they are near their plateau, or their
    mean accuracy after some epochs."""
    epoch: Annotated[int, Field(ge=0)] | None = None
    """After which epoch new clients' accuracy is taken; 0 is before any."""
    protocol: str | None = None
    """One of those that the experiment lists, or else the only one."""
    skip: bool = False

    def concerns(self, key: Key) -> bool:
        """Whether it applies to a cell."""
        wanted = (self.table, self.row, self.column)
        return all(name is None or name == own for name, own in zip(wanted, key, strict=True))


class Row(Section):
    """A row of a table, and the paper's numbers in it, a column each ('-' where we have none); accuracies as shares of 1."""

    name: str
    paper: tuple[float | Literal["-"], ...] = ()


class Block(Section):
    """A table."""

    name: str
    rows: Annotated[tuple[Row, ...], Field(min_length=1)]


class Comparison(Section):
    """`left relation factor * right`, between two cells, or a cell and a number."""

    left: str
    relation: Literal["<", ">"]
    right: str | float
    factor: float = 1.0


class Claim(Section):
    """What the paper says, and the comparisons that it comes to."""

    text: str
    comparisons: tuple[Comparison, ...] = ()
    untestable: str = ""
    """Why it cannot be tested, where it cannot."""


class Scale(Section):
    """How large it is run."""

    seeds: Annotated[tuple[int, ...], Field(min_length=1)]
    takes: str
    """How long, and on what."""
    differs: tuple[str, ...] = ()
    """What is not as in the paper."""
    changes: tuple[Change, ...] = ()


class Recipe(Section):
    """A table of a paper, ready to be run.

    >>> recipes()["mcmahan-table2"].name
    'mcmahan-table2.toml'
    >>> recipe = Recipe.load("mcmahan-table2")
    >>> [block.name for block in recipe.tables], sorted(recipe.scales)
    (['CNN', '2NN'], ['laptop', 'paper', 'smoke'])
    """

    name: str
    """By which it is called."""
    title: str
    paper: str
    """The citation."""
    numbers: str
    """Where the paper's numbers were taken from and how they were checked."""
    experiment: str | dict[str, Any]
    """What all cells share: the name of an experiment, or one."""
    columns: Annotated[tuple[str, ...], Field(min_length=1)]
    tables: Annotated[tuple[Block, ...], Field(min_length=1)]
    changes: tuple[Change, ...]
    scales: dict[str, Scale]
    claims: tuple[Claim, ...]

    @classmethod
    def load(cls, name: str) -> Recipe:
        """By the name of one that comes with Coterie, or from a file."""
        known = recipes()
        path = Path(name) if Path(name).is_file() else known.get(name)
        if path is None:
            raise UserError(f"recipe '{name}' is neither a file nor the name of one: {nearest(name, known)}")
        try:
            recipe = cls.model_validate_json(json.dumps({"name": path.stem, **tomllib_load(path)}))
        except ValidationError as error:
            raise UserError(f"{path}: {explain(error, fields=cls.model_fields)}") from None
        recipe.check()
        return recipe

    def numbered(self) -> Iterator[tuple[Key, float | None]]:
        """Every cell and the paper's number in it."""
        for block in self.tables:
            for row in block.rows:
                numbers = row.paper or ("-",) * len(self.columns)
                for column, number in zip(self.columns, numbers, strict=True):
                    yield Key(block.name, row.name, column), None if isinstance(number, str) else number

    def measure_of(self, key: Key) -> Measure | None:
        """What a cell measures at every scale, whether or not it is run."""
        found: Measure | None = _last([change for change in self.changes if change.concerns(key)], "measure")
        return found

    def check(self) -> None:
        """Names in changes and claims are names of tables, rows, columns and cells."""
        if any(len(row.paper) not in (0, len(self.columns)) for block in self.tables for row in block.rows):
            raise UserError(f"a row's paper = [...] needs a number, or '-', for each of the {len(self.columns)} columns")
        known = dict(self.numbered())
        for claim in self.claims:
            for side in (side for each in claim.comparisons for side in (each.left, each.right)):
                if isinstance(side, str) and _key(side) not in known:
                    raise UserError(f"claim '{claim.text}': '{side}' is no cell, {nearest(side, map(str, known))}")
        for change in (*self.changes, *(change for scale in self.scales.values() for change in scale.changes)):
            if not any(change.concerns(key) for key in known):
                raise UserError(f"a change is for no cell: table = {change.table!r}, row = {change.row!r}, column = {change.column!r}")


def recipes() -> dict[str, Path]:
    """The recipes that come with Coterie, by name."""
    folder = Path(str(resources.files("coterie.studies"))) / "recipes"
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


@dataclass(frozen=True)
class Plan:
    """A cell before it is run."""

    experiment: Experiment
    measure: Measure
    protocol: str
    target: float | None
    epoch: int | None


@dataclass(frozen=True)
class Found:
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

    def at(self, seed: int) -> Found:
        """As if there were only one seed, the one at a position."""
        return Found(self.paper, self.measure, (self.values[seed],), self.rounds, self.target)

    def __str__(self) -> str:
        if self.measure in ACCURACIES:
            return "-" if self.estimate is None else percent(self.estimate)
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
    cells: Mapping[Key, Found]
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
        from coterie.results.report.style import save, styled

        folder.mkdir(parents=True, exist_ok=True)
        with styled():
            save(figure_of(self.table()), folder, "result", ("svg", "png"))
        durable.write(folder / "result.json", json.dumps(self.table(), indent=2) + "\n")
        durable.write(folder / "result.md", self.markdown())


def reproduce(recipe: Recipe, scale: str, watch: Watch, *, runs: Path, data: Path | None = None, jobs: int | None = None) -> Reproduction:
    """Run every cell of a recipe with every seed, reusing what is there, and judge its claims."""
    arms = arms_for(recipe, scale, runs)
    found = {each.folder: summary for each, summary in zip(arms, compare(arms, watch, data=data, jobs=jobs), strict=True)}
    paper = dict(recipe.numbered())
    cells = {}
    for key, plan in cells_of(recipe, scale):
        folders = [each.folder for each in _arms(recipe, scale, runs, key, plan)]
        cells[key] = _found(plan, paper[key], [found[folder] for folder in folders])
    about = {"command": f"coterie reproduce {recipe.name} --scale {scale}", **_about(arms, list(found.values()))}
    return Reproduction(recipe, scale, cells, [judge(claim, cells) for claim in recipe.claims], about)


def arms_for(recipe: Recipe, scale: str, runs: Path) -> list[Arm]:
    """The runs that a scale needs, each once."""
    if scale not in recipe.scales:
        raise UserError(f"recipe '{recipe.name}' has no scale '{scale}': {nearest(scale, recipe.scales)}")
    arms = (each for key, plan in cells_of(recipe, scale) for each in _arms(recipe, scale, runs, key, plan))
    return list({each.folder: each for each in arms}.values())


def _arms(recipe: Recipe, scale: str, runs: Path, key: Key, plan: Plan) -> list[Arm]:
    return [arm(plan.experiment.replace(seed=seed), runs, str(key)) for seed in recipe.scales[scale].seeds]


def cells_of(recipe: Recipe, scale: str) -> Iterator[tuple[Key, Plan]]:
    """The cells that a scale runs, with the experiment of each."""
    base = tomllib_load(find(recipe.experiment)) if isinstance(recipe.experiment, str) else recipe.experiment
    for key, _ in recipe.numbered():
        changes = [change for change in (*recipe.changes, *recipe.scales[scale].changes) if change.concerns(key)]
        if not any(change.skip for change in changes):
            yield key, _plan(base, changes)


def judge(claim: Claim, cells: Mapping[Key, Found]) -> Judged:
    """A claim holds if all its comparisons do, in part if some do; what is not known speaks for neither.

    >>> cells = {Key("t", "a", "c"): Found(20, "rounds", (19.0, 23.0), 99), Key("t", "b", "c"): Found(626, "rounds", (None, 80.0), 99)}
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


def _holds(comparison: Comparison, cells: Mapping[Key, Found]) -> bool | None:
    """Whether it holds for the means over seeds; None where a cell is missing or a bound leaves it open."""
    sides = [_bounds(side, cells) for side in (comparison.left, comparison.right)]
    if sides[0] is None or sides[1] is None:
        return None
    left, right = sides[0], tuple(comparison.factor * bound for bound in sides[1])
    (low, high), (below, above) = (left, right) if comparison.relation == "<" else (right, left)
    if high < below:
        return True
    return False if low >= above else None


def _bounds(side: str | float, cells: Mapping[Key, Found]) -> tuple[float, float] | None:
    if not isinstance(side, str):
        return side, side
    found = cells.get(_key(side))
    return None if found is None else found.bounds


def _key(text: str) -> Key:
    parts = [part.strip() for part in text.split(" / ")]
    return Key(*parts) if len(parts) == 3 else Key(text, "", "")


def _plan(base: Mapping[str, Any], changes: Sequence[Change]) -> Plan:
    table = copy.deepcopy(dict(base))
    for change in changes:
        for path, value in _leaves(change.set):
            assign(table, path, copy.deepcopy(value))  # a later change may reach into it
    measure, protocol, target, epoch = (_last(changes, name) for name in ("measure", "protocol", "target", "epoch"))
    needed = {"rounds": target, "new_client accuracy": epoch}.get(measure, measure)
    if protocol is None or needed is None:
        raise UserError(
            "a recipe's changes give every cell a measure, a protocol and, for rounds, a target, for new client accuracy, an epoch"
        )
    evaluation = table.get("evaluation", {})
    stops = measure == "rounds" and target not in evaluation.get("targets", ())  # one that is listed is passed, not stopped at
    if stops or protocol not in evaluation.get("protocols", ()):  # cells under protocols that are listed share a run
        assign(table, "evaluation.protocols", [protocol])
    if stops:
        assign(table, "evaluation.targets", [target])
        assign(table, "evaluation.stop_at", target)
    return Plan(Experiment.parse(table), measure, protocol, target, epoch)


def _last(changes: Sequence[Change], name: str) -> Any:
    return next((value for change in reversed(changes) if (value := getattr(change, name)) is not None), None)


def _leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted paths and values; a table with a name is a value."""
    for key, value in table.items():
        if isinstance(value, dict) and "name" not in value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _found(plan: Plan, paper: float | None, summaries: Sequence[Mapping[str, Any]]) -> Found:
    return Found(paper, plan.measure, tuple(_value(plan, summary) for summary in summaries), plan.experiment.rounds, plan.target)


def _value(plan: Plan, summary: Mapping[str, Any]) -> float | None:
    if plan.measure == "rounds":
        crossing = summary["targets"][plan.protocol][str(plan.target)]["first_crossing"]
        return None if crossing is None else float(crossing["round"])
    if plan.measure == "new_client epochs":
        return float(mean(new_client["epochs_to_plateau"] for new_client in summary["new_clients"]))
    if plan.measure == "new_client accuracy":
        return float(mean(new_client["accuracy"][plan.epoch] for new_client in summary["new_clients"]))
    return float(summary["protocols"][plan.protocol]["accuracy"][plan.measure])


def _about(arms: Sequence[Arm], summaries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first = next(events(arms[0].folder / LEDGER))
    seconds = round(sum(summary["seconds"] for summary in summaries))
    versions = ", ".join(f"{name} {version}" for name, version in first["versions"].items())
    return {"date": datetime.now(UTC).date().isoformat(), "versions": versions, "code": first["code"], "seconds on one core": seconds}


def _sheet(result: Reproduction, block: Block, seeds: int) -> Sheet:
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


def _ours(cells: Mapping[Key, Found], key: Key, first: Key) -> str:
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
    if not each.comparisons:
        return each.claim.untestable
    holds, open_ = each.comparisons.count(True), each.comparisons.count(None)
    words = [f"{holds} of {len(each.comparisons)} hold"] + ([f"{open_} cannot be told"] if open_ else [])
    if seeds > 1:
        words.append(f"{sum(each.agreeing)} of {seeds * len(each.comparisons)} seed by seed")
    return ", ".join(words)
