"""A recipe: a table of a paper, ready to be run. Data, a TOML file.

Tables of rows and columns whose cells are experiments (one base, and changes that apply to some tables, rows or columns), the paper's
numbers, claims as comparisons between cells, and scales with what differs from the paper.
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
from coterie.running.experiment import Experiment
from coterie.running.files import assign, find, load_toml
from coterie.running.sections import Section
from coterie.settings import ProperShare, Whole, explain
from coterie.studies.arms import leaves

__all__ = ["ACCURACIES", "CellPlan", "Claim", "Comparison", "Key", "Measure", "Recipe", "cells_of", "key_of", "last_said", "recipes"]

Measure = Literal["rounds", "last", "best", "new client epochs", "new client accuracy"]


ACCURACIES = ("last", "best", "new client accuracy")
"""Measures that are shares of 1."""


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
    target: ProperShare | None = None
    """The accuracy whose first crossing is the cell's number of rounds."""
    measure: Measure | None = None
    """The first round at the target, the last or best accuracy, the new clients' epochs until they are near their plateau, or their
    mean accuracy after some epochs."""
    epoch: Whole | None = None
    """After which epoch new clients' accuracy is taken; 0 is before any."""
    protocol: str | None = None
    """One of those that the experiment lists, or else the only one."""
    skip: bool = False

    def concerns(self, key: Key) -> bool:
        """Whether it applies to a cell."""
        wanted = (self.table, self.row, self.column)
        return all(name is None or name == own for name, own in zip(wanted, key, strict=True))


class RowOfPaper(Section):
    """A row of a table, and the paper's numbers in it, a column each ('-' where we have none); accuracies as shares of 1."""

    name: str
    paper: tuple[float | Literal["-"], ...] = ()


class TableOfPaper(Section):
    """A table."""

    name: str
    rows: Annotated[tuple[RowOfPaper, ...], Field(min_length=1)]


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
        found: Measure | None = last_said([change for change in self.changes if change.concerns(key)], "measure")
        return found

    def check(self) -> None:
        """Names in changes and claims are names of tables, rows, columns and cells."""
        if any(len(row.paper) not in (0, len(self.columns)) for block in self.tables for row in block.rows):
            raise UserError(f"a row's paper = [...] needs a number, or '-', for each of the {len(self.columns)} columns")
        known = dict(self.numbered())
        for claim in self.claims:
            for side in (side for each in claim.comparisons for side in (each.left, each.right)):
                if isinstance(side, str) and key_of(side) not in known:
                    raise UserError(f"claim '{claim.text}': '{side}' is no cell, {nearest(side, map(str, known))}")
        for change in (*self.changes, *(change for scale in self.scales.values() for change in scale.changes)):
            if not any(change.concerns(key) for key in known):
                raise UserError(f"a change is for no cell: table = {change.table!r}, row = {change.row!r}, column = {change.column!r}")


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
    target: float | None
    epoch: int | None


def cells_of(recipe: Recipe, scale: str) -> Iterator[tuple[Key, CellPlan]]:
    """The cells that a scale runs, with the experiment of each."""
    base = load_toml(find(recipe.experiment)) if isinstance(recipe.experiment, str) else recipe.experiment
    for key, _ in recipe.numbered():
        changes = [change for change in (*recipe.changes, *recipe.scales[scale].changes) if change.concerns(key)]
        if not any(change.skip for change in changes):
            yield key, _plan(base, changes)


def _plan(base: Mapping[str, Any], changes: Sequence[Change]) -> CellPlan:
    table = copy.deepcopy(dict(base))
    for change in changes:
        for path, value in leaves(change.set):
            assign(table, path, copy.deepcopy(value))  # a later change may reach into it
    measure, protocol, target, epoch = (last_said(changes, name) for name in ("measure", "protocol", "target", "epoch"))
    needed = {"rounds": target, "new client accuracy": epoch}.get(measure, measure)
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
    return CellPlan(Experiment.parse(table), measure, protocol, target, epoch)


def last_said(changes: Sequence[Change], name: str) -> Any:
    return next((value for change in reversed(changes) if (value := getattr(change, name)) is not None), None)


def key_of(text: str) -> Key:
    parts = [part.strip() for part in text.split(" / ")]
    return Key(*parts) if len(parts) == 3 else Key(text, "", "")
