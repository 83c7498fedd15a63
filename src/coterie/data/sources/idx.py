"""MNIST and Fashion-MNIST: gzipped idx files.

The format, as LeCun published it: two zero bytes, a type byte (8: unsigned byte), the number of dimensions, each
dimension as a big-endian 32-bit number, then the values. MNIST's writers are QMNIST's (Yadav and Bottou, 2019), in MNIST's order.
"""

from __future__ import annotations

import dataclasses
import gzip
import math
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from coterie.data.pool import Pool, Rows
from coterie.data.sources.base import File, Found, Source
from coterie.data.sources.blocks import LARGEST, Block, block, build, open_npz, read_all, reading
from coterie.errors import UserError
from coterie.settings import spec

__all__ = ["FashionMnist", "Mnist", "read_idx"]

NAMES = ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz", "t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz")
DEBIAN = Path("/usr/share/datasets/fashion-mnist")
"""Where Debian's package dataset-fashion-mnist puts the four files."""


def read_idx(path: Path) -> NDArray[np.uint8]:
    """The array in a gzipped idx file of unsigned bytes."""
    with reading(path), gzip.open(path) as stream:
        zero, kind, dims = struct.unpack(">HBB", stream.read(4))
        if (zero, kind) != (0, 8):
            raise UserError(f"{path} is not an idx file of unsigned bytes")
        shape = struct.unpack(f">{dims}I", stream.read(4 * dims))
        values = np.frombuffer(read_all(stream, min(math.prod(shape), LARGEST)), np.uint8)
        if values.size != math.prod(shape):
            raise UserError(f"{path} is truncated or damaged: {values.size} bytes where its header promises {' x '.join(map(str, shape))}")
    return values.reshape(shape)


def mirrored(folder: str, roots: tuple[str, ...], known: tuple[tuple[str, int], ...]) -> tuple[File, ...]:
    """The four files, each with its md5 and size, below every mirror."""
    return tuple(
        File(f"{folder}/{name}", f"md5:{md5}", tuple(root + name for root in roots), size)
        for name, (md5, size) in zip(NAMES, known, strict=True)
    )


class Idx(Source):
    """Four idx files: training images and labels, test images and labels."""

    def read(self, found: Found) -> Pool:
        def half(images: Path, labels: Path) -> Block:
            return block(channelled(read_idx(images), images), read_idx(labels), self.classes, labels)

        return build([half(*found.paths[:2])], [half(*found.paths[2:])], **self.about())


def channelled(x: NDArray[Any], path: Path) -> NDArray[Any]:
    """N x H x W images with their one channel."""
    if x.ndim != 3:
        raise UserError(f"{path} has {x.ndim} dimensions, but images have 3")
    return x[:, None]


@spec
class Mnist(Idx):
    """MNIST (LeCun, Cortes and Burges), with who wrote each digit where `mnist/writers.npz` is there."""

    name: ClassVar[str] = "mnist"
    licence: ClassVar[str] = "CC BY-SA 3.0"
    homepage: ClassVar[str] = "http://yann.lecun.com/exdb/mnist/"
    samples: ClassVar[tuple[int, int]] = (60_000, 10_000)
    mean: ClassVar[tuple[float, ...]] = (0.1307,)
    std: ClassVar[tuple[float, ...]] = (0.3081,)
    files: ClassVar[tuple[File, ...]] = mirrored(
        "mnist",
        ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
        (
            ("f68b3c2dcbeaaa9fbdd348bbdeb94873", 9_912_422),
            ("d53e105ee54ea40749a09fcbcd1e9432", 28_881),
            ("9fb629c4189551a2d022fa330f9573f3", 1_648_877),
            ("ec29112dd5afa0611ce80d1b7f02629c", 4_542),
        ),
    )

    def read(self, found: Found) -> Pool:
        pool, path = super().read(found), writers_beside(found)
        return dataclasses.replace(pool, writer=read_writers(path, pool)) if path.is_file() else pool

    def reads(self, folder: Path) -> Iterable[Path]:
        found = self.there(folder)
        return filter(Path.is_file, (*found.paths, writers_beside(found)))


def writers_beside(found: Found) -> Path:
    """Where the writers' names are, if they are there."""
    return found.paths[0].parent / "writers.npz"


def read_writers(path: Path, pool: Pool) -> Rows:
    """Who wrote each row of `pool`."""
    with open_npz(path) as arrays:
        halves = [np.asarray(arrays[key], dtype=np.int64) for key in ("writer_train", "writer_test")]
    if tuple(map(len, halves)) != (pool.train, len(pool) - pool.train):
        raise UserError(f"{path} names the writers of {len(halves[0])} + {len(halves[1])} digits, not of {len(pool)}")
    return np.concatenate(halves)


@spec
class FashionMnist(Idx):
    """Fashion-MNIST (Xiao, Rasul and Vollgraf, 2017), from the data folder or from Debian's package."""

    name: ClassVar[str] = "fashion-mnist"
    licence: ClassVar[str] = "MIT"
    homepage: ClassVar[str] = "https://github.com/zalandoresearch/fashion-mnist"
    how: ClassVar[str] = "or install Debian's package dataset-fashion-mnist"
    samples: ClassVar[tuple[int, int]] = (60_000, 10_000)
    mean: ClassVar[tuple[float, ...]] = (0.2860,)
    std: ClassVar[tuple[float, ...]] = (0.3530,)
    system: ClassVar[Path] = DEBIAN
    files: ClassVar[tuple[File, ...]] = mirrored(
        "fashion-mnist",
        (
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
        ),
        (
            ("8d4fb7e6c68d591d4c3dfef9ec88bf0d", 26_421_880),
            ("25c81989df183df01b3e8a0aad5dffbe", 29_515),
            ("bef4ecab320f06d8554ea6380940ec79", 4_422_102),
            ("bb300cfdad3c16e7a12a480ee83cd310", 5_148),
        ),
    )

    def candidates(self, folder: Path) -> list[tuple[Path, ...]]:
        return [*super().candidates(folder), tuple(self.system / name for name in NAMES)]
