"""`coterie show` and `coterie new`: an experiment with all its settings, and a file to begin with."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from coterie.cli.options import ExperimentFile, Json, Set
from coterie.cli.sentences import say
from coterie.errors import UserError

__all__ = ["new", "show"]


def show(experiment: ExperimentFile, overrides: Set = None, as_json: Json = False) -> None:
    """All settings of an experiment, defaults included, as a file that `coterie run` takes."""
    from coterie.cli.writing import as_toml
    from coterie.running.experiment import Experiment

    plan = Experiment.load(experiment, overrides or ())
    table = plan.resolved() | ({"methods": plan.methods} if plan.methods else {})
    sys.stdout.write(json.dumps(table) + "\n" if as_json else as_toml(table))


def new(
    file: Annotated[Path, typer.Argument(help="The file to write.")],
    example: Annotated[str, typer.Option("--from", help="The experiment to begin with.")] = "digits-two-class",
) -> None:
    """An experiment file to begin with: every key, its default and what it is."""
    from coterie.cli.writing import commented
    from coterie.running.files import find, load_toml

    if file.exists():
        raise UserError(f"{file} exists: choose another name")
    table = load_toml(find(example))
    file.write_text(commented(table | {"name": file.stem}, str(file)), encoding="utf-8")
    say(f"written to {file}. Run it with: coterie run {file}")
