"""Arguments and options that several commands share, each with its one sentence of help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from coterie.cli.catalogue import Kind, entries
from coterie.errors import UserError

__all__ = ["EXPERIMENT", "RUNS", "DataFolder", "ExperimentFile", "Jobs", "Json", "Out", "Quiet", "Set", "SetAll", "Track", "seeds_of"]

RUNS = Path("runs")
"""Where runs go unless somebody says otherwise."""

EXPERIMENT = typer.Argument(
    help="An experiment file, or the name of one that comes with Coterie.", autocompletion=lambda: list(entries(Kind.experiments))
)
"""A shell completes names that come with Coterie, and files where none fits."""
ExperimentFile = Annotated[str, EXPERIMENT]
Set = Annotated[list[str] | None, typer.Option("--set", help="Override any key, e.g. training.epochs=5. Repeatable.")]
SetAll = Annotated[
    list[str] | None,
    typer.Option("--set", help="Override any key, e.g. method.mu=0.01, which is for every method that has a mu. Repeatable."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
Track = Annotated[Literal["tensorboard", "mlflow"] | None, typer.Option("--track", help="Also feed this tracker, an extra.")]
Jobs = Annotated[int | None, typer.Option("--jobs", min=1, help="Runs at once; by default one for each core.")]
Out = Annotated[Path | None, typer.Option("--out", help="The folder to write; by default a new one under runs/.")]
DataFolder = Annotated[Path | None, typer.Option("--data", help="Data folder; else $COTERIE_DATA, else the user's cache.")]
Json = Annotated[bool, typer.Option("--json", help="JSON on standard output, for scripts.")]


def seeds_of(text: str, option: str = "--seeds") -> list[int]:
    """Numbers and ranges of them.

    >>> seeds_of("0-2,7")
    [0, 1, 2, 7]
    """
    seeds: list[int] = []
    for word in filter(None, (word.strip() for word in text.split(","))):
        first, dash, last = (part.strip() for part in word.partition("-"))
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise UserError(f"{option} = '{word}': expected whole numbers separated by commas, or from-to, such as 0-4")
        if dash and int(last) < int(first):
            raise UserError(f"{option} = '{word}' is reversed: expected {last}-{first}")
        seeds += range(int(first), int(last or first) + 1)
    if not seeds:
        raise UserError(f"{option} is empty: expected whole numbers separated by commas, or from-to, such as 0-4")
    return list(dict.fromkeys(seeds))
