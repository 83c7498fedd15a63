"""Partitions in which every client draws from the same distribution of labels: they differ in size, or in the order of pixels."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from coterie.data.partitions.base import Partitioner
from coterie.data.partitions.rows import apportion, even, held, level
from coterie.data.partitions.slices import apart, everything
from coterie.data.pool import Partition, Pool, Ragged, Rows
from coterie.settings import Count, spec

__all__ = ["IID", "Permuted", "Quantity"]


def _at_random(partition: Partitioner, pool: Pool, seed: int, sizes: Rows) -> Partition:
    """All training rows at random in parts of the given sizes, the test set at random in even parts."""
    owner = partition.stream(seed, "rows").permutation(np.repeat(np.arange(len(sizes)), sizes))
    return Partition(held(owner, len(sizes)), *apart(pool, len(sizes), partition.stream(seed, "tests")))


@spec(kw_only=True)
class IID(Partitioner):
    """Random parts of even size, of the training set and of the test set.

    >>> pool = Pool(np.zeros((12, 1, 2, 2), np.uint8), np.arange(12) % 2, train=8, classes=2)
    >>> partition = IID(clients=4).partition(pool, seed=0)
    >>> partition.train.sizes.tolist(), partition.tests.sizes.tolist()
    ([2, 2, 2, 2], [1, 1, 1, 1])
    """

    name: ClassVar[str] = "iid"
    clients: Count

    def assign(self, pool: Pool, seed: int) -> Partition:
        """Even parts."""
        return _at_random(self, pool, seed, even(len(self.labels(pool)), self.clients))


@spec(kw_only=True)
class Quantity(Partitioner):
    """Random parts of uneven size; labels as in the whole, and an even part of the test set each.

    A client's size is proportional to exp(spread * z), z standard normal (`log-normal`) or standard exponential
    (`power-law`, a Pareto tail of exponent 1 / spread): either way `spread` is the standard deviation of the log size, and 0 is iid.

    >>> pool = Pool(np.zeros((99, 1, 2, 2), np.uint8), np.zeros(99, np.int64), train=99, classes=1)
    >>> sizes = Quantity(clients=5, minimum=4, spread=2.0).partition(pool, seed=0).train.sizes
    >>> int(sizes.sum()), bool(sizes.min() >= 4)
    (99, True)
    """

    name: ClassVar[str] = "quantity"
    clients: Count
    law: Literal["log-normal", "power-law"] = "log-normal"
    spread: Annotated[float, Field(ge=0, le=100)] = 1.0
    minimum: Count = 1
    """Rows that every client has; the largest give up what is missing."""

    def assign(self, pool: Pool, seed: int) -> Partition:
        """Parts of the drawn sizes."""
        rng = self.stream(seed, "sizes")
        z = rng.standard_normal(self.clients) if self.law == "log-normal" else rng.standard_exponential(self.clients)
        sizes = apportion(len(self.labels(pool, self.minimum)), np.exp(self.spread * (z - z.max())))
        return _at_random(self, pool, seed, level(sizes, self.minimum))


@spec(kw_only=True)
class Permuted(Partitioner):
    """Every client sees its images, of training and test, in its own order of pixels: even random parts of them, or all.

    FedFusion's user-specific partition (Yao et al., ICIP 2019, section 4.3: "different permutations to MNIST on each client"). Whether
    clients share images is not stated; in the authors' code nothing is divided (`rows = "all"`). Every client is tested on the whole
    test set, which its own order makes a test set of its own.

    >>> pool = Pool(np.zeros((6, 1, 2, 2), np.uint8), np.zeros(6, np.int64), train=4, classes=1)
    >>> partition = Permuted(clients=2).partition(pool, seed=0)
    >>> partition.permutation.shape, partition.tests.sizes.tolist(), partition.test_of.tolist()
    ((2, 4), [2], [0, 0])
    >>> partition.train.sizes.tolist(), Permuted(clients=2, rows="all").partition(pool, seed=0).train.sizes.tolist()
    ([2, 2], [4, 4])
    """

    name: ClassVar[str] = "permuted"
    clients: Count
    rows: Literal["divided", "all"] = "divided"
    """Whether clients divide the training images, or each holds all of them."""

    def assign(self, pool: Pool, seed: int) -> Partition:
        """Who holds which rows, the whole test set and the orders of pixels."""
        _, height, width = pool.shape
        tests, test_of = everything(pool, self.clients)
        orders = np.tile(np.arange(height * width), (self.clients, 1))
        self.stream(seed, "pixels").permuted(orders, axis=1, out=orders)
        return Partition(self._train(pool, seed), tests, test_of, permutation=orders)

    def _train(self, pool: Pool, seed: int) -> Ragged:
        if self.rows == "all":
            return Ragged.of([np.arange(pool.train)] * self.clients)
        return _at_random(self, pool, seed, even(len(self.labels(pool)), self.clients)).train
