"""A recipe: a table or figure of a paper, ready to be run. Data, a TOML file.

Tables of rows and columns whose cells are experiments (one base, and changes that apply to some tables, rows or columns), the paper's
numbers, claims as comparisons between cells, where each setting of the `paper` scale comes from, and scales with what differs from the
paper and how many seeds it takes to see what the paper says.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, ValidationError

from coterie.errors import UserError, nearest
from coterie.results.verdicts import seeds_for_difference, seeds_for_ratio
from coterie.running.experiment import Experiment
from coterie.running.files import assign, find, load_toml
from coterie.running.sections import Section
from coterie.settings import Count, Positive, ProperShare, Whole, explain
from coterie.studies.arms import leaves

__all__ = [
    "COUNTS",
    "CellPlan",
    "Claim",
    "Comparison",
    "Key",
    "Measure",
    "Power",
    "Recipe",
    "Scale",
    "Side",
    "TableOfPaper",
    "cells_of",
    "key_of",
    "recipes",
    "settings_of",
]

Measure = Literal["rounds", "last", "best", "swing", "diagonal", "new client epochs", "new client accuracy"]
"""The first round in which the mean of five evaluations is at the target; the last or the best accuracy; how much accuracy swings from
one evaluation to the next; how far a logged matrix's diagonal is above the rest of it; new clients' epochs to the target, or their mean
accuracy after some epochs."""
COUNTS = ("rounds", "new client epochs")
"""Measures that may not be reached, so that they are censored."""
ORIGINS = ("paper", "code", "ours")
"""Where a setting of the paper's scale comes from: the paper's text, its authors' code, or, where both are silent, us."""


class Key(NamedTuple):
    """Names a cell; written `table / row / column` in a claim."""

    table: str
    row: str
    column: str

    def __str__(self) -> str:
        return " / ".join(self)


Names = str | tuple[str, ...]


class Change(Section):
    """What is set in some cells: those of a table, a row, a column, of several of them, or all."""

    table: Names | None = None
    row: Names | None = None
    column: Names | None = None
    set: dict[str, Any] = Field(default_factory=dict)
    """Keys of the experiment, as in its file."""
    target: ProperShare | None = None
    """The accuracy that counts as reached."""
    measure: Measure | None = None
    metric: Literal["accuracy", "top5"] | None = None
    """Accuracy unless said."""
    epoch: Whole | None = None
    """After which epoch new clients' accuracy is taken; 0 is before any."""
    protocol: str | None = None
    """One of those that the experiment lists, or else the only one."""
    client: Whole | None = None
    """The client whose value it is; the mean over clients unless said."""
    log: str | None = None
    """The name of the logged matrix, for its diagonal."""
    skip: bool = False

    def concerns(self, key: Key) -> bool:
        """Whether it applies to a cell."""
        wanted = (self.table, self.row, self.column)
        return all(names is None or own in _several(names) for names, own in zip(wanted, key, strict=True))


class RowOfPaper(Section):
    """A row of a table, and the paper's numbers in it, a column each ('-' where we have none); accuracies as shares of 1."""

    name: str
    paper: tuple[float | Literal["-"], ...] = ()


class TableOfPaper(Section):
    """A table."""

    name: str
    rows: Annotated[tuple[RowOfPaper, ...], Field(min_length=1)]


Side = float | str | tuple[str, str]
"""A number, a cell, or what the first of two cells has more than the second."""


class Comparison(Section):
    """`left relation factor * right`; `~` is equal but for a margin, of a difference of accuracies or of a ratio of rounds from 1."""

    left: str | tuple[str, str]
    relation: Literal["<", ">", "~"]
    right: Side
    factor: float = 1.0
    margin: Positive | None = None

    @property
    def cells(self) -> list[str]:
        """The cells that it needs."""
        sides = (_several(side) for side in (self.left, self.right) if not isinstance(side, float))
        return [name for side in sides for name in side]

    def __str__(self) -> str:
        factor = "" if self.factor == 1 else f"{self.factor:g} x "
        margin = "" if self.margin is None else f" within {self.margin:g}"
        return f"{_said(self.left)} {self.relation} {factor}{_said(self.right)}{margin}"


class Claim(Section):
    """What the paper says, and the comparisons that it comes to."""

    text: str
    number: str = ""
    """Of the paper's claim (`coterie.studies.claims`); none for a question of our own."""
    comparisons: tuple[Comparison, ...] = ()
    untestable: str = ""
    """Why it cannot be tested, where it cannot."""


class Power(Section):
    """How many seeds it takes to see a claim: what the paper's effect is, and how much it differs between seeds in a pilot.

    >>> Power(claim="conv needs 34 rounds, FedAvg 100", effect=0.34, spread=0.3, ratio=True, pilot="seeds 900 to 902").seeds
    6
    """

    claim: str
    effect: float
    """A difference, or a ratio of rounds."""
    spread: Positive
    """The standard deviation over the pilot's seeds, of paired differences or of the logarithms of paired ratios."""
    ratio: bool = False
    comparisons: Count = 1
    """How many the correction is for."""
    pilot: str
    """Which seeds, and what they gave."""

    @property
    def seeds(self) -> int:
        """How many are needed for a chance of 80%."""
        count = seeds_for_ratio if self.ratio else seeds_for_difference
        return count(self.effect, self.spread, self.comparisons)


class Scale(Section):
    """How large it is run."""

    seeds: Annotated[tuple[int, ...], Field(min_length=1)]
    takes: str
    """How long, and on what."""
    differs: tuple[str, ...] = ()
    """What is not as in the paper."""
    power: tuple[Power, ...] = ()
    changes: tuple[Change, ...] = ()


class Recipe(Section):
    """A table of a paper, ready to be run.

    >>> recipes()["mcmahan-table2"].name
    'mcmahan-table2.toml'
    >>> recipe = Recipe.load("mcmahan-table2")
    >>> [block.name for block in recipe.tables], sorted(recipe.scales)
    (['CNN', '2NN'], ['paper', 'smoke', 'study'])
    """

    name: str
    """By which it is called."""
    title: str
    paper: str
    """The citation."""
    numbers: str
    """Where the paper's numbers were taken from and how they were checked."""
    covers: tuple[str, ...] = ()
    """Tables and figures of the papers, as `coterie.studies.claims` has them."""
    origin: dict[str, str] = Field(default_factory=dict)
    """Where each setting of the paper's scale comes from: a key of the experiment, and `paper`, `code` or `ours` with a reason."""
    experiment: str | dict[str, Any]
    """What all cells share: the name of an experiment, or one."""
    columns: Annotated[tuple[str, ...], Field(min_length=1)]
    tables: Annotated[tuple[TableOfPaper, ...], Field(min_length=1)]
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
            recipe = cls.model_validate_json(json.dumps({"name": path.stem, **load_toml(path)}))
        except ValidationError as error:
            raise UserError(f"{path}: {explain(error, cls)}") from None
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
        found: Measure | None = _last_said([change for change in self.changes if change.concerns(key)], "measure")
        return found

    def check(self) -> None:
        """Names in changes and claims are names of tables, rows, columns and cells; the paper's settings say where they are from."""
        if any(len(row.paper) not in (0, len(self.columns)) for block in self.tables for row in block.rows):
            raise UserError(f"a row's paper = [...] needs a number, or '-', for each of the {len(self.columns)} columns")
        known = dict(self.numbered())
        for claim in self.claims:
            for side in (side for each in claim.comparisons for side in each.cells):
                if key_of(side) not in known:
                    raise UserError(f"claim '{claim.text}': '{side}' is no cell, {nearest(side, map(str, known))}")
            if any((each.relation == "~") != (each.margin is not None) for each in claim.comparisons):
                raise UserError(f"claim '{claim.text}': the relation '~' needs a margin, and no other has one")
        for change in (*self.changes, *(change for scale in self.scales.values() for change in scale.changes)):
            if not all(any(part.concerns(key) for key in known) for part in _parts(change)):
                raise UserError(f"a change is for no cell: table = {change.table!r}, row = {change.row!r}, column = {change.column!r}")
        for key, said in self.origin.items():
            if said.partition(":")[0] not in ORIGINS:
                raise UserError(f"origin.{key} = '{said}': expected {', '.join(ORIGINS)} and a colon first")


def recipes() -> dict[str, Path]:
    """The recipes that come with Coterie, by name."""
    folder = Path(str(resources.files("coterie.studies"))) / "recipes"
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


@dataclass(frozen=True)
class CellPlan:
    """A cell before it is run."""

    experiment: Experiment
    measure: Measure
    protocol: str
    metric: str
    target: float | None
    epoch: int | None
    client: int | None
    log: str | None


def cells_of(recipe: Recipe, scale: str) -> Iterator[tuple[Key, CellPlan]]:
    """The cells that a scale runs, with the experiment of each."""
    for key, changes in _changed(recipe, scale):
        yield key, _plan(_base(recipe), changes)


def settings_of(recipe: Recipe, scale: str = "paper") -> set[str]:
    """The keys of the experiment that a scale sets anywhere, each of which the recipe's `origin` tells of.

    >>> "training.batch" in settings_of(Recipe.load("mcmahan-table2"))
    True
    """
    changed = [change.set for _, changes in _changed(recipe, scale) for change in changes]
    return {path for table in (_base(recipe), *changed) for path in _paths(table)}


def _paths(table: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _paths(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def _base(recipe: Recipe) -> dict[str, Any]:
    return load_toml(find(recipe.experiment)) if isinstance(recipe.experiment, str) else recipe.experiment


def _changed(recipe: Recipe, scale: str) -> Iterator[tuple[Key, list[Change]]]:
    """The cells that a scale runs, and what is changed in each."""
    for key, _ in recipe.numbered():
        changes = [change for change in (*recipe.changes, *recipe.scales[scale].changes) if change.concerns(key)]
        if not any(change.skip for change in changes):
            yield key, changes


def _plan(base: Mapping[str, Any], changes: Sequence[Change]) -> CellPlan:
    table = copy.deepcopy(dict(base))
    for change in changes:
        for path, value in leaves(change.set):
            assign(table, path, copy.deepcopy(value))  # a later change may reach into it
    said = {name: _last_said(changes, name) for name in ("measure", "protocol", "metric", "target", "epoch", "client", "log")}
    needed = {"rounds": said["target"], "new client epochs": said["target"], "new client accuracy": said["epoch"]}
    if said["protocol"] is None or needed.get(said["measure"], said["measure"]) is None:
        raise UserError(
            "a recipe's changes give every cell a measure, a protocol, for rounds and epochs a target, and for new client accuracy an epoch"
        )
    if said["protocol"] not in table.get("evaluation", {}).get("protocols", ()):  # cells under protocols that are listed share a run
        assign(table, "evaluation.protocols", [said["protocol"]])
    return CellPlan(Experiment.parse(table), **{**said, "metric": said["metric"] or "accuracy"})


def _last_said(changes: Sequence[Change], name: str) -> Any:
    return next((value for change in reversed(changes) if (value := getattr(change, name)) is not None), None)


def _several(names: Names) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else names


def _parts(change: Change) -> list[Change]:
    """A change for several rows, one for each of them, so that a name that is none is found."""
    return [change.model_copy(update={"row": row}) for row in _several(change.row)] if change.row is not None else [change]


def _said(side: Side) -> str:
    if isinstance(side, tuple):
        return f"({side[0]}) - ({side[1]})"
    return side if isinstance(side, str) else f"{side:g}"


def key_of(text: str) -> Key:
    parts = [part.strip() for part in text.split(" / ")]
    return Key(*parts) if len(parts) == 3 else Key(text, "", "")
