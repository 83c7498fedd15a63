"""The ledger: every exchange, evaluation, rejected reply and second of a run, one JSON object a line, append-only.

Its first line is the resolved experiment, the seed and the versions. A resumed run drops the lines of the round that was
under way when it stopped (its work is done again) and says so in a `resume` line. A running checksum of its bytes goes into every
checkpoint, so that a line that changed since is found before anything is made of it. Nothing here needs torch.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple, TypeAlias

from coterie.durable import naming
from coterie.errors import RunError, UserError

__all__ = ["LEDGER", "Event", "Ledger", "Listener", "Mark", "check", "events", "finite", "parse", "to_json", "value_of"]

Event: TypeAlias = dict[str, Any]
Listener: TypeAlias = Callable[[Event], None]
"""A callback: it is given every event as it is written. `coterie.cli.trackers` opens with an example of a user's own."""


LEDGER = "ledger.jsonl"
"""What it is called in a run's folder."""
CHUNK = 1 << 20
ENCODED = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def to_json(value: Any, **how: Any) -> str:
    """Its text, for every reader of JSON: a number that is none (nan, infinite) is null.

    >>> to_json({"loss": float("nan"), "steps": 3})
    '{"loss": null, "steps": 3}'
    """
    try:
        return json.dumps(value, allow_nan=False, **how)
    except ValueError:
        return json.dumps(finite(value), allow_nan=False, **how)


def finite(value: Any) -> Any:
    """The same with None in place of what JSON has no word for.

    >>> finite([1.0, {"a": float("inf")}])
    [1.0, {'a': None}]
    """
    if isinstance(value, Mapping):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def value_of(said: float | None) -> float:
    """What a number in an event was: of all that are none, nan.

    >>> value_of(0.5), value_of(None)
    (0.5, nan)
    """
    return math.nan if said is None else float(said)


class Mark(NamedTuple):
    """What a ledger was at some moment: how long, and the SHA-256 of its bytes so far."""

    bytes: int
    sha256: str


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
        self._path = path
        self._file = path.open("ab")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # goes with the process, however it ends
        except BlockingIOError:
            self._file.close()
            raise UserError(f"the run in {path.parent} is still going on in another process: wait for it, or stop it") from None
        self._listeners = listeners
        self._sha = _hashed(path, self._file.tell())

    def write(self, event: str, **fields: Any) -> None:
        """Append one event."""
        line: Event = {"event": event, **fields}
        try:
            text = ENCODED(line)
        except ValueError:
            line = finite(line)
            text = ENCODED(line)
        data = text.encode() + b"\n"
        self._sha.update(data)
        with naming(self._path):
            self._file.write(data)
        for listener in self._listeners:
            listener(line)

    def commit(self, *, sync: bool = True) -> Mark:
        """Put everything on disk; what the file is then."""
        with naming(self._path):
            self._file.flush()
            if sync:
                os.fsync(self._file.fileno())
        return Mark(self._file.tell(), self._sha.hexdigest())

    def cut(self, length: int | None) -> int:
        """Shorten the file to its first `length` bytes (None: to its first line); how many bytes went."""
        self._file.flush()
        whole = self._file.seek(0, os.SEEK_END)
        keep = _first_line(self._path) if length is None else length
        if keep > whole:  # to make it longer would fill it up with zeros
            raise RunError(f"{self._path} is damaged: it has {whole:,} bytes, of {keep:,} that the run had written")
        self._file.truncate(keep)
        self._file.seek(keep)
        self._sha = _hashed(self._path, keep)
        return whole - keep

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with naming(self._path):
            self._file.close()


def events(path: Path) -> Iterator[Event]:
    """The whole events of a ledger, in order; reading ends at a last line that was only half written.

    A line that is none, with others after it, is damage: the sentence names the file and the line.
    """
    if not path.is_file():
        raise UserError(f"there is no ledger in {path.parent}: expected a file {path.name}")
    broken = None
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if broken is not None:
                raise RunError(f"{path} is damaged in line {broken}: it is not an event")
            event = parse(line)
            if event is None:
                broken = number
            else:
                yield event


def check(path: Path, marks: Sequence[Mark]) -> None:
    """Compare a ledger with what it was at some moments, the earliest first; a difference is a sentence that says where.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "ledger.jsonl"
    >>> with Ledger(path) as ledger:
    ...     ledger.write("round", round=1)
    ...     marks = [ledger.commit()]
    >>> check(path, marks)
    >>> _ = path.write_bytes(path.read_bytes().replace(b"1", b"2"))
    >>> check(path, marks)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    coterie.errors.RunError: .../ledger.jsonl is damaged in line 1: it is not what the run wrote, or its checkpoint is of another run; ...
    """
    sha, at = hashlib.sha256(), 0
    with path.open("rb") as file:
        for mark in marks:
            _feed(sha, file, mark.bytes - at)
            if sha.hexdigest() != mark.sha256:
                what = f"{_where(path, at, mark.bytes)}{'' if at else ', or its checkpoint is of another run'}"
                raise RunError(f"{path} is damaged {what}; nothing was changed, a copy of the file would be of use")
            at = mark.bytes


def parse(line: bytes) -> Event | None:
    """The event in a line, or None where there is none."""
    try:
        found = json.loads(line) if line.endswith(b"\n") else None
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("event"), str) else None


def _where(path: Path, begin: int, end: int) -> str:
    """In which line, or between which, a ledger is not what it was; all before `begin` is sound."""
    at = number = first = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            at += len(line)
            if at > begin:
                first = first or number
                if parse(line) is None:
                    return f"in line {number}: it is not an event"
            if at >= end:
                break
    lost = f"{end - at:,} bytes are missing" if at < end else "it is not what the run wrote"
    if first == 0:
        return f"after line {number}: {lost}"
    return f"in line {number}: {lost}" if first == number else f"somewhere between line {first} and line {number}: {lost}"


def _feed(sha: hashlib._Hash, file: BinaryIO, length: int) -> None:
    while length > 0 and (chunk := file.read(min(length, CHUNK))):
        sha.update(chunk)
        length -= len(chunk)


def _hashed(path: Path, length: int) -> hashlib._Hash:
    """The SHA-256 of a file's first bytes, ready to go on."""
    sha = hashlib.sha256()
    with path.open("rb") as file:
        _feed(sha, file, length)
    return sha


def _first_line(path: Path) -> int:
    with path.open("rb") as file:
        return len(file.readline())
