"""Pools and partitions as files that every process maps: one copy of the data in memory, whoever looks at it."""

from __future__ import annotations

import json
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.data.pool import Partition, Pool, Ragged

__all__ = ["lay_down", "map_again"]


def lay_down(part: Pool | Partition | Ragged, folder: Path, name: str) -> None:
    """Put the arrays of something into a folder; its own are mapped from there from now on.

    >>> import tempfile
    >>> folder, rows = Path(tempfile.mkdtemp()), Ragged.of([[4, 5], [6]])
    >>> lay_down(rows, folder, "rows")
    >>> sorted(path.name for path in folder.iterdir()), map_again(Ragged, folder, "rows")[0].tolist()
    (['rows.flat.npy', 'rows.json', 'rows.offsets.npy'], [4, 5])
    """
    plain: dict[str, Any] = {}
    for each in fields(part):
        value = getattr(part, each.name)
        if isinstance(value, np.ndarray):
            _save(value, path := folder / f"{name}.{each.name}.npy")
            object.__setattr__(part, each.name, _mapped(path))
        elif isinstance(value, Ragged):
            lay_down(value, folder, f"{name}.{each.name}")
        else:
            plain[each.name] = value
    (folder / f"{name}.json").write_text(json.dumps(plain))


def map_again(kind: type[Any], folder: Path, name: str) -> Any:
    """What `lay_down` put there, its arrays mapped read-only in effect: writes would stay private."""
    plain = json.loads((folder / f"{name}.json").read_text())
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in plain.items()}
    for each in fields(kind):
        path = folder / f"{name}.{each.name}.npy"
        if path.exists():
            values[each.name] = _mapped(path)
        elif (folder / f"{name}.{each.name}.json").exists():
            values[each.name] = map_again(Ragged, folder, f"{name}.{each.name}")
    return kind(**values)


def _save(value: NDArray[Any], path: Path) -> None:
    """Write an array; one that is a file's already gets one more name."""
    path.unlink(missing_ok=True)  # never into what it is another name of
    if not _linked(value, path):
        np.save(path, value)


def _linked(value: NDArray[Any], path: Path) -> bool:
    mapped = value.base
    if not isinstance(mapped, np.memmap) or mapped.filename is None:
        return False
    try:
        whole = np.load(mapped.filename, mmap_mode="r")
        alike = value.ctypes.data == mapped.ctypes.data and _form(value) == _form(mapped) == _form(whole)
        if alike:
            os.link(mapped.filename, path)
        return alike
    except (OSError, ValueError):  # another disk, or gone
        return False


def _form(value: NDArray[Any]) -> tuple[Any, ...]:
    return value.shape, value.dtype, value.strides


def _mapped(path: Path) -> NDArray[Any]:
    """An array in a file. Mode "c": torch warns of arrays that cannot be written; pages stay shared as nobody writes."""
    array: NDArray[Any] = np.load(path, mmap_mode="c").view(np.ndarray)  # what travels to a cluster is an array like others
    return array
