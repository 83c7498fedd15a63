"""Which part of the official test set each client is tested on: the rules that partitions choose from.

Each gives the distinct slices and, for each client, its slice.
"""

from __future__ import annotations

import numpy as np

from coterie.data.partitions.rows import even
from coterie.data.pool import Pool, Ragged, Rows

__all__ = ["Slices", "alike", "apart", "by_classes", "by_domains", "everything"]

Slices = tuple[Ragged, Rows]

ENOUGH = 100
"""Rows that a slice of `alike` should have even where there are so many clients that an even part would be smaller."""


def everything(pool: Pool, clients: int) -> Slices:
    """The whole test set, one slice that all share."""
    return Ragged.of([np.arange(pool.train, len(pool))]), np.zeros(clients, np.int64)


def apart(pool: Pool, clients: int, rng: np.random.Generator) -> Slices:
    """A random even part of the test set each; where clients outnumber the rows, one row each, shared in turn."""
    rows = pool.train + rng.permutation(len(pool) - pool.train)
    slices = max(1, min(clients, len(rows)))
    return Ragged.from_sizes(rows, even(len(rows), slices)), np.arange(clients) % slices


def by_classes(pool: Pool, train: Ragged) -> Slices:
    """All test rows of the classes that a client holds; those who hold the same classes share a slice."""
    holds = np.zeros((len(train), pool.classes), bool)
    holds[np.repeat(np.arange(len(train)), train.sizes), pool.y[train.flat]] = True
    sets, test_of = np.unique(np.packbits(holds, axis=1), axis=0, return_inverse=True)
    which, kind = np.nonzero(np.unpackbits(sets, axis=1, count=pool.classes))
    stock = np.bincount(pool.y[pool.train :], minlength=pool.classes)
    rows = np.arange(pool.train, len(pool))
    return _pick(pool, rows, len(sets), which, kind, stock[kind], np.zeros_like(kind)), test_of.reshape(-1)


def by_domains(pool: Pool, domain: Rows, domain_of: Rows) -> Slices:
    """All test rows of a client's own domain; `domain` is given for every row of the pool."""
    tests = [pool.train + np.flatnonzero(domain[pool.train :] == d) for d in range(len(pool.domains))]
    return Ragged.of(tests), domain_of


def alike(pool: Pool, train: Ragged, rng: np.random.Generator) -> Slices:
    """A slice with the client's own label proportions.

    All test rows of the classes a client holds would give a class of which it has one row the weight of the others. So
    the slice follows the client's label counts. It has an even part of the test set's size, but at least `ENOUGH` rows, or as
    many as its scarcest class allows; slices take turns around a shuffled ring of each class, so that all test rows are used.
    """
    stock = np.bincount(pool.y[pool.train :], minlength=pool.classes)
    key = np.repeat(np.arange(len(train)), train.sizes) * pool.classes + pool.y[train.flat]
    pairs, count = np.unique(key[stock[key % pool.classes] > 0], return_counts=True)
    client, kind = np.divmod(pairs, pool.classes)
    take = np.minimum(_proportional(client, count, stock[kind], len(train), _goal(int(stock.sum()), len(train))), stock[kind])
    order = np.argsort(kind, kind="stable")
    start = np.empty_like(take)
    start[order] = np.cumsum(take[order]) - take[order]
    rows = pool.train + rng.permutation(len(pool) - pool.train)
    return _pick(pool, rows, len(train), client, kind, take, start), np.arange(len(train))


def _goal(tests: int, clients: int) -> int:
    return max(tests // clients, min(tests, ENOUGH))


def _proportional(client: Rows, count: Rows, stock: Rows, clients: int, goal: int) -> Rows:
    """For each (client, class) pair, sorted by client, the rows of a slice of at most `goal` rows in proportion to `count`."""
    sizes = np.bincount(client, weights=count, minlength=clients).astype(np.int64)
    limit = np.full(clients, goal, np.int64)
    np.minimum.at(limit, client, stock * sizes[client] // count)
    before = (np.cumsum(sizes) - sizes)[client]
    upto = np.cumsum(count) - before
    cuts = np.rint(np.stack([upto - count, upto]) * limit[client] / sizes[client])
    take: Rows = (cuts[1] - cuts[0]).astype(np.int64)
    return take


def _pick(pool: Pool, rows: Rows, slices: int, which: Rows, kind: Rows, take: Rows, start: Rows) -> Ragged:
    """Slice `which[i]` (ascending) gets `take[i]` of the test `rows` of class `kind[i]`, from position `start[i]` around."""
    ring = rows[np.argsort(pool.y[rows], kind="stable")]
    stock = np.bincount(pool.y[rows], minlength=pool.classes)
    first = np.cumsum(stock) - stock
    inside = np.arange(int(take.sum())) - np.repeat(np.cumsum(take) - take, take)
    turn = (np.repeat(start, take) + inside) % np.repeat(stock[kind], take)
    sizes = np.bincount(which, weights=take, minlength=slices).astype(np.int64)
    return Ragged.from_sizes(ring[np.repeat(first[kind], take) + turn], sizes)
