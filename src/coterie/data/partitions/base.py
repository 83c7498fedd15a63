"""What every partition is: settings, a rule for who holds which rows, and a private validation split taken from them."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np

from coterie.data.partitions.rows import set_aside
from coterie.data.pool import Partition, Pool, Rows
from coterie.errors import UserError
from coterie.settings import Count, ShareBelowOne, Spec, spec

__all__ = ["Partitioner", "stream"]


def stream(seed: int, *purpose: str) -> np.random.Generator:
    """Random numbers that depend on the seed and on what they are for, and on nothing else.

    >>> int(stream(0, "rows").integers(100)) == int(stream(0, "rows").integers(100))
    True
    """
    if seed < 0:
        raise UserError(f"seed = {seed}: expected a whole number that is not negative")
    digest = hashlib.blake2b("/".join(purpose).encode(), digest_size=16).digest()
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, int.from_bytes(digest, "little")])))


@spec(kw_only=True)
class Partitioner(Spec):
    """How a pool's rows are assigned to clients; a pure function of the pool and the seed.

    A partitioner of one's own implements `assign`; `partition` then takes each client's validation rows from what it holds.
    """

    clients: Count | None
    """How many; None, where a partition allows it: as many as the data have domains or writers."""
    validation: ShareBelowOne = 0.0
    """The share of each client's training rows put aside, to the nearest row; at least one row stays for training."""

    def assign(self, pool: Pool, seed: int) -> Partition:
        """All that each client holds, and its test slice, before validation rows are put aside."""
        raise NotImplementedError

    def partition(self, pool: Pool, seed: int) -> Partition:
        """The rows of each client; the same pool and seed give the same partition."""
        whole = self.assign(pool, seed)
        sizes = whole.train.sizes
        if not sizes.all():
            raise self.error("clients", f"client {int(np.argmin(sizes))} of {len(sizes)} would hold no training row")
        if not self.validation:
            return whole
        counts = np.minimum(np.rint(self.validation * sizes).astype(np.int64), sizes - 1)
        train, validation = set_aside(whole.train, counts, self.stream(seed, "validation"))
        return replace(whole, train=train, validation=validation)

    def stream(self, seed: int, purpose: str) -> np.random.Generator:
        """This partition's own random numbers."""
        return stream(seed, "partition", self.name, purpose)

    def labels(self, pool: Pool, minimum: int = 1) -> Rows:
        """The training rows' labels, once it is clear that they suffice for `minimum` rows a client."""
        if self.clients is not None and self.clients * minimum > pool.train:
            each = "" if minimum == 1 else f" with {minimum} rows each"
            raise self.error("clients", f"expected at most {pool.train // minimum} clients{each}, there are {pool.train:,} training rows")
        return pool.y[: pool.train]

    def error(self, key: str, message: str) -> UserError:
        """A sentence that begins with one of this partition's settings."""
        return UserError(f"partition.{key} = {getattr(self, key)!r}: {message} (partition '{self.name}')")
