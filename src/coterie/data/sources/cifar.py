"""CIFAR-10 and CIFAR-100 (Krizhevsky, 2009): python batches, and for CIFAR-10 also binary ones.

Python batches are pickles. They are compared with their published checksums, and then read by `batches`, which calls nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np

from coterie.data.pool import Pool
from coterie.data.sources import batches
from coterie.data.sources.base import File, Parted
from coterie.data.sources.blocks import Block, block, build, read_bytes, reading
from coterie.errors import UserError
from coterie.settings import spec

__all__ = ["Cifar10", "Cifar100", "read_batch", "read_binary"]

ROOTS = ("https://www.cs.toronto.edu/~kriz/", "https://cave.cs.toronto.edu/kriz/")
ROW = 1 + 3 * 32 * 32
LARGEST = 2**28
"""Bytes of a batch; the largest published one has 155 million."""


def read_batch(path: Path, key: str, classes: int) -> Block:
    """Images and the labels under `key` of one python batch."""
    with reading(path):
        held = batches.load(read_bytes(path, LARGEST))
        labels = held.get(key)
        if "data" not in held or labels is None:
            raise UserError(f"{path} lacks data or {key}")
        if not isinstance(labels, list) or not all(type(label) is int and 0 <= label < 256 for label in labels):
            raise UserError(f"{path} holds {key} that are not whole numbers")
        return block(np.asarray(held["data"]).reshape(-1, 3, 32, 32), np.asarray(labels), classes, path)


def read_binary(path: Path) -> Block:
    """Images and labels of one binary batch: a label byte, then 3 x 32 x 32 pixels, again and again."""
    with reading(path):
        rows = np.frombuffer(read_bytes(path, LARGEST), np.uint8).reshape(-1, ROW)
    return block(rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0], 10, path)


def archive(name: str, md5: str, size: int, members: Mapping[str, str]) -> File:
    """A tar file on the author's page and the batches in it."""
    return File(name, f"md5:{md5}", tuple(root + name for root in ROOTS), size, {path: f"md5:{hash}" for path, hash in members.items()})


@spec
class Cifar10(Parted):
    """CIFAR-10 from `cifar-10-batches-bin/`, from `cifar-10-batches-py/`, or the part `cifar10-10k.npz`."""

    name: ClassVar[str] = "cifar10"
    licence: ClassVar[str] = "none stated; cite Krizhevsky 2009"
    homepage: ClassVar[str] = "https://www.cs.toronto.edu/~kriz/cifar.html"
    part_file: ClassVar[str] = "cifar10-10k.npz"
    samples: ClassVar[tuple[int, int]] = (50_000, 10_000)
    mean: ClassVar[tuple[float, ...]] = (0.4914, 0.4822, 0.4465)
    std: ClassVar[tuple[float, ...]] = (0.2470, 0.2435, 0.2616)
    files: ClassVar[tuple[File, ...]] = (
        archive(
            "cifar-10-python.tar.gz",
            "c58f30108f718f92721af3b95e74349a",
            170_498_071,
            {
                "cifar-10-batches-py/data_batch_1": "c99cafc152244af753f735de768cd75f",
                "cifar-10-batches-py/data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
                "cifar-10-batches-py/data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
                "cifar-10-batches-py/data_batch_4": "634d18415352ddfa80567beed471001a",
                "cifar-10-batches-py/data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
                "cifar-10-batches-py/test_batch": "40351d587109b95175f43aff81a1287e",
            },
        ),
    )

    def candidates(self, folder: Path) -> list[tuple[Path, ...]]:
        names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
        binary = tuple(folder / "cifar-10-batches-bin" / f"{name}.bin" for name in names)
        return [binary, tuple(folder / "cifar-10-batches-py" / name for name in names)]

    def complete(self, paths: tuple[Path, ...]) -> Pool:
        self.check(paths)
        blocks = [read_binary(path) if path.suffix == ".bin" else read_batch(path, "labels", 10) for path in paths]
        return build(blocks[:-1], blocks[-1:], **self.about())


@spec
class Cifar100(Parted):
    """CIFAR-100 with its 100 fine labels, from `cifar-100-python/`, or the part `cifar100-5k.npz`, which has no test set."""

    name: ClassVar[str] = "cifar100"
    licence: ClassVar[str] = "none stated; cite Krizhevsky 2009"
    homepage: ClassVar[str] = "https://www.cs.toronto.edu/~kriz/cifar.html"
    part_file: ClassVar[str] = "cifar100-5k.npz"
    samples: ClassVar[tuple[int, int]] = (50_000, 10_000)
    classes: ClassVar[int] = 100
    mean: ClassVar[tuple[float, ...]] = (0.5071, 0.4865, 0.4409)
    std: ClassVar[tuple[float, ...]] = (0.2673, 0.2564, 0.2762)
    files: ClassVar[tuple[File, ...]] = (
        archive(
            "cifar-100-python.tar.gz",
            "eb9058c3a382ffc7106e4002c42a8d85",
            169_001_437,
            {
                "cifar-100-python/train": "16019d7e3df5f24257cddd939b257f8d",
                "cifar-100-python/test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
            },
        ),
    )

    def complete(self, paths: tuple[Path, ...]) -> Pool:
        self.check(paths)
        train, test = (read_batch(path, "fine_labels", 100) for path in paths)
        return build([train], [test], **self.about())
