"""Pools made of pools: domains joined, images resampled, rows drawn, labels taken away or made random."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from coterie.data.pool import Pool, Rows
from coterie.errors import UserError

__all__ = ["join", "limit", "resize", "take", "with_random_labels", "without_labels"]

BATCH = 4096
"""Images resampled in one call."""


def join(pools: Mapping[str, Pool]) -> Pool:
    """One pool of several domains: all training rows, domain by domain, then all test rows.

    Domains that are normalised differently are all normalised by a half, for a pool has one mean. Writers keep apart.

    >>> one = Pool(np.zeros((3, 1, 2, 2), np.uint8), np.array([0, 1, 0]), train=2, classes=2)
    >>> both = join({"a": one, "b": one})
    >>> both.y.tolist(), both.domain.tolist(), both.domains, both.train
    ([0, 1, 0, 1, 0, 0], [0, 0, 1, 1, 0, 1], ('a', 'b'), 4)
    """
    if not pools:
        raise UserError("domains to join are missing")
    names, parts = tuple(pools), tuple(pools.values())
    first = parts[0]
    for name, pool in pools.items():
        if (pool.classes, pool.shape) != (first.classes, first.shape):
            raise UserError(
                f"domain '{name}' has {pool.classes} classes of {shown(pool)} samples, "
                f"but '{names[0]}' has {first.classes} of {shown(first)}; resize them to one shape first"
            )
        if pool.domain is not None:
            raise UserError(f"domain '{name}' is itself made of domains")
    halves = [slice(pool.train) for pool in parts], [slice(pool.train, None) for pool in parts]
    cuts = [(d, parts[d], rows) for half in halves for d, rows in enumerate(half)]
    same = len({(pool.mean, pool.std) for pool in parts}) == 1
    half = (0.5,) * first.shape[0]
    return Pool(
        np.concatenate([pool.x[rows] for _, pool, rows in cuts]),
        np.concatenate([pool.y[rows] for _, pool, rows in cuts]),
        train=sum(pool.train for pool in parts),
        classes=first.classes,
        mean=first.mean if same else half,
        std=first.std if same else half,
        domain=np.concatenate([np.full(len(pool.y[rows]), d, np.int64) for d, pool, rows in cuts]),
        domains=names,
        writer=join_writers(parts, [(d, rows) for d, _, rows in cuts]),
        note="; ".join(dict.fromkeys(pool.note for pool in parts if pool.note)),
    )


def shown(pool: Pool) -> str:
    """A pool's shape as people write it."""
    if not pool.images:
        return "x".join(map(str, pool.shape))
    c, h, w = pool.shape
    return f"{h}x{w}x{c}"


def join_writers(parts: tuple[Pool, ...], cuts: Iterable[tuple[int, slice]]) -> Rows | None:
    """Writers of a joined pool, renumbered so that no two domains share one."""
    if all(pool.writer is None for pool in parts):
        return None
    writers, after = [], 0
    for pool in parts:
        known = np.full(len(pool), -1, np.int64) if pool.writer is None else pool.writer
        writers.append(np.where(known < 0, -1, known + after))
        after = max(after, 1 + int(writers[-1].max(initial=-1)))
    return np.concatenate([writers[d][rows] for d, rows in cuts])


def resize(pool: Pool, size: int, channels: int) -> Pool:
    """Square images of `size` with 1 or 3 channels: Pillow's bilinear resampling (antialiased when it shrinks); grey is repeated.

    Colour becomes grey by ITU-R 601 luma, as Pillow does it. Whole-number arithmetic: the same bits everywhere.

    >>> small = Pool(np.full((1, 1, 2, 2), 9, np.uint8), np.zeros(1, np.int64), train=1, classes=1)
    >>> resize(small, 4, 3).x.shape, resize(small, 4, 3).mean
    ((1, 3, 4, 4), (0.5, 0.5, 0.5))
    """
    if not pool.images:
        raise UserError(f"data.size and data.channels are for images, these samples have the shape {pool.shape}")
    held = pool.shape[0]
    if channels not in (1, 3) or held not in (1, 3):
        raise UserError(f"channels = {channels}: images of {held} channels can become 1 or 3 only where they have 1 or 3")
    x = grey(pool.x) if channels < held else pool.x
    if x.shape[2:] != (size, size):
        out = np.empty((len(x), x.shape[1], size, size), np.uint8)
        for i in range(0, len(x), BATCH):
            out[i : i + BATCH] = resample(x[i : i + BATCH], size)
        x = out
    if x.shape[1] != channels:
        x = np.repeat(x, channels, axis=1)
    return dataclasses.replace(pool, x=np.ascontiguousarray(x), mean=spread(pool.mean, channels), std=spread(pool.std, channels))


def grey(x: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Colour images in one channel, with Pillow's whole-number weights."""
    weighted = np.tensordot(x.astype(np.uint32), np.array([19595, 38470, 7471], np.uint32), axes=(1, 0))
    return ((weighted + 0x8000) >> 16).astype(np.uint8)[:, None]


def resample(x: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """Every channel of every image as a square; Pillow too goes over the rows first and then over the columns."""
    n, c, h, w = x.shape
    wide = stretch(x.reshape(n * c, h, w), size)
    return stretch(wide.transpose(0, 2, 1), size).transpose(0, 2, 1).reshape(n, c, size, size)


def stretch(rows: NDArray[np.uint8], width: int) -> NDArray[np.uint8]:
    """All rows of N x H x W at another width, in one call: a row does not see its neighbours."""
    from PIL import Image  # here, because few runs need it

    n, h, w = rows.shape
    image = Image.fromarray(np.ascontiguousarray(rows).reshape(n * h, w))
    return np.asarray(image.resize((width, n * h), Image.Resampling.BILINEAR)).reshape(n, h, width)


def spread(values: tuple[float, ...], channels: int) -> tuple[float, ...]:
    """One value a channel, as it was, repeated, or averaged.

    >>> spread((0.5,), 3), spread((0.25, 0.5, 0.75), 1)
    ((0.5, 0.5, 0.5), (0.5,))
    """
    return values if len(values) == channels else (sum(values) / len(values),) * channels


def limit(pool: Pool, train: int | None = None, test: int | None = None, seed: int = 0, key: str = "data.train") -> Pool:
    """So many training and test rows, drawn by `seed`, as even over classes (and domains) as the pool allows; None keeps all.
    `key` is what an error calls `train`.

    >>> many = Pool(np.zeros((100, 1, 2, 2), np.uint8), np.arange(100) % 3, train=80, classes=3)
    >>> few = limit(many, train=8, test=3)
    >>> sorted(np.bincount(few.y[: few.train]).tolist()), len(few) - few.train
    ([2, 3, 3], 3)
    """
    kept = [
        draw_rows(pool, rows, wanted, np.random.default_rng([seed, purpose]), named)
        for purpose, (named, wanted, rows) in enumerate(
            [(key, train, np.arange(pool.train)), ("data.test", test, np.arange(pool.train, len(pool)))]
        )
    ]
    drawn = f"{len(kept[0]):,} of {pool.train:,} training and {len(kept[1]):,} of {len(pool) - pool.train:,} test rows"
    note = "; ".join(part for part in (pool.note, f"scaled down: {drawn}") if part)
    return dataclasses.replace(take(pool, np.concatenate(kept)), train=len(kept[0]), note=note)


def draw_rows(pool: Pool, rows: Rows, wanted: int | None, rng: np.random.Generator, key: str) -> Rows:
    """`wanted` of `rows`, in their order."""
    if wanted is None:
        return rows
    if not 0 <= wanted <= len(rows):
        raise UserError(f"{key} = {wanted}: there are {len(rows)} rows to draw from")
    domain = np.zeros(len(pool), np.int64) if pool.domain is None else pool.domain
    _, group = np.unique(np.stack([domain[rows], pool.y[rows]]), axis=1, return_inverse=True)
    counts = np.bincount(group.reshape(-1))
    shares = even(counts, wanted, rng.permutation(len(counts)))
    chosen = [rng.permutation(rows[group.reshape(-1) == g])[:share] for g, share in enumerate(shares)]
    return np.sort(np.concatenate([*chosen, np.empty(0, np.int64)]))


def even(counts: Rows, total: int, order: Rows) -> Rows:
    """Shares of `total`, none above its count, as equal as that allows; `order` breaks ties.

    >>> even(np.array([1, 9, 9]), 8, np.arange(3)).tolist()
    [1, 3, 4]
    """
    shares = np.zeros(len(counts), np.int64)
    for done, g in enumerate(np.lexsort((order, counts))):
        shares[g] = min(counts[g], (total - shares.sum()) // (len(counts) - done))
    return shares


def take(pool: Pool, rows: Rows) -> Pool:
    """Only these rows, training rows before test rows.

    >>> pool = Pool(np.zeros((4, 1, 2, 2), np.uint8), np.arange(4), train=3, classes=4)
    >>> take(pool, np.array([0, 2, 3])).train
    2
    """
    if np.any(np.diff(rows >= pool.train) & (rows[1:] < pool.train)):
        raise UserError("rows of the test set come before rows of the training set")
    return dataclasses.replace(
        pool,
        x=pool.x[rows],
        y=pool.y[rows],
        train=int(np.count_nonzero(rows < pool.train)),
        domain=None if pool.domain is None else pool.domain[rows],
        writer=None if pool.writer is None else pool.writer[rows],
    )


def without_labels(pool: Pool) -> Pool:
    """Public data: the same images, every label -1.

    >>> pool = Pool(np.zeros((2, 1, 2, 2), np.uint8), np.array([0, 1]), train=2, classes=2)
    >>> without_labels(pool).y.tolist()
    [-1, -1]
    """
    return dataclasses.replace(pool, y=np.full(len(pool), -1, np.int64))


def with_random_labels(pool: Pool, rows: Rows, rng: np.random.Generator) -> Pool:
    """The same images, the labels of `rows` drawn from all classes alike.

    >>> pool = Pool(np.zeros((6, 1, 2, 2), np.uint8), np.full(6, 7), train=6, classes=3)
    >>> with_random_labels(pool, np.array([1, 2, 4]), np.random.default_rng(0)).y.tolist()
    [7, 2, 1, 7, 1, 7]
    """
    y = pool.y.copy()
    y[rows] = rng.integers(pool.classes, size=len(rows))
    return dataclasses.replace(pool, y=y)
