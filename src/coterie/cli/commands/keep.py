"""`coterie runs`, `coterie clean` and `coterie export`: what is there, what can go, and models out of it."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from coterie.cli.options import RUNS, DataFolder, Json
from coterie.cli.sentences import console, say
from coterie.errors import UserError
from coterie.ledger import to_json

__all__ = ["clean", "export", "runs"]

Folders = Annotated[list[Path] | None, typer.Argument(help="Folders with runs in or below them; by default runs/.")]


def runs(folders: Folders = None, as_json: Json = False) -> None:
    """Every run that is there: what it is, how far, how good, how large."""
    from coterie.results.inventory import inventory
    from coterie.results.tables import amount, number, simple

    found = inventory(*(folders or [RUNS]))
    if as_json:
        sys.stdout.write(to_json([{**dataclasses.asdict(each), "folder": str(each.folder)} for each in found]) + "\n")
        return
    rows = [
        (
            each.folder,
            each.method,
            each.seed,
            each.state if each.state != "finished" else each.rounds,
            f"{each.protocol} {number(each.accuracy)}" if each.accuracy is not None else "-",
            amount(each.sent),
            amount(each.disk),
        )
        for each in found
    ]
    console.print(simple("runs", ["folder", "method", "seed", "rounds", "accuracy", "sent", "on disk"], rows))
    say(f"{len(found)} runs, {amount(sum(each.disk for each in found))} on disk")


def clean(
    folders: Folders = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go, and remove nothing.")] = False,
) -> None:
    """Remove what can be made again: memories and checkpoints of finished runs, pretrained models, pages. Ledgers and results stay.

    A finished run without its checkpoint can still be looked at, compared and reported; its models are gone.
    """
    from coterie.results.inventory import removable, remove
    from coterie.results.tables import amount

    files = removable(*(folders or [RUNS]))
    size = sum(path.stat().st_size for path in files)
    if not dry_run:
        remove(files)
    say(f"{'would remove' if dry_run else 'removed'} {len(files):,} files, {amount(size)}; ledgers and summaries stay")


def export(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    client: Annotated[int | None, typer.Option("--client", help="A client's own model, by number; by default the server's.")] = None,
    form: Annotated[Literal["safetensors", "torchscript", "onnx"], typer.Option("--format", help="What to write.")] = "safetensors",
    out: Annotated[Path | None, typer.Option("--out", help="The file to write; by default in the run's folder.")] = None,
    data: DataFolder = None,
) -> None:
    """Write a trained model to a file that needs no Coterie: weights, or the whole model with its preprocessing."""
    from coterie.running import export as exporting

    if not run.is_dir():
        raise UserError(f"there is no run in {run}: expected the folder of a finished run")
    path = exporting.export(run, client, form, out, data=data)
    say(f"written to {path}")
