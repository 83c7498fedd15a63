"""Partitions in which clients differ by their labels."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from coterie.data.partitions.base import Partitioner
from coterie.data.partitions.rows import apportion, even, hand_out, held, lift, shares
from coterie.data.partitions.slices import alike, by_classes
from coterie.data.pool import Partition, Pool, Rows
from coterie.settings import Count, Positive, spec

__all__ = ["Classes", "Dirichlet", "Groups", "Shards"]

Group = Annotated[tuple[int, ...], Field(strict=False, min_length=1)]


def _by_owner(pool: Pool, owner: Rows, clients: int) -> Partition:
    train = held(owner, clients)
    return Partition(train, *by_classes(pool, train))


@spec(kw_only=True)
class Shards(Partitioner):
    """Sort by label, cut into `clients * per_client` shards, give each client `per_client` of them at random.

    McMahan et al. 2017: 200 shards of 300 over 100 clients, 2 each. Shards differ by at most one row where they do not divide.
    A client is tested on the test rows of the classes it holds.

    >>> pool = Pool(np.zeros((16, 1, 2, 2), np.uint8), np.arange(16) % 4, train=12, classes=4)
    >>> partition = Shards(clients=2, per_client=2).partition(pool, seed=0)
    >>> [len(set(pool.y[rows])) for rows in partition.train], partition.tests.sizes.tolist()
    ([2, 2], [2, 2])
    """

    name: ClassVar[str] = "shards"
    clients: Count
    per_client: Count = 2
    """Shards for each client."""

    def assign(self, pool: Pool, seed: int) -> Partition:
        """Shards of the sorted rows."""
        shards = self.clients * self.per_client
        if shards > pool.train:
            raise self.error(
                "per_client", f"{self.clients} clients make {shards} shards of {pool.train} training rows, expected a row per shard"
            )
        to = self.stream(seed, "shards").permutation(shards) // self.per_client
        owner = np.empty(pool.train, np.int64)
        owner[np.argsort(self.labels(pool), kind="stable")] = np.repeat(to, even(pool.train, shards))
        return _by_owner(pool, owner, self.clients)


@spec(kw_only=True)
class Classes(Partitioner):
    """Each client holds `per_client` classes, each class is held by evenly many clients (to within one), and no row by two.

    As Shi & Radu, EuroMLSys 2022, may be read: 20 clients of 2 classes and 1,250 samples of each, so each class of CIFAR-10 at 4 clients.
    A client is tested on the test rows of the classes it holds.

    >>> pool = Pool(np.zeros((16, 1, 2, 2), np.uint8), np.arange(16) % 4, train=12, classes=4)
    >>> Classes(clients=2, per_client=2, samples=3).partition(pool, seed=0).train.sizes.tolist()
    [6, 6]
    >>> Classes(clients=2, per_client=2, samples=5).partition(pool, seed=0)
    Traceback (most recent call last):
    ...
    coterie.errors.UserError: partition.samples = 5: class 0 has 3 training rows for 1 client, expected at most 3 (partition 'classes')
    """

    name: ClassVar[str] = "classes"
    clients: Count
    per_client: Count = 2
    """Classes for each client."""
    samples: Count | None = None
    """Rows of each of its classes that a client gets; None: whoever holds a class divides all of it."""

    def assign(self, pool: Pool, seed: int) -> Partition:
        """Classes first, then rows of them."""
        labels = self.labels(pool)
        stock = np.bincount(labels, minlength=pool.classes)
        kind = self.choose(np.flatnonzero(stock), self.stream(seed, "classes"))
        take = self.takes(kind, stock)
        client = np.repeat(np.arange(self.clients), self.per_client)
        return _by_owner(pool, hand_out(labels, client, kind, take, self.stream(seed, "rows")), self.clients)

    def choose(self, present: Rows, rng: np.random.Generator) -> Rows:
        """The classes of client 0, of client 1, and so on: decks of all classes, shuffled and dealt in hands of `per_client`.

        Where hands do not divide a deck, it is dealt around until they do, so that no hand spans two decks or holds a class twice.
        """
        classes = len(present)
        if self.per_client > classes:
            raise self.error("per_client", f"expected at most {classes}, the classes that have training rows")
        deck = math.lcm(classes, self.per_client)
        cards = np.arange(self.clients * self.per_client)
        decks = rng.permuted(np.tile(present, (int(cards[-1]) // deck + 1, 1)), axis=1)
        chosen: Rows = decks[cards // deck, cards % classes]
        return chosen

    def takes(self, kind: Rows, stock: Rows) -> Rows:
        """Rows per client and class."""
        holders = np.bincount(kind, minlength=len(stock))
        need = holders * (self.samples or 1)
        if (need > stock).any():
            worst = int(np.argmax(need > stock))
            many = f"{holders[worst]} client" + "s" * bool(holders[worst] > 1)
            key, most = ("samples", stock[worst] // holders[worst]) if self.samples else ("clients", stock[worst])
            raise self.error(key, f"class {worst} has {stock[worst]} training rows for {many}, expected at most {most}")
        return shares(kind, stock) if self.samples is None else np.full(len(kind), self.samples)


@spec(kw_only=True)
class Groups(Partitioner):
    """Classes in groups, and each client holds one group; clients of the same group divide its rows evenly.

    FedMMD (Yao et al., VCIP 2018): 5 + 5 classes over two clients. A client is tested on the test rows of its group's classes.

    >>> pool = Pool(np.zeros((16, 1, 2, 2), np.uint8), np.arange(16) % 4, train=12, classes=4)
    >>> [sorted(set(pool.y[rows].tolist())) for rows in Groups(clients=2).partition(pool, seed=0).train]
    [[0, 1], [2, 3]]
    """

    name: ClassVar[str] = "groups"
    clients: Count
    groups: Count | Annotated[tuple[Group, ...], Field(strict=False, min_length=1)] | None = None
    """The classes of each group, or into how many groups of neighbouring classes to cut; None: one per client, at most one per class."""

    def assign(self, pool: Pool, seed: int) -> Partition:
        """Rows of the classes of each client's group."""
        labels = self.labels(pool)
        groups = self.cut(pool.classes)
        group_of = np.arange(self.clients) * len(groups) // self.clients
        client = np.repeat(np.arange(self.clients), [len(groups[g]) for g in group_of])
        kind = np.concatenate([groups[g] for g in group_of])
        take = shares(kind, np.bincount(labels, minlength=pool.classes))
        return _by_owner(pool, hand_out(labels, client, kind, take, self.stream(seed, "rows")), self.clients)

    def cut(self, classes: int) -> list[Rows]:
        """The classes of each group, checked."""
        if not isinstance(self.groups, tuple):
            number = self.groups or min(self.clients, classes)
            if number > classes:
                raise self.error("groups", f"expected at most {classes}, the number of classes")
            groups = np.split(np.arange(classes), np.cumsum(even(classes, number))[:-1])
        else:
            groups = [np.array(group, np.int64) for group in self.groups]
        if len(groups) > self.clients:
            raise self.error("clients", f"expected at least {len(groups)}, one per group")
        for group in groups:
            if group.min() < 0 or group.max() >= classes or len(np.unique(group)) < len(group):
                raise self.error("groups", f"expected different classes from 0 to {classes - 1} in each group, not {group.tolist()}")
        return groups


@spec(kw_only=True)
class Dirichlet(Partitioner):
    """Each class is divided among all clients in proportions drawn from a Dirichlet distribution: the smaller `alpha`, the more uneven.

    As in Yurochkin et al. 2019 and Li et al. 2022 (NIID-Bench), except that they draw again until no client is too small, which may never
    happen; here clients below `minimum` get random rows of the largest, once. A client is tested on a slice of the test set
    with its own label proportions (see `slices.alike`).

    >>> pool = Pool(np.zeros((120, 1, 2, 2), np.uint8), np.arange(120) % 3, train=90, classes=3)
    >>> sizes = Dirichlet(clients=20, alpha=0.001, minimum=4).partition(pool, seed=0).train.sizes
    >>> int(sizes.sum()), int(sizes.min())
    (90, 4)
    """

    name: ClassVar[str] = "dirichlet"
    clients: Count
    alpha: Positive = 0.5
    """The concentration: the smaller, the fewer classes a client has."""
    minimum: Count = 1
    """Rows that every client has."""

    def assign(self, pool: Pool, seed: int) -> Partition:
        """Proportions, rows, and the repair of what is too small."""
        labels = self.labels(pool, self.minimum)
        rng = self.stream(seed, "rows")
        takes = [self.divide(int(n), rng) for n in np.bincount(labels, minlength=pool.classes)]
        client = np.concatenate([np.flatnonzero(take) for take in takes])
        kind = np.repeat(np.arange(pool.classes), [np.count_nonzero(take) for take in takes])
        owner = hand_out(labels, client, kind, np.concatenate([take[take > 0] for take in takes]), rng)
        train = held(lift(owner, self.clients, self.minimum, rng), self.clients)
        return Partition(train, *alike(pool, train, self.stream(seed, "tests")))

    def divide(self, rows: int, rng: np.random.Generator) -> Rows:
        """Rows of one class for each client."""
        return apportion(rows, rng.dirichlet(np.full(self.clients, self.alpha)))
