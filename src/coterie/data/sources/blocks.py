"""Samples and labels on their way from files to a pool: checked, and blamed on the file they came from."""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coterie.data.pool import Pool, Rows
from coterie.errors import UserError

__all__ = ["Block", "block", "build", "channels_first", "npz_counts", "open_npz", "read_all", "read_bytes", "read_npz", "reading"]


LARGEST = 8 * 2**30
"""Bytes that one file may hold once it is unpacked."""
CHUNK = 1 << 20
CLASSES = 100_000
"""Labels are numbers of classes, and a network has an output for each."""


class Block(NamedTuple):
    """Some images, N x C x H x W in any memory order, and their labels."""

    x: NDArray[np.uint8]
    y: Rows


def block(x: NDArray[Any], y: NDArray[Any], classes: int, path: Path) -> Block:
    """Checked images and labels; a complaint names the file they came from.

    >>> block(np.zeros((2, 1, 4, 4), np.uint8), np.array([0, 7]), 3, Path("x.bin"))
    Traceback (most recent call last):
    ...
    coterie.errors.UserError: x.bin holds the label 7, but labels must be 0..2
    """
    if x.dtype not in (np.float32, np.int32) and (x.dtype != np.uint8 or x.ndim != 4):
        raise UserError(f"{path} holds images as {x.dtype} of shape {x.shape}, but uint8 of four dimensions was expected")
    if len(x) != len(y):
        raise UserError(f"{path} holds {len(x)} images but {len(y)} labels")
    labels = np.asarray(y).astype(np.int64)
    wrong = labels[(labels < 0) | (labels >= classes)]
    if len(wrong):
        raise UserError(f"{path} holds the label {wrong[0]}, but labels must be 0..{classes - 1}")
    return Block(x, labels)


def build(train: Sequence[Block], test: Sequence[Block], **about: Any) -> Pool:
    """One pool of checked blocks, copied once into contiguous memory; `about` are the pool's other fields.

    >>> one = Block(np.ones((2, 1, 4, 4), np.uint8), np.array([0, 1]))
    >>> pool = build([one, one], [one], classes=2)
    >>> len(pool), pool.train, pool.x.flags.c_contiguous
    (6, 4, True)
    """
    blocks = [*train, *test]
    x = np.empty((sum(len(b.y) for b in blocks), *blocks[0].x.shape[1:]), blocks[0].x.dtype)
    np.concatenate([b.x for b in blocks], out=x)
    return Pool(x, np.concatenate([b.y for b in blocks]), train=sum(len(b.y) for b in train), **about)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Whatever a parser raises about a damaged file becomes one sentence that names the file.

    >>> with reading(Path("x.gz")):
    ...     raise EOFError("ended early")
    Traceback (most recent call last):
    ...
    coterie.errors.UserError: x.gz is truncated or damaged: ended early
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # the parsers of six formats raise a dozen types between them, all meaning this
        raise UserError(f"{path} is truncated or damaged: {str(error) or type(error).__name__}") from None


def read_bytes(path: Path, largest: int = LARGEST) -> bytes:
    """A file's bytes, if there are not too many."""
    with path.open("rb") as stream:
        return read_all(stream, largest)


def read_all(stream: io.BufferedIOBase, largest: int) -> bytes:
    """What a stream holds, if that is not too much: a few bytes can unpack to as many as one likes.

    >>> import io
    >>> read_all(io.BytesIO(b"12345"), 4)
    Traceback (most recent call last):
    ...
    ValueError: it holds more than the 4 bytes allowed
    """
    pieces, length = list[bytes](), 0
    while piece := stream.read(CHUNK):  # piece by piece: a promise of gigabytes costs nothing until it is kept
        pieces.append(piece)
        length += len(piece)
        if length > largest:
            raise ValueError(f"it holds more than the {largest:,} bytes allowed")
    return b"".join(pieces)


@contextmanager
def open_npz(path: Path) -> Iterator[Any]:
    """The arrays of a `.npz`, each read when it is asked for; the file is closed even where numpy fails to read it."""
    with reading(path), path.open("rb") as stream:
        with zipfile.ZipFile(stream) as parts:
            if sum(each.file_size for each in parts.infolist()) > LARGEST:
                raise ValueError(f"it holds more than the {LARGEST:,} bytes allowed")
            for each in parts.infolist():
                _check_header(parts, each)
        stream.seek(0)
        with np.load(stream, allow_pickle=False) as arrays:
            yield arrays


def _check_header(parts: zipfile.ZipFile, part: zipfile.ZipInfo) -> None:
    """An array whose header promises more than there is would be given its memory before that is noticed."""
    with parts.open(part) as stream:
        version = np.lib.format.read_magic(stream)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, _, kind = read(stream)
        if math.prod(shape) * kind.itemsize > part.file_size or min(shape, default=0) < 0:
            raise ValueError(f"{part.filename} has the shape {shape} but {part.file_size:,} bytes")


def npz_counts(path: Path) -> tuple[int, int]:
    """How many labels a `.npz` holds; only the labels are read."""
    with open_npz(path) as arrays:
        return tuple(len(arrays[key]) if key in arrays else 0 for key in ("y_train", "y_test"))  # type: ignore[return-value]


def read_npz(path: Path, classes: int | None = None, tested: bool = False) -> tuple[Block, Block]:
    """Training and test images of a `.npz`; without `tested` the test set may be absent, and then is empty."""
    with open_npz(path) as arrays:
        needed = ("x_train", "y_train", "x_test", "y_test")
        held = {key: np.asarray(arrays[key]) for key in needed if key in arrays}
        lacking = [key for key in (needed if tested or len(held) > 2 else needed[:2]) if key not in held]
        if lacking:
            raise UserError(f"{path} lacks {', '.join(lacking)}; it must hold {', '.join(needed)}")
    held.setdefault("x_test", held["x_train"][:0])
    held.setdefault("y_test", held["y_train"][:0])
    for key in ("y_train", "y_test"):
        if np.issubdtype(held[key].dtype, np.floating):
            raise UserError(f"{path} holds {key} as {held[key].dtype}: regression is not supported, expected whole numbers of classes")
        if held[key].ndim != 1 and len(held[key]):
            raise UserError(f"{path} holds {key} of shape {held[key].shape}: segmentation (many labels a sample) is not supported")
        if held[key].ndim != 1 or not np.issubdtype(held[key].dtype, np.integer):
            raise UserError(f"{path} holds {key} as {held[key].dtype} of shape {held[key].shape}, not as one whole number per image")
    if classes is None:
        classes = 1 + max((int(held[key].max()) for key in ("y_train", "y_test") if len(held[key])), default=0)
        if classes > CLASSES:
            raise UserError(f"{path} holds the label {classes - 1}, but labels are numbers of classes, expected fewer than {CLASSES:,}")
    train, test = (block(_as_samples(held[f"x_{part}"]), held[f"y_{part}"], classes, path) for part in ("train", "test"))
    if (train.x.shape[1:], train.x.dtype) != (test.x.shape[1:], test.x.dtype):
        ours, theirs = (f"images of shape {each.x.shape[1:]} ({each.x.dtype})" for each in (train, test))
        raise UserError(f"{path} holds training {ours} but test {theirs}")
    return train, test


def _as_samples(x: NDArray[Any]) -> NDArray[Any]:
    """uint8 as images, other numbers as float32, whole numbers that are no bytes, in rows, as token ids."""
    if x.dtype == np.uint8 and x.ndim in (3, 4):
        return channels_first(x)
    if np.issubdtype(x.dtype, np.integer) and x.dtype != np.uint8 and x.ndim == 2:
        return x.astype(np.int32)
    return x.astype(np.float32) if x.ndim > 1 and (np.issubdtype(x.dtype, np.number) or x.dtype == np.bool_) else x


def channels_first(x: NDArray[Any]) -> NDArray[Any]:
    """N x H x W and N x H x W x C images as N x C x H x W views; C is 1 or 3, and what is already so stays.

    >>> [channels_first(np.zeros(shape)).shape for shape in [(5, 8, 8), (5, 8, 8, 3), (5, 1, 8, 8)]]
    [(5, 1, 8, 8), (5, 3, 8, 8), (5, 1, 8, 8)]
    """
    if x.ndim == 3:
        return x[:, None]
    return x.transpose(0, 3, 1, 2) if x.ndim == 4 and x.shape[3] in (1, 3) else x
