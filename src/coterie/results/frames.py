"""Ledgers as pandas tables: one row for each event, for whoever wants to look for themselves. pandas is an extra."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.errors import UserError
from coterie.ledger import LEDGER, events

if TYPE_CHECKING:
    import pandas

__all__ = ["frame", "frames", "ledgers_in"]

ABOUT = ("run", "name", "method", "seed")
"""Columns that say which run an event is of."""


def frame(folder: Path | str) -> pandas.DataFrame:
    """Every event of a run as a row; what an event does not have is missing."""
    return _pandas().DataFrame(list(events(Path(folder) / LEDGER)))


def frames(*folders: Path | str) -> pandas.DataFrame:
    """Every event of every run in and below some folders as a row, with the run, its name, method and seed.

    >>> frames("no/such/folder")
    Traceback (most recent call last):
    ...
    coterie.errors.UserError: there is no run in no/such/folder: expected folders with a file ledger.jsonl in or below them
    """
    rows = [row for folder in folders for ledger in ledgers_in(Path(folder)) for row in _rows(ledger)]
    if not rows:
        raise UserError(f"there is no run in {', '.join(map(str, folders))}: expected folders with a file {LEDGER} in or below them")
    found = _pandas().DataFrame(rows)
    return found[[*ABOUT, *(column for column in found.columns if column not in ABOUT)]]


def ledgers_in(folder: Path) -> list[Path]:
    """The ledgers of the runs in a folder and up to three levels below it; what is linked is found under its own name too.

    >>> ledgers_in(Path("no/such/folder"))
    []
    """
    return sorted(path for depth in ("", "*/", "*/*/", "*/*/*/") for path in folder.glob(f"{depth}{LEDGER}"))


def _rows(ledger: Path) -> Iterator[dict[str, Any]]:
    about: dict[str, Any] = {}
    for event in events(ledger):
        if event["event"] == "start":
            experiment = event["experiment"]
            about = {"name": experiment["name"], "method": experiment["method"]["name"], "seed": event["seed"]}
        yield {**event, "run": str(ledger.parent), **about}


def _pandas() -> Any:
    try:
        return importlib.import_module("pandas")
    except ImportError:
        raise UserError('frames need pandas, an extra: pip install "coterie[pandas]"') from None
