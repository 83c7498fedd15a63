"""Digests of files, each hashed once: remembered by path, size and time of change in the user's cache, never beside the data."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pooch

__all__ = ["digest_of"]

RECENT = 2_000_000_000
"""In nanoseconds. A file changed within this is not remembered: where clocks are coarse, a second change would have the same time."""


def digest_of(paths: Iterable[Path]) -> str:
    """SHA-256 of some files: of their bytes, and of their names below the folder that they have in common.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.bin").write_bytes(b"1")
    >>> before = digest_of([folder / "a.bin"])
    >>> _ = (folder / "a.bin").write_bytes(b"2")
    >>> before == digest_of([folder / "a.bin"])
    False
    """
    files = sorted(path.absolute() for path in paths)
    root = os.path.commonpath([path.parent for path in files]) if files else ""
    known, found = _remembered(), dict[str, Any]()
    sha = hashlib.sha256()
    for path in files:
        digest, entry = _digest(path, known.get(str(path)))
        sha.update(f"{path.relative_to(root).as_posix()}\0{digest}\n".encode())
        found |= {str(path): entry} if entry else {}
    if any(known.get(path) != entry for path, entry in found.items()):
        _remember(_remembered() | found)
    return sha.hexdigest()


def _digest(path: Path, known: Any) -> tuple[str, list[Any] | None]:
    """A file's digest, and what to remember of it, if that is safe."""
    stat = path.stat()
    size, changed = stat.st_size, stat.st_mtime_ns
    if isinstance(known, list) and known[:2] == [size, changed]:
        return str(known[2]), known
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return digest, None if time.time_ns() - changed < RECENT else [size, changed, digest]


def _memory() -> Path:
    """Beside the folder where data lie by default, and so never in it."""
    return Path(f"{pooch.os_cache('coterie')}-hashes.json")


def _remembered() -> dict[str, Any]:
    try:
        table = json.loads(_memory().read_text(encoding="utf-8"))
    except (OSError, ValueError):  # none yet, or damaged: everything is hashed again
        return {}
    return table if isinstance(table, dict) else {}


def _remember(table: dict[str, Any]) -> None:
    """Of two processes that write at once one wins, and the other's files are hashed again."""
    path = _memory()
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    with suppress(OSError):  # a cache that cannot be written is no reason to stop
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(table), encoding="utf-8")
        os.replace(partial, path)
