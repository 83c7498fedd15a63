"""The arithmetic of row numbers that the partitions share.

A partition writes down one owner per row (-1 for nobody), so that no row can be given twice; everything here works on flat
arrays and on all clients at once.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from coterie.data.pool import Ragged, Rows

__all__ = ["apportion", "even", "hand_out", "held", "level", "lift", "set_aside", "shares"]


def even(total: int, parts: int) -> Rows:
    """Sizes that differ by at most one.

    >>> even(11, 4).tolist()
    [3, 3, 3, 2]
    """
    return np.full(parts, total // parts, np.int64) + (np.arange(parts) < total % parts)


def apportion(total: int, weights: NDArray[np.float64]) -> Rows:
    """Sizes that follow `weights` to within one row and add up to `total`.

    >>> apportion(10, np.array([1.0, 1.0, 2.0])).tolist()
    [2, 3, 5]
    """
    upto = np.cumsum(weights)
    cuts: Rows = np.rint(upto / upto[-1] * total).astype(np.int64)
    return np.diff(cuts, prepend=0)


def level(sizes: Rows, minimum: int) -> Rows:
    """Lift every size to `minimum`, taking what is missing from the largest; the sum must be at least `minimum` each.

    >>> level(np.array([0, 9, 3, 8]), 2).tolist()
    [2, 7, 3, 8]
    >>> level(np.array([0, 20, 1]), 7).tolist()
    [7, 7, 7]
    """
    missing = int(np.maximum(minimum - sizes, 0).sum())
    low, high = minimum, max(minimum, int(sizes.max()))  # the lowest cap that takes no more than is missing lies between
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if np.maximum(sizes - middle, 0).sum() <= missing else (middle + 1, high)
    lifted = np.clip(sizes, minimum, low)
    rest = int(lifted.sum() - sizes.sum())
    lifted[np.flatnonzero(lifted == low)[:rest]] -= 1
    return lifted


def shares(kind: Rows, stock: Rows) -> Rows:
    """For each slot, its even part of the `stock` of its kind; rows too many go around, kind after kind.

    >>> shares(np.array([0, 1, 0, 1]), np.array([7, 5])).tolist()
    [4, 2, 3, 3]
    """
    order = np.argsort(kind, kind="stable")
    holders = np.bincount(kind, minlength=len(stock))
    rank = np.empty(len(kind), np.int64)
    rank[order] = np.arange(len(kind)) - (np.cumsum(holders) - holders)[kind[order]]
    whole, rest = np.divmod(stock, np.maximum(holders, 1))
    turn = (rank - (np.cumsum(rest) - rest)[kind]) % holders[kind]
    parts: Rows = whole[kind] + (turn < rest[kind])
    return parts


def hand_out(kinds: Rows, client: Rows, kind: Rows, take: Rows, rng: np.random.Generator) -> Rows:
    """Row -> client, where slot `i` hands `take[i]` random rows of `kind[i]` to `client[i]`; -1 for rows left over.

    >>> kinds = np.array([0, 1, 0, 1, 1])
    >>> owner = hand_out(kinds, np.array([7, 8]), np.array([0, 1]), np.array([2, 1]), np.random.default_rng(0))
    >>> owner[kinds == 0].tolist(), sorted(owner[kinds == 1].tolist())
    ([7, 7], [-1, -1, 8])
    """
    shuffled = rng.permutation(len(kinds))
    rows = shuffled[np.argsort(kinds[shuffled], kind="stable")]
    stock = np.bincount(kinds, minlength=int(kind.max(initial=0)) + 1)
    left = stock - np.bincount(kind, weights=take, minlength=len(stock)).astype(np.int64)
    order = np.argsort(np.concatenate([kind, np.arange(len(stock))]), kind="stable")
    owner = np.empty(len(kinds), np.int64)
    owner[rows] = np.repeat(np.concatenate([client, np.full(len(stock), -1)])[order], np.concatenate([take, left])[order])
    return owner


def held(owner: Rows, clients: int) -> Ragged:
    """The rows of each client, in ascending order.

    >>> [rows.tolist() for rows in held(np.array([1, -1, 0, 1]), 2)]
    [[2], [0, 3]]
    """
    sizes = np.bincount(owner + 1, minlength=clients + 1)
    return Ragged.from_sizes(np.argsort(owner, kind="stable")[sizes[0] :], sizes[1:])


def set_aside(rows: Ragged, counts: Rows, rng: np.random.Generator) -> tuple[Ragged, Ragged]:
    """What is kept and what is put aside when list `i` gives up `counts[i]` of its rows, at random.

    >>> kept, aside = set_aside(Ragged.of([[1, 2, 3], [4]]), np.array([2, 0]), np.random.default_rng(0))
    >>> kept.sizes.tolist(), aside.sizes.tolist(), sorted([*kept.flat, *aside.flat]) == [1, 2, 3, 4]
    ([1, 1], [2, 0], True)
    """
    client = np.repeat(np.arange(len(rows)), rows.sizes)
    order = np.lexsort((rng.random(len(rows.flat)), client))
    gone = np.empty(len(rows.flat), bool)
    gone[order] = np.arange(len(order)) - rows.offsets[client] < counts[client]
    return Ragged.from_sizes(rows.flat[~gone], rows.sizes - counts), Ragged.from_sizes(rows.flat[gone], counts)


def lift(owner: Rows, clients: int, minimum: int, rng: np.random.Generator) -> Rows:
    """Random rows of the largest clients go to those below `minimum`, in one step: nothing is drawn again.

    >>> lift(np.array([0, 0, 0, 0]), 2, 1, np.random.default_rng(0)).tolist().count(1)
    1
    """
    sizes = np.bincount(owner[owner >= 0], minlength=clients)
    target = level(sizes, minimum)
    _, moved = set_aside(held(owner, clients), np.maximum(sizes - target, 0), rng)
    lifted = owner.copy()
    lifted[rng.permutation(moved.flat)] = np.repeat(np.arange(clients), np.maximum(target - sizes, 0))
    return lifted
