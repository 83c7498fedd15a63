"""What lies in a folder of runs: each with its state, accuracy and bytes; and what could be made again. Nothing here needs torch."""

from __future__ import annotations

import fcntl
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.errors import CoterieError, UserError
from coterie.ledger import LEDGER, events
from coterie.results.frames import ledgers_in
from coterie.results.summary import summary_in

__all__ = ["Listed", "going_on", "inventory", "removable", "remove"]

MADE_AGAIN = ("checkpoint.safetensors", "checkpoint.previous.safetensors", "memory/*.safetensors", "report.html")
"""Of a finished run, what is only needed to go on with it or to take models out, and what is made of its ledger."""


@dataclass(frozen=True)
class Listed:
    """One run."""

    folder: Path
    name: str
    method: str
    seed: int
    rounds: int
    state: str
    """`finished`, `going on`, `stopped`, or `damaged`."""
    protocol: str | None
    accuracy: float | None
    """The last under the first protocol."""
    sent: int
    """Bytes, up and down, setup included."""
    disk: int


def inventory(*folders: Path) -> list[Listed]:
    """Every run in and below some folders; one that is linked from elsewhere is there once.

    >>> inventory(Path("no/such/folder"))
    Traceback (most recent call last):
    ...
    coterie.errors.UserError: there is no run in no/such/folder: expected folders with a file ledger.jsonl in or below them
    """
    return [_listed(folder) for folder in _folders(folders)]


def going_on(folder: Path) -> bool:
    """Whether a process is writing the ledger in a folder: it holds a lock on it, however it ends.

    >>> going_on(Path("no/such/folder"))
    False
    """
    try:
        with (folder / LEDGER).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def removable(*folders: Path) -> list[Path]:
    """Files of finished runs that could be made again, and models that were only pretrained to be shared."""
    finished = [folder for folder in _folders(folders) if summary_in(folder) is not None and not going_on(folder)]
    files = [path for folder in finished for pattern in MADE_AGAIN for path in sorted(folder.glob(pattern))]
    above = dict.fromkeys(folder.parent for folder in finished)
    return files + [path for folder in above for path in sorted(folder.glob("pretrained/*/*")) if path.is_file()]


def remove(files: Iterable[Path]) -> None:
    """Remove files, and the folders that are then empty."""
    for path in files:
        path.unlink(missing_ok=True)
        with suppress(OSError):
            path.parent.rmdir()


def _folders(folders: Iterable[Path]) -> list[Path]:
    real: dict[Path, Path] = {}
    for folder in folders:
        for ledger in ledgers_in(folder):
            real.setdefault(ledger.parent.resolve(), ledger.parent)
    if not real:
        raise UserError(f"there is no run in {', '.join(map(str, folders))}: expected folders with a file {LEDGER} in or below them")
    return list(real.values())


def _listed(folder: Path) -> Listed:
    summary, start, state = summary_in(folder), dict[str, Any](), "stopped"
    try:
        start = next(events(folder / LEDGER), {})
    except CoterieError:
        state = "damaged"
    if going_on(folder):
        state = "going on"
    elif summary is not None:
        state = "finished"
    experiment = start.get("experiment", {})
    protocol = next(iter((summary or {}).get("protocols", {})), None)
    return Listed(
        folder,
        experiment.get("name", folder.name),
        experiment.get("method", {}).get("name", "-"),
        int(start.get("seed", 0)),
        int((summary or {}).get("rounds", 0)),
        state,
        protocol,
        None if summary is None or protocol is None else summary["protocols"][protocol]["accuracy"]["last"],
        0 if summary is None else sum(value for key, value in summary["bytes"].items() if key in WAYS),
        sum(path.stat().st_size for path in _files(folder)),
    )


WAYS = ("up", "down", "setup_up", "setup_down")


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file())
