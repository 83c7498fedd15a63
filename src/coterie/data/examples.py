"""Examples: some rows of a pool, as a site sees them. What is in the pool stays as it is; a batch is made when it is used."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from coterie.data.pool import Pool, Rows
from coterie.devices import CPU, Device

__all__ = ["Examples", "Samples", "crop_and_flip", "scale_and_shift"]


class Samples(Protocol):
    """What can be trained on: something that gives batches of inputs and labels by position."""

    def __len__(self) -> int: ...

    def batch(self, chosen: Tensor, augment: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Inputs and labels of some samples, changed at random if asked."""

    def batches(self, size: int, start: int = 0, stop: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """All samples in order, or those from `start` to `stop`, in batches."""


class Examples:
    """Rows of a pool, normalised on the fly, in this site's order of pixels if it has one.

    >>> pool = Pool(np.zeros((4, 1, 2, 2), np.uint8), np.arange(4), train=4, classes=4)
    >>> some = Examples(pool, np.array([2, 3]))
    >>> x, y = some.batch(torch.tensor([1]))
    >>> len(some), x.shape, y.tolist(), x.unique().tolist()
    (2, torch.Size([1, 1, 2, 2]), [3], [-1.0])
    """

    def __init__(
        self, pool: Pool, rows: Rows, permutation: Rows | None = None, dtype: torch.dtype = torch.float32, device: Device = CPU
    ) -> None:
        self._device = device
        self._x = device.keep(pool.x)
        self._y = torch.from_numpy(pool.y)
        self._rows = torch.from_numpy(np.ascontiguousarray(rows))
        self._permutation = None if permutation is None else torch.from_numpy(np.ascontiguousarray(permutation))
        self._scale, self._shift = scale_and_shift(pool, dtype, device.at)
        self._ids = pool.tokens
        self.shape = pool.shape
        self.classes = pool.classes

    def __len__(self) -> int:
        return self._rows.shape[0]

    @property
    def labels(self) -> Tensor:
        """The labels of all rows; -1 where there is none."""
        return self._y[self._rows]

    def batch(self, chosen: Tensor, augment: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Images and labels of some of these examples, by position; shifted and mirrored at random if asked."""
        rows = self._rows[chosen]
        x, y = self._x.index_select(0, self._device.put(rows)), self._device.put(self._y[rows])
        if augment is not None:
            x = crop_and_flip(x, augment)
        if self._permutation is not None:
            x = x.flatten(2)[:, :, self._permutation].view_as(x)
        return x.long() if self._ids else x.to(self._scale.dtype).mul_(self._scale).add_(self._shift), y

    def batches(self, size: int, start: int = 0, stop: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """All examples in order, or those from `start` to `stop`, in batches."""
        for chosen in torch.split(torch.arange(start, len(self) if stop is None else stop), size):
            if len(chosen):
                yield self.batch(chosen)

    def only(self, chosen: Tensor) -> Examples:
        """Some of these examples, by position."""
        fewer = copy.copy(self)
        fewer._rows = self._rows[chosen]
        return fewer

    def augmented(self, rng: torch.Generator) -> Examples:
        """These examples with every image shifted and mirrored once: whoever has the same generator sees the same pixels."""
        shaken = copy.copy(self)
        shaken._x, shaken._y = crop_and_flip(self._x[self._rows], rng), self.labels
        shaken._rows = torch.arange(len(self))
        return shaken

    def one_batch(self) -> tuple[Tensor, Tensor]:
        """Everything at once."""
        return self.batch(torch.arange(len(self)))


@functools.lru_cache(64)  # every client of every round asks for the same
def _normalisation(
    mean: tuple[float, ...], std: tuple[float, ...], unit: int, axes: int, dtype: torch.dtype, at: torch.device
) -> tuple[Tensor, Tensor]:
    """What samples of so many axes are multiplied with, and what is added then."""
    means, stds = (torch.tensor(each, dtype=dtype, device=at).reshape(-1, *(1,) * (axes - 1)) for each in (mean, std))
    return 1 / (unit * stds), -means / stds


def crop_and_flip(x: Tensor, rng: torch.Generator, pad: int = 4) -> Tensor:
    """Each image padded with zeros, cut back to its size at a random place, and mirrored with probability one half.

    >>> x = torch.arange(2 * 9).reshape(2, 1, 3, 3).to(torch.uint8)
    >>> crop_and_flip(x, torch.Generator().manual_seed(0), pad=1).shape
    torch.Size([2, 1, 3, 3])
    """
    n, _, h, w = x.shape
    padded = torch.nn.functional.pad(x, (pad, pad, pad, pad))
    top, left = (torch.randint(2 * pad + 1, (n, 1), generator=rng) for _ in range(2))
    rows = top + torch.arange(h)
    columns = left + torch.arange(w)
    mirrored = torch.rand(n, 1, generator=rng) < 0.5
    columns = torch.where(mirrored, columns.flip(1), columns)
    return padded[torch.arange(n)[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()


def scale_and_shift(pool: Pool, dtype: torch.dtype = torch.float32, at: torch.device = CPU.at) -> tuple[Tensor, Tensor]:
    """What a pool's samples are multiplied with and what is added, in that order, before a network sees them.

    >>> table = Pool(np.zeros((1, 3), np.float32), np.zeros(1, np.int64), 1, 1, mean=(1.0, 2.0, 3.0), std=(1.0, 2.0, 4.0))
    >>> scale_and_shift(table)[0].tolist()
    [1.0, 0.5, 0.25]
    """
    return _normalisation(pool.mean, pool.std, 255 if pool.x.dtype == np.uint8 else 1, pool.x.ndim - 1, dtype, at)
