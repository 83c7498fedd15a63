"""SVHN, the cropped house numbers (Netzer et al., 2011): two Matlab files, where label 10 is the digit 0."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np

from coterie.data.pool import Pool
from coterie.data.sources.base import File, Parted
from coterie.data.sources.blocks import Block, block, build, reading
from coterie.errors import UserError
from coterie.settings import spec

__all__ = ["Svhn"]

ROOT = "http://ufldl.stanford.edu/housenumbers/"


def read_mat(path: Path) -> Block:
    """Images (stored H x W x C x N) and labels of one file."""
    from scipy.io import loadmat  # here, because few runs need it

    with reading(path):
        held = loadmat(path, variable_names=["X", "y"])
        if "X" not in held or "y" not in held:
            raise UserError(f"{path} lacks X or y")
        x, labels = np.asarray(held["X"]).transpose(3, 2, 0, 1), np.asarray(held["y"]).reshape(-1).astype(np.int64)
    outside = labels[(labels < 1) | (labels > 10)]
    if len(outside):
        raise UserError(f"{path} holds the label {outside[0]}, but labels must be 1..10")
    return block(x, labels % 10, 10, path)


@spec
class Svhn(Parted):
    """SVHN from `svhn/train_32x32.mat` and `svhn/test_32x32.mat`, or the part `svhn-6k.npz`."""

    name: ClassVar[str] = "svhn"
    licence: ClassVar[str] = "non-commercial use only"
    homepage: ClassVar[str] = "http://ufldl.stanford.edu/housenumbers/"
    part_file: ClassVar[str] = "svhn-6k.npz"
    samples: ClassVar[tuple[int, int]] = (73_257, 26_032)
    mean: ClassVar[tuple[float, ...]] = (0.4377, 0.4438, 0.4728)
    std: ClassVar[tuple[float, ...]] = (0.1980, 0.2010, 0.1970)
    files: ClassVar[tuple[File, ...]] = (
        File("svhn/train_32x32.mat", "md5:e26dedcc434d2e4c54c9b2d4a06d8373", (ROOT + "train_32x32.mat",), 182_040_794),
        File("svhn/test_32x32.mat", "md5:eb5a983be6a315427106f1b164d9cef3", (ROOT + "test_32x32.mat",), 64_275_384),
    )

    def complete(self, paths: tuple[Path, ...]) -> Pool:
        self.check(paths)  # before scipy sees them: its parser is large, and this format is not made for strangers
        train, test = map(read_mat, paths)
        return build([train], [test], **self.about())
