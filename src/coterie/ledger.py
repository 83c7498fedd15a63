"""The ledger: every exchange, evaluation, rejected reply and second of a run, one JSON object a line, append-only.

Its first line is the resolved experiment, the seed and the versions. A resumed run drops the lines of the round that was
under way when it stopped (its work is done again) and says so in a `resume` line. Nothing here needs torch.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

from coterie.errors import UserError

__all__ = ["Event", "Ledger", "Listener", "events"]

Event: TypeAlias = dict[str, Any]
Listener: TypeAlias = Callable[[Event], None]
"""A callback: it is given every event as it is written. `coterie.cli.trackers` opens with an example of a user's own."""


class Ledger:
    """Writes events to a file and tells listeners.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "ledger.jsonl"
    >>> with Ledger(path, [lambda event: print("heard", event["event"])]) as ledger:
    ...     ledger.write("round", round=1, seconds=0.5)
    heard round
    >>> list(events(path))
    [{'event': 'round', 'round': 1, 'seconds': 0.5}]
    """

    def __init__(self, path: Path, listeners: Sequence[Listener] = ()) -> None:
        self._file = path.open("a", encoding="utf-8")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # goes with the process, however it ends
        except BlockingIOError:
            self._file.close()
            raise UserError(f"the run in {path.parent} is still going on in another process: wait for it, or stop it") from None
        self._listeners = listeners

    def write(self, event: str, **fields: Any) -> None:
        """Append one event."""
        line: Event = {"event": event, **fields}
        self._file.write(json.dumps(line, separators=(",", ":")) + "\n")
        for listener in self._listeners:
            listener(line)

    def commit(self) -> int:
        """Put everything on disk; the file's length then."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()


def events(path: Path) -> Iterator[Event]:
    """The whole events of a ledger, in order; reading ends at a line that was only half written."""
    if not path.is_file():
        raise UserError(f"there is no ledger in {path.parent}: expected a file {path.name}")
    with path.open(encoding="utf-8") as file:
        for line in file:
            if not line.endswith("\n"):
                return
            try:
                yield json.loads(line)
            except json.JSONDecodeError:
                return
