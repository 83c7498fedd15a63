"""Partitions by where an image comes from: its domain, or the person who wrote it."""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from coterie.data.partitions.base import Partitioner
from coterie.data.partitions.rows import hand_out, held, set_aside, shares
from coterie.data.partitions.slices import by_domains
from coterie.data.pool import Partition, Pool, Rows
from coterie.errors import UserError
from coterie.settings import Count, ProperShare, spec

__all__ = ["Domains", "Natural"]


@spec(kw_only=True)
class Domains(Partitioner):
    """Each client holds rows of one domain and is tested on the whole test set of that domain.

    FCCL (Huang, Ye & Du, CVPR 2022) has four clients, one per digit domain, with 150, 80, 5,000 and 1,800 samples.

    >>> pool = Pool(np.zeros((8, 1, 2, 2), np.uint8), np.zeros(8, np.int64), 6, 1, domain=np.arange(8) % 2, domains=("ink", "photo"))
    >>> partition = Domains(samples=(1, 3)).partition(pool, seed=0)
    >>> partition.train.sizes.tolist(), partition.domain_of.tolist(), [rows.tolist() for rows in partition.tests]
    ([1, 3], [0, 1], [[6], [7]])
    """

    name: ClassVar[str] = "domains"
    clients: Count | None = None
    """None: one per domain. More than that: neighbouring clients share a domain and divide its rows evenly."""
    samples: Annotated[tuple[Count, ...], Field(strict=False)] | None = None
    """Random training rows of each domain, in the order of the pool's domains, for all clients of it together; None: all."""

    def assign(self, pool: Pool, seed: int) -> Partition:
        """Rows of each client's domain."""
        if pool.domain is None:
            raise UserError("partition.name = 'domains': expected data with domains, but these have none")
        clients, domains = self.clients or len(pool.domains), len(pool.domains)
        if clients < domains:
            raise self.error("clients", f"expected at least {domains}, one per domain ({', '.join(pool.domains)})")
        domain_of = np.arange(clients) * domains // clients
        of_row = pool.domain[: pool.train]
        take = shares(domain_of, self.stock(np.bincount(of_row, minlength=domains), pool.domains))
        owner = hand_out(of_row, np.arange(clients), domain_of, take, self.stream(seed, "rows"))
        return Partition(held(owner, clients), *by_domains(pool, pool.domain, domain_of), domain_of=domain_of)

    def stock(self, rows: Rows, domains: tuple[str, ...]) -> Rows:
        """Rows of each domain that are handed out, of those there are."""
        if self.samples is None:
            return rows
        if len(self.samples) != len(domains):
            raise self.error("samples", f"expected {len(domains)} numbers, one per domain ({', '.join(domains)})")
        for domain, there, asked in zip(domains, rows, self.samples, strict=True):
            if asked > there:
                raise self.error("samples", f"expected at most {there} for {domain}, which has no more training rows")
        return np.array(self.samples, np.int64)


@spec(kw_only=True)
class Natural(Partitioner):
    """Each client is a person, and holds what that person wrote: MNIST's training set by its 539 writers.

    Only official training rows are used, so that the official test set (in MNIST: other people) stays whole for a global model. A client
    is tested on a share of its own rows that is held out, at least one if it has two. Rows without a known writer are left out.

    >>> pool = Pool(np.zeros((9, 1, 2, 2), np.uint8), np.zeros(9, np.int64), 8, 1, writer=np.array([5, 5, 5, 5, 3, 3, 5, -1, 4]))
    >>> partition = Natural(test=0.4).partition(pool, seed=0)
    >>> partition.train.sizes.tolist(), partition.tests.sizes.tolist()
    ([1, 3], [1, 2])
    """

    name: ClassVar[str] = "natural"
    clients: Count | None = None
    """None: every writer, in order of their numbers. Fewer: that many, drawn at random."""
    test: ProperShare = 0.2
    """The share of a writer's rows held out as its test slice, to the nearest row."""

    def assign(self, pool: Pool, seed: int) -> Partition:
        """Rows of each writer, less those held out."""
        if pool.writer is None:
            raise UserError("partition.name = 'natural': expected data that say who made each sample, but these do not")
        of_row = pool.writer[: pool.train]
        people = self.choose(np.unique(of_row[of_row >= 0]), self.stream(seed, "writers"))
        index = np.minimum(np.searchsorted(people, of_row), len(people) - 1)
        whole = held(np.where(people[index] == of_row, index, -1), len(people))
        counts = np.minimum(np.maximum(np.rint(self.test * whole.sizes).astype(np.int64), 1), whole.sizes - 1)
        train, tests = set_aside(whole, counts, self.stream(seed, "tests"))
        return Partition(train, tests, np.arange(len(people)))

    def choose(self, writers: Rows, rng: np.random.Generator) -> Rows:
        """Those of the writers who take part."""
        if not len(writers) or (self.clients or 0) > len(writers):
            raise self.error("clients", f"expected at most {len(writers)}, the number of writers in the training set")
        return writers if self.clients is None else np.sort(rng.choice(writers, self.clients, replace=False))
