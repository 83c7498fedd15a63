"""Any `.npz` with `x_train`, `y_train`, `x_test` and `y_test`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from coterie.data.pool import Pool
from coterie.data.sources.base import Found, Source
from coterie.data.sources.blocks import build, npz_counts, read_npz
from coterie.own import file_at
from coterie.settings import spec

__all__ = ["Npz"]


@spec
class Npz(Source):
    """Arrays of your own: images as uint8, numbers of any shape, token ids as whole numbers in rows; classes are numbered from 0."""

    name: ClassVar[str] = "npz"
    how: ClassVar[str] = 'say where: path = "a/file.npz", with x_train, y_train, x_test and y_test'

    path: str
    """A relative path is under the data folder, beside the experiment file, or under the current folder."""

    def candidates(self, folder: Path) -> list[tuple[Path, ...]]:
        return [(file_at(self.path, folder),)]

    def found(self, folder: Path) -> Found | None:
        (paths,) = self.candidates(folder)
        return Found(paths, npz_counts(paths[0])) if paths[0].is_file() else None

    def read(self, found: Found) -> Pool:
        train, test = read_npz(found.paths[0], tested=True)
        mean, std = _moments(train.x)
        return build([train], [test], classes=1 + int(max(train.y.max(initial=0), test.y.max(initial=0))), mean=mean, std=std)


def _moments(x: NDArray[Any]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """What images are normalised by is a half, as ever; other numbers, by what the training samples have along the first axis."""
    if x.dtype == np.uint8:
        return (0.5,) * x.shape[1], (0.5,) * x.shape[1]
    if x.dtype == np.int32:
        return (0.0,), (1.0,)
    others = (0, *range(2, x.ndim))
    mean, std = x.mean(others, dtype=np.float64), x.std(others, dtype=np.float64)
    return tuple(mean.tolist()), tuple(np.where(std > 0, std, 1.0).tolist())
