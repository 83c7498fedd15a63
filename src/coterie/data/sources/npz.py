"""Any `.npz` with `x_train`, `y_train`, `x_test` and `y_test`."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from coterie.data.pool import Pool
from coterie.data.sources.base import Found, Source
from coterie.data.sources.blocks import build, npz_counts, read_npz
from coterie.settings import spec

__all__ = ["Npz"]


@spec
class Npz(Source):
    """Images as uint8, N x H x W or N x H x W x C or N x C x H x W; there are as many classes as the largest label says."""

    name: ClassVar[str] = "npz"
    how: ClassVar[str] = 'say where: path = "a/file.npz", with x_train, y_train, x_test and y_test'

    path: str
    """A relative path is under the data folder."""

    def candidates(self, folder: Path) -> list[tuple[Path, ...]]:
        return [(folder / Path(self.path).expanduser(),)]

    def found(self, folder: Path) -> Found | None:
        (paths,) = self.candidates(folder)
        return Found(paths, npz_counts(paths[0])) if paths[0].is_file() else None

    def read(self, found: Found) -> Pool:
        train, test = read_npz(found.paths[0], tested=True)
        half = (0.5,) * train.x.shape[1]
        return build([train], [test], classes=1 + int(max(train.y.max(initial=0), test.y.max(initial=0))), mean=half, std=half)
