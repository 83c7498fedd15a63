"""What an experiment learns from: one pool of samples, and a partition of its rows among clients.

The pool lies in memory once, images as uint8, other numbers as float32, token ids as int32; everything else is row numbers. `Ragged`
holds many row lists of different lengths in two flat arrays, so that a hundred thousand clients cost two arrays and can be
memory-mapped by every worker.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Partition", "Pool", "Ragged", "Rows", "count"]

Rows = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Pool:
    """Samples of one source, or of several domains: official training rows first, official test rows after them."""

    x: NDArray[Any]
    """Images as uint8, N x C x H x W; numbers of any shape as float32; token ids as int32, N x length."""
    y: Rows
    train: int
    """Rows `[0, train)` are the official training set, rows `[train, N)` the official test set."""
    classes: int
    mean: tuple[float, ...] = (0.5,)
    """Per channel, of pixels scaled to [0, 1]; of numbers that are no pixels, per entry of the first axis."""
    std: tuple[float, ...] = (0.5,)
    domain: Rows | None = None
    """For each row, an index into `domains`; None when there is only one."""
    domains: tuple[str, ...] = ()
    writer: Rows | None = None
    """For each row, who made it; -1 where nobody knows."""
    columns: tuple[str, ...] = ()
    """Of a table, what each entry of a sample is: a column's name, or `name=value` for a category's; else empty."""
    labels: tuple[str, ...] = ()
    """What the classes are called, in their order, where that is known."""
    note: str = ""
    """What a reader of any figure must be told: that this is a part of the data set, that one domain stands in for another."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one sample: channels, height and width of an image."""
        return tuple(self.x.shape[1:])

    @property
    def images(self) -> bool:
        """Whether the samples are images."""
        return self.x.ndim == 4 and self.x.dtype == np.uint8

    def __len__(self) -> int:
        return len(self.y)

    @property
    def tokens(self) -> bool:
        """Whether the samples are texts as token ids, which nothing is added to or multiplied with."""
        return self.x.dtype == np.int32


@dataclass(frozen=True, eq=False)
class Ragged:
    """Many row lists in two flat arrays.

    >>> rows = Ragged.of([[4, 5], [], [6]])
    >>> len(rows), rows[0].tolist(), rows.sizes.tolist()
    (3, [4, 5], [2, 0, 1])
    """

    flat: Rows
    offsets: Rows
    """`offsets[i]:offsets[i + 1]` is where list `i` lies in `flat`."""

    @classmethod
    def of(cls, lists: Iterable[Iterable[int] | Rows]) -> Ragged:
        """Pack row lists."""
        arrays = [np.asarray(rows, dtype=np.int64).reshape(-1) for rows in lists]
        return cls.from_sizes(np.concatenate([*arrays, np.empty(0, np.int64)]), np.array([len(a) for a in arrays], dtype=np.int64))

    @classmethod
    def from_sizes(cls, flat: Rows, sizes: Rows) -> Ragged:
        """Rows already in one array, cut into lists of the given sizes."""
        return cls(flat, np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)]))

    @property
    def sizes(self) -> Rows:
        """How long each list is."""
        return np.diff(self.offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> Rows:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self.flat[self.offsets[index] : self.offsets[index + 1]]

    def __iter__(self) -> Iterator[Rows]:
        return (self[i] for i in range(len(self)))


def _nothing() -> Ragged:
    return Ragged.of([])


@dataclass(frozen=True, eq=False)
class Partition:
    """Which rows of a pool each client holds."""

    train: Ragged
    """Client -> its training rows."""
    tests: Ragged
    """The distinct test slices; many clients may share one (all who hold the same classes)."""
    test_of: Rows
    """Client -> its slice in `tests`."""
    validation: Ragged = field(default_factory=_nothing)
    """Client -> its private validation rows; empty when no validation split was asked for."""
    permutation: NDArray[np.int64] | None = None
    """Client -> its own order of pixels (clients x height*width), applied to all its images."""
    domain_of: Rows | None = None
    """Client -> its domain, where clients differ by domain."""

    @property
    def clients(self) -> int:
        """How many clients there are."""
        return len(self.train)


def count(pool: Pool, partition: Partition) -> Rows:
    """Samples that each client holds of each class (clients x classes), for training and validation together.

    >>> pool = Pool(np.zeros((4, 1, 2, 2), np.uint8), np.array([0, 1, 1, 0]), train=3, classes=2)
    >>> count(pool, Partition(Ragged.of([[0, 2], [1]]), Ragged.of([[3]]), np.array([0, 0]))).tolist()
    [[1, 1], [0, 1]]
    """
    table = np.zeros(partition.clients * pool.classes, np.int64)
    for rows in (partition.train, partition.validation):
        client = np.repeat(np.arange(len(rows)), rows.sizes)
        table += np.bincount(client * pool.classes + pool.y[rows.flat], minlength=len(table))
    return table.reshape(partition.clients, pool.classes)
