"""`coterie reproduce`: a paper's table again, with a verdict on each of its claims."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coterie.cli.options import DataFolder, Jobs, Json, Quiet
from coterie.cli.sentences import console, say
from coterie.cli.watching import watched
from coterie.errors import UserError
from coterie.ledger import to_json

if TYPE_CHECKING:
    from coterie.studies.recipe import Recipe

__all__ = ["reproduce"]


def reproduce(
    name: Annotated[str | None, typer.Argument(help="A recipe that comes with Coterie, or a file.")] = None,
    scale: Annotated[str, typer.Option("--scale", help="smoke (seconds), study, or paper (as published).")] = "study",
    listing: Annotated[bool, typer.Option("--list", help="The recipes that come with Coterie.")] = False,
    out: Annotated[Path | None, typer.Option("--out", help="Where result.json and result.md go; by default with the runs.")] = None,
    runs: Annotated[Path | None, typer.Option("--runs", help="Where the runs go; by default under runs/reproduce/.")] = None,
    data: DataFolder = None,
    jobs: Jobs = None,
    done: Annotated[bool, typer.Option("--done", help="Run nothing: the table of the seeds that are done.")] = False,
    earlier: Annotated[Path | None, typer.Option("--earlier", help="A result.json of the same runs: its seeds are not run again.")] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run a paper's table again: our numbers beside the paper's, and a verdict on each of its claims."""
    from coterie.results.tables import simple
    from coterie.studies import reproduce as study
    from coterie.studies.recipe import Recipe, recipes

    if listing == (name is not None):
        raise UserError("coterie reproduce takes either the name of a recipe or --list")
    if name is None:
        known = {each: Recipe.load(each) for each in recipes()}
        rows = [
            {"name": each, "covers": _covers(recipe), "what": recipe.title, "paper": recipe.paper, "scales": _takes(recipe)}
            for each, recipe in known.items()
        ]
        if as_json:
            sys.stdout.write(to_json(rows) + "\n")
        else:
            shown = ("name", "covers", "what", "scales")
            console.print(simple("recipes", shown, [tuple(row[key] for key in shown) for row in rows]))
        return
    recipe = Recipe.load(name)
    where = runs or Path("runs") / "reproduce" / Path(name).stem
    with watched(study.arms_for(recipe, scale, where, data, earlier), None, quiet=quiet or as_json) as watch:
        result = study.reproduce(recipe, scale, watch, runs=where, data=data, jobs=jobs, done=done, earlier=earlier)
    folder = out or where / scale
    result.write(folder)
    if as_json:
        sys.stdout.write(to_json(result.table()) + "\n")
        return
    console.print(*result.sheets(), sep="\n")
    for sentence in ("what differs from the paper:", *recipe.scales[scale].differs):
        say(sentence)
    say(f"written to {folder}: result.html is the page to look at")


def _covers(recipe: Recipe) -> str:
    """Tables and figures, and the claims that are tested on them."""
    claims = dict.fromkeys(claim.number for claim in recipe.claims if claim.number)
    return "; ".join(filter(None, (", ".join(recipe.covers), f"claims {', '.join(claims)}" if claims else "")))


def _takes(recipe: Recipe) -> str:
    return "; ".join(f"{name}: {scale.takes}" for name, scale in recipe.scales.items())
