"""`coterie list`: what can be named in an experiment, and the settings of each."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Annotated

import typer

from coterie.cli.catalogue import Entry, Kind, entries, entry
from coterie.cli.options import Json
from coterie.cli.sentences import console, say
from coterie.errors import UserError, nearest

__all__ = ["list_command"]


def _names(context: typer.Context) -> list[str]:
    """What a shell completes after a kind."""
    kind = context.params.get("kind")
    return list(entries(Kind(kind))) if kind in list(Kind) else []


def list_command(
    kind: Annotated[str | None, typer.Argument(help=f"What to list: {', '.join(Kind)}.", autocompletion=lambda: list(Kind))] = None,
    name: Annotated[
        str | None, typer.Argument(help="One of them, or your own as package.module:Name: all its settings.", autocompletion=_names)
    ] = None,
    as_json: Json = False,
) -> None:
    """What can be named in an experiment; with a name, every setting of it."""
    if kind is None:
        _tell_kinds(as_json)
    elif kind not in list(Kind):
        raise UserError(f"coterie list {kind}: no such kind of thing, {nearest(kind, Kind)}")
    elif name is None:
        _tell_all(Kind(kind), as_json)
    else:
        _tell(entry(Kind(kind), name), as_json)


def _tell_kinds(as_json: bool) -> None:
    from coterie.results.tables import simple

    found = {kind.value: list(entries(kind)) for kind in Kind}
    if as_json:
        sys.stdout.write(json.dumps(found) + "\n")
    else:
        console.print(simple("what can be listed", ["kind", "what there is"], [(kind, ", ".join(names)) for kind, names in found.items()]))
        say("what each is: coterie list methods; settings of one: coterie list methods fedprox")


def _tell_all(kind: Kind, as_json: bool) -> None:
    from coterie.results.tables import simple

    rows = [{"name": each.name, "what": each.what} for each in entries(kind).values()]
    if as_json:
        sys.stdout.write(json.dumps(rows) + "\n")
    else:
        console.print(simple(kind.value, ["name", "what it is"], [tuple(row.values()) for row in rows]))
        say(f"settings of one: coterie list {kind.value} {rows[0]['name']}")


def _tell(found: Entry, as_json: bool) -> None:
    from coterie.results.tables import simple

    if as_json:
        sys.stdout.write(json.dumps(dataclasses.asdict(found)) + "\n")
        return
    for sentence in dict.fromkeys(filter(None, (found.source, found.what))):
        say(sentence)
    if found.settings:
        rows = [(each.name, each.default, each.sentence) for each in found.settings]
        console.print(simple(f"{found.name}: settings", ["key", "default", "what it is"], rows))
