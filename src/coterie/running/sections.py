"""The tables of an experiment file: data, evaluation, new clients, the engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from coterie.data import decoded
from coterie.data.compose import draw_rows, join, limit, resize, take, without_labels
from coterie.data.pool import Pool
from coterie.data.sources import SOURCES, Source
from coterie.engines import Engine, build_engine, known
from coterie.settings import Count, ProperShare, Whole, field_of, fields_of

__all__ = ["Clients", "Data", "EngineSettings", "Evaluation", "NewClients", "Public", "Section"]

Clients = tuple[Whole, ...]
"""By their numbers, from 0."""


class Section(BaseModel):
    """A table of an experiment file."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, arbitrary_types_allowed=True)


class Public(Section):
    """Unlabelled data that every participant, and the server, holds."""

    source: Annotated[Source, field_of(SOURCES, "data.public.source")]
    """Where they come from: a name or a table, see `coterie list datasets`."""
    samples: Count | None = None
    """How many training images of it; None for all."""
    sent: bool = False
    """Whether handing it out is counted as setup traffic, or everybody has it already."""


class Data(Section):
    """What is learned from."""

    source: Annotated[tuple[Source, ...], fields_of(SOURCES, "data.source")]
    """One source, or a list of them that become domains."""
    size: Count | None = None
    """Images become squares of this size."""
    channels: Literal[1, 3] | None = None
    """Images become grey or coloured."""
    train: Count | None = None
    """At most so many training samples, as even over classes as can be: for scaling an experiment down."""
    test: Count | None = None
    """At most so many test samples."""
    validation: Count | None = None
    """So many labelled training images go to the server, for methods that validate there, and to no client."""
    public: Public | None = None
    """Unlabelled data that everybody holds, for methods that exchange predictions."""

    def load(self, folder: Path, seed: int) -> Pool:
        """The pool, from files in the data folder."""
        pools = {name: self._shaped(decoded.load(source, folder)) for name, source in self._named()}
        pool = join(pools) if len(pools) > 1 else next(iter(pools.values()))
        train, test = (None if cap is None else min(cap, n) for cap, n in ((self.train, pool.train), (self.test, len(pool) - pool.train)))
        return pool if train is test is None else limit(pool, train, test, seed)

    def hold_out(self, pool: Pool, seed: int) -> tuple[Pool, Pool | None]:
        """The pool without what the server holds for validation, and that."""
        if self.validation is None:
            return pool, None
        rows = np.arange(len(pool))
        held = draw_rows(pool, rows[: pool.train], self.validation, np.random.default_rng([seed, 2]), "data.validation")
        return take(pool, np.delete(rows, held)), take(pool, held)

    def load_public(self, folder: Path, seed: int, private: Pool) -> Pool | None:
        """The public pool, its labels gone; images take the shape of the private ones."""
        if self.public is None:
            return None
        pool = without_labels(limit(decoded.load(self.public.source, folder), self.public.samples, 0, seed, "data.public.samples"))
        if pool.shape == private.shape or not (pool.images and private.images and private.shape[-1] == private.shape[-2]):
            return pool
        return resize(pool, private.shape[-1], private.shape[0])

    def _named(self) -> Iterator[tuple[str, Source]]:
        """Sources by the names of their domains; of several of one name, each with its number."""
        names = [source.name for source in self.source]
        for number, (name, source) in enumerate(zip(names, self.source, strict=True)):
            yield name if names.count(name) == 1 else f"{name}-{1 + names[:number].count(name)}", source

    def _shaped(self, pool: Pool) -> Pool:
        if self.size is None and self.channels is None:
            return pool
        return resize(pool, self.size or pool.shape[-1], self.channels or pool.shape[0])


class Evaluation(Section):
    """When, how and on whom models are measured."""

    every: Count = 1
    """Rounds between evaluations; the last round is always evaluated."""
    protocols: tuple[str, ...] = ()
    """By name; empty for the method's headline protocol."""
    clients: Count | Annotated[Clients, Field(min_length=1)] | None = None
    """Whom protocols about clients are measured at: a fixed, seeded choice of so many (None: as many as a cohort), or these, by number.
    Those that are not drawn in an evaluated round train all the same, as evaluation, so this costs time."""
    final: Count | Literal["all"] = "all"
    """The same for the last round, unless clients are named by number."""
    metrics: tuple[str, ...] = ()
    """Metrics of your own, functions of logits and labels, as `package.module:function`; beside accuracy, top-5 accuracy and loss."""
    targets: tuple[ProperShare, ...] = ()
    """Accuracies whose rounds and bytes to reach are reported."""
    stop_at: ProperShare | None = None
    """Stop once the first protocol's accuracy reaches this."""


class NewClients(Section):
    """Clients held out of training that join at the end."""

    count: Count
    """How many clients, the last ones."""
    epochs: Count = 10
    """For how long each adapts by itself."""


class EngineSettings(Section):
    """Where clients run; never changes a result."""

    name: Annotated[str, AfterValidator(known)] = "processes"
    """`processes`, `inline`, `ray`, or your own as `package.module:Class`."""
    workers: Count | None = None
    """None for one per core."""
    address: str | None = None
    """Of a cluster, for `ray`: `auto` for the one that this machine belongs to; None to start one here."""
    memory_mb: Count = 256
    """Client memories that each worker keeps in RAM; the rest lies on disk."""
    durable: bool = True
    """Whether a round waits until its checkpoint is on the disk: a power cut then loses no more than the round in progress."""
    device: str = "cpu"
    """Where networks compute: `auto`, `cpu`, `cuda`, `cuda:1`, `mps`. A GPU rounds otherwise than a CPU, as another processor does, and the
    ledger says which it was. Untested on real GPUs."""
    options: dict[str, Any] = Field(default_factory=dict)
    """What an engine of your own is called with."""

    def build(self) -> Engine:
        """The engine."""
        workers = {} if self.workers is None or self.name == "inline" else {"workers": self.workers}
        address = {} if self.address is None else {"address": self.address}
        return build_engine(self.name, **workers, **address, **self.options)
