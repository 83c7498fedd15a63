"""Published data sets as they were read, kept in the user's cache as arrays, so that later runs map them and read nothing.

What is the user's own is not: nobody would look for a second copy of patients' images there. A pool is found by the bytes of the files
that it comes from, the settings of its source and this package's code, so never one that is out of date; and it is what was kept, by its
checksums, or it is read again. `rm -r` of the folder loses nothing.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import time
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields
from pathlib import Path

import numpy as np
import pooch

from coterie.data.arrays import lay_down, map_again
from coterie.data.hashes import digest_of
from coterie.data.pool import Pool
from coterie.data.sources import SOURCES, Source

__all__ = ["cache_folder", "load"]

LONG = 0.1
"""Seconds of reading from which on a pool is kept."""
MOST = 2 * 2**30
"""Bytes of all that is kept: beyond it goes what was used least recently."""
SUMS = "sums.json"


def load(source: Source, folder: Path) -> Pool:
    """The pool of a source, from the files under `folder` or as an earlier run read them.

    >>> from coterie.data.sources import Digits
    >>> len(load(Digits(), Path("nowhere")))  # too quickly read to be kept
    1797
    """
    place = _place(source, folder)
    pool = None if place is None else _found(place)
    if pool is not None:
        return pool
    began = time.perf_counter()
    pool = source.load(folder)
    if place is not None and time.perf_counter() - began >= LONG and pool.x.nbytes <= MOST:
        with suppress(OSError):  # a cache that cannot be written is no reason to stop
            return _kept(pool, place)
    return pool


def cache_folder() -> Path:
    """Where pools are kept: beside the folder where data lie by default, and so never in it.

    >>> cache_folder().name
    'coterie-decoded'
    """
    return Path(f"{pooch.os_cache('coterie')}-decoded")


def _place(source: Source, folder: Path) -> Path | None:
    """Where its pool would be; None for the user's own data, and where nobody knows all that decides about a pool: own code, no files."""
    if source.licence == Source.licence or not type(source).__module__.startswith("coterie."):
        return None
    files = list(source.reads(folder))
    about = [digest_of(files), json.dumps(SOURCES.dump(source), sort_keys=True, default=str), _code()]
    return cache_folder() / hashlib.sha256("\n".join(about).encode()).hexdigest()[:32] if files else None


@functools.cache
def _code() -> str:
    """The code that reads data."""
    package = Path(__file__).parent
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(package.rglob("*.py")))).hexdigest()


def _found(place: Path) -> Pool | None:
    try:
        sums = json.loads((place / SUMS).read_text())
        pool: Pool = map_again(Pool, place, "pool")
        if dict(_sums(pool, place)) == sums:
            os.utime(place)
            return pool
    except (OSError, EOFError, ValueError, TypeError):  # none yet, or damaged, such as by a power cut
        pass
    shutil.rmtree(place, ignore_errors=True)
    return None


def _kept(pool: Pool, place: Path) -> Pool:
    """The same, as later runs will have it."""
    _make_room(pool.x.nbytes)
    partial = place.with_name(f".{place.name}.{os.getpid()}")
    try:
        partial.mkdir(parents=True)
        lay_down(pool, partial, "pool")
        (partial / SUMS).write_text(json.dumps(dict(_sums(pool, partial))))
        partial.rename(place)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    again: Pool = map_again(Pool, place, "pool")
    return again


def _sums(pool: Pool, place: Path) -> Iterator[tuple[str, int]]:
    """Of each array, and of all that is not one."""
    for each in fields(pool):
        value = getattr(pool, each.name)
        if isinstance(value, np.ndarray):
            yield each.name, zlib.crc32(np.ascontiguousarray(value).data.cast("B")) if value.size else 0
    yield "rest", zlib.crc32((place / "pool.json").read_bytes())


def _make_room(needed: int) -> None:
    """Let go of what was used least recently, so that so many bytes fit; what killed writers have left is among it."""
    there = sorted(filter(Path.is_dir, cache_folder().glob("*")), key=lambda path: path.stat().st_mtime)
    sizes = {path: sum(each.stat().st_size for each in path.iterdir()) for path in there}
    for path in there:
        if sum(sizes.values()) + needed <= MOST:
            return
        shutil.rmtree(path, ignore_errors=True)
        del sizes[path]
