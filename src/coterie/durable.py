"""Files that survive a kill and a power cut: written under another name, synced, renamed, and the folder synced, in that order.

Everything that a later run or a person relies on is written here. A rename alone protects from a kill; only the syncs protect
from a power cut, after which a file that was renamed but not synced may be empty. `sync=False` leaves them out, for those who
can afford to lose a run and not the milliseconds.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias

__all__ = ["PART", "litter", "make_folder", "naming", "place", "sync_file", "sync_folder", "write"]

PART = ".part"
"""How the name of a file ends that is still being written; what is left of a killed writer."""

Buffer: TypeAlias = bytes | bytearray | memoryview


def write(path: Path, *pieces: Buffer | str, sync: bool = True, keep: Path | None = None) -> int:
    """Write a file whole or not at all; its size. Whoever looks finds the old file or the new one, never half of one.

    The file that it replaces goes to `keep`, if that is given.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> write(folder / "summary.json", '{"rounds": 3}'), [path.name for path in folder.iterdir()]
    (13, ['summary.json'])
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}{PART}")
    try:
        with naming(path, partial), partial.open("wb") as file:
            file.writelines(piece.encode() if isinstance(piece, str) else piece for piece in pieces)
            size = file.tell()
            if sync:
                file.flush()
                os.fsync(file.fileno())
        with naming(path, partial):
            if keep is not None and path.exists():
                os.replace(path, keep)
            os.replace(partial, path)
        if sync:
            sync_folder(path.parent)
    except BaseException:  # a full disk, a missing folder, Ctrl-C: nothing half-written stays
        partial.unlink(missing_ok=True)
        raise
    return size


def place(partial: Path, path: Path, *, sync: bool = True) -> None:
    """Give a finished file its name, for good.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "x.part").write_text("x")
    >>> place(folder / "x.part", folder / "x")
    >>> [path.name for path in folder.iterdir()]
    ['x']
    """
    if sync:
        sync_file(partial)
    os.replace(partial, path)
    if sync:
        sync_folder(path.parent)


def sync_file(path: Path) -> None:
    """Wait until a file's bytes are on the disk; whoever wrote them."""
    _sync(path, os.O_RDONLY)


def sync_folder(path: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def make_folder(path: Path, *, sync: bool = True) -> None:
    """Make a folder and those above it that are missing, and have their names on the disk.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp()) / "a" / "b"
    >>> make_folder(folder)
    >>> folder.is_dir()
    True
    """
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in reversed(missing) if sync else ():
        sync_folder(folder.parent)


@contextmanager
def naming(path: Path, partial: Path | None = None) -> Iterator[None]:
    """An error of the disk in here names this file: writing does not say by itself what it wrote to, nor what `partial` is to become.

    >>> with naming(Path("ledger.jsonl")):
    ...     raise OSError(28, "No space left on device")
    Traceback (most recent call last):
    ...
    OSError: [Errno 28] No space left on device: 'ledger.jsonl'
    """
    try:
        yield
    except OSError as error:
        if error.filename in (None, partial, str(partial)):
            error.filename = str(path)
        raise


def litter(folder: Path) -> Iterable[Path]:
    """What killed writers left half-written in a folder."""
    return folder.glob(f".*{PART}")


def _sync(path: Path, how: int) -> None:
    handle = os.open(path, how)
    try:
        with naming(path):
            os.fsync(handle)
    finally:
        os.close(handle)
