"""All sites of an experiment: one shared pool, one partition of its rows, and the settings that turn a client's number into its Site.

Its arrays can be saved in a folder and mapped by every worker, so that starting one copies nothing.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
import torch

from coterie.data.arrays import lay_down, map_again
from coterie.data.examples import Examples
from coterie.data.pool import Partition, Pool, Rows, count
from coterie.devices import CPU, Device
from coterie.models import Architecture
from coterie.protocols import PROTOCOLS, Data, Model
from coterie.seeds import seed_of
from coterie.settings import Whole
from coterie.site import SERVER, ModelCache, Site, Visit
from coterie.training.score import find_metric, metric_name
from coterie.training.settings import Training

__all__ = ["ModelsBy", "Plan", "Population"]

ModelsBy = Literal["turn", "group", "random"] | tuple[Whole, ...]
"""How clients come by their architectures; see `Population.architecture_of`."""


NO_ROWS: Rows = np.empty(0, np.int64)
NOTHING_ELSE = Visit()
LISTED = 200
"""Clients whose classes are described one by one; of all further ones only the sums are."""


class HasNetworks(Protocol):
    """What a population must know of a method."""

    gathers_data: ClassVar[bool]
    needs_public: ClassVar[bool]
    public_at_server: ClassVar[bool]
    evaluates: ClassVar[tuple[Model, ...]]

    def network(self, base: Architecture, client: int) -> Architecture:
        """The network that the method has at a site."""


@dataclass(frozen=True)
class Plan:
    """The settings that turn a client's number into its Site."""

    method: HasNetworks
    seed: int
    architectures: tuple[Architecture, ...]
    """`Population.architecture_of` says who has which."""
    training: Training
    float64: bool = False
    models_by: ModelsBy = "turn"
    new_clients: int = 0
    """How many clients, the last ones, join only after training."""
    noisy_labels: tuple[int, ...] = ()
    """Clients whose training labels were replaced by random ones."""
    pretraining: int = 0
    """Epochs that a client trains its own model alone before it first takes part."""
    metrics: tuple[str, ...] = ()
    """A user's own, as `package.module:function`."""
    shared: Path | None = None
    """Where pretrained models lie that several runs start from."""

    @property
    def dtype(self) -> torch.dtype:
        """What networks compute in."""
        return torch.float64 if self.float64 else torch.float32

    @property
    def evaluates(self) -> tuple[Model, ...]:
        """The models that a task may give to `site.evaluate`: a method may inherit tasks and leave out some of the models they measure."""
        return _evaluated(type(self.method))


@functools.cache  # every site asks
def _evaluated(method: type[object]) -> tuple[Model, ...]:
    return tuple({model for kind in method.__mro__ for model in getattr(kind, "evaluates", ())})


@dataclass(frozen=True, eq=False)
class Population:
    """All sites of an experiment.

    >>> from coterie.running.experiment import Experiment
    >>> population = Experiment.load("digits-two-class").population()
    >>> population.clients, len(population.site(3, 1, ModelCache()).train)
    (10, 145)
    """

    plan: Plan
    pool: Pool
    partition: Partition
    public: Pool | None = None
    held: Pool | None = None
    """Labelled images that only the server has, for validation."""
    device: Device = CPU
    """Where samples are when they are trained on."""

    @property
    def clients(self) -> int:
        """How many clients are registered."""
        return self.partition.clients

    @property
    def new_clients(self) -> range:
        """The clients that join after training."""
        return range(self.clients - self.plan.new_clients, self.clients)

    def measurable(self, client: int, data: Data = "own test") -> bool:
        """Whether a client has any of the data that a protocol is about: of few rows none may be left for validation."""
        partition = self.partition
        if data == "own validation":
            return len(partition.validation) > 0 and bool(partition.validation.sizes[client])
        unknown = data == "other domains" or not len(partition.tests.flat)  # participants have test data that the server does not know of
        return unknown or len(partition.tests[int(partition.test_of[client])]) > 0

    def has_public(self, client: int) -> bool:
        """Whether a client, or the server, has public data: where its method needs them, and nowhere else."""
        method = self.plan.method
        return self.public is not None and method.needs_public and (client == SERVER or not method.public_at_server)

    def architecture_of(self, client: int) -> int:
        """The position in `plan.architectures` of a client's architecture; the server's is the first.

        In turn: client `i` has architecture `i` modulo their number. By group: a client's domain where clients have one, else
        neighbouring clients in blocks as equal as can be. At random: drawn for each client by itself, from the run's seed. A list has
        the position for each client.

        >>> from coterie.running.experiment import Experiment
        >>> table = Experiment.load("digits-two-class").resolved() | {"model": ["mlp", "mlp", "mlp"]}
        >>> def kinds(by):
        ...     population = Experiment.parse(table | {"models_by": by}).population()
        ...     return [population.architecture_of(client) for client in range(10)]
        >>> kinds("turn"), kinds("group")
        ([0, 1, 2, 0, 1, 2, 0, 1, 2, 0], [0, 0, 0, 0, 1, 1, 1, 2, 2, 2])
        >>> kinds([0, 0, 2, 0, 0, 0, 0, 0, 0, 1])
        [0, 0, 2, 0, 0, 0, 0, 0, 0, 1]
        """
        kinds, by, domain_of = len(self.plan.architectures), self.plan.models_by, self.partition.domain_of
        if client == SERVER:
            return 0
        if isinstance(by, tuple):
            return by[client]
        if by == "random":
            return seed_of(self.plan.seed, "architecture", client) % kinds
        if by == "turn":
            return client % kinds
        return client * min(kinds, self.clients) // self.clients if domain_of is None else int(domain_of[client]) % kinds

    def site(self, client: int, round: int, cache: ModelCache, visit: Visit = NOTHING_ELSE, network_of: int | None = None) -> Site:
        """The Site of a client, or of the server, with the network that the method has there, or at another site."""
        plan, owner = self.plan, client if network_of is None else network_of
        index = self.architecture_of(owner)
        own = self._server() if client == SERVER else self._client(client)
        return Site(
            id=client,
            round=round,
            seed=plan.seed,
            architecture=plan.method.network(plan.architectures[index], owner),
            architecture_index=index,
            training=plan.training,
            cache=cache,
            dtype=plan.dtype,
            public_data=self._all_of(self.public) if self.public is not None and self.has_public(client) else None,
            tests=self._tests_by_domain() if any(PROTOCOLS[name].data == "other domains" for name in visit.protocols) else {},
            pretraining=plan.pretraining,
            shared=plan.shared,
            visit=visit,
            evaluates=plan.evaluates,
            metrics={metric_name(path): find_metric(path) for path in plan.metrics},
            **own,
        )

    def _client(self, client: int) -> dict[str, Any]:
        """What a client holds."""
        partition = self.partition
        pixels = None if partition.permutation is None else partition.permutation[client]
        validation = partition.validation[client] if len(partition.validation) else NO_ROWS
        return {
            "train": self._examples(partition.train[client], pixels),
            "validation": self._examples(validation, pixels),
            "test": self._examples(partition.tests[int(partition.test_of[client])], pixels),
            "domain": None if partition.domain_of is None else self.pool.domains[int(partition.domain_of[client])],
        }

    def _server(self) -> dict[str, Any]:
        """What the server holds: test data, validation data if the experiment gives it any, and nothing to train on, unless gathered."""
        nothing = self._examples(NO_ROWS)
        taking_part = range(self.clients - self.plan.new_clients)
        gathered = [self.partition.train[client] for client in taking_part] if self.plan.method.gathers_data else [NO_ROWS]
        return {
            "train": self._examples(np.sort(np.concatenate(gathered))),
            "validation": nothing if self.held is None else self._all_of(self.held),
            "test": self._examples(np.arange(self.pool.train, len(self.pool))),
        }

    def describe(self) -> dict[str, Any]:
        """Who holds what, as the ledger has it: samples by client and class (the first 200 clients), and by class over all.

        `architecture_of` has the position of each client's model in the experiment's list; noisy labels are counted as replaced.
        """
        table, partition = count(self.pool, self.partition), self.partition
        domain_of = None if partition.domain_of is None else partition.domain_of[:LISTED].tolist()
        sums = {"clients": partition.clients, "classes": self.pool.classes, "totals": table.sum(axis=0).tolist()}
        domains = {"domains": list(self.pool.domains), "domain_of": domain_of, "note": self.pool.note}
        kinds = [self.architecture_of(client) for client in range(min(partition.clients, LISTED))]
        return (
            sums | {"counts": table[:LISTED].tolist()} | domains | {"architecture_of": kinds, "noisy_labels": list(self.plan.noisy_labels)}
        )

    def _examples(self, rows: Rows, pixels: Rows | None = None) -> Examples:
        return Examples(self.pool, rows, pixels, self.plan.dtype, self.device)

    def _all_of(self, pool: Pool) -> Examples:
        return Examples(pool, np.arange(len(pool)), dtype=self.plan.dtype, device=self.device)

    def _tests_by_domain(self) -> dict[str, Examples]:
        """Each domain's test rows, in the order of domains."""
        domain = self.pool.domain
        if domain is None:
            return {}
        rows = np.arange(self.pool.train, len(self.pool))
        return {name: self._examples(rows[domain[rows] == index]) for index, name in enumerate(self.pool.domains)}

    def save(self, folder: Path) -> None:
        """Lay the arrays into a folder for workers to map; here they are mapped too from now on, so that all processes share one copy."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, part in (("pool", self.pool), ("deal", self.partition), ("public", self.public), ("held", self.held)):
            if part is not None:
                lay_down(part, folder, name)

    @classmethod
    def open(cls, plan: Plan, folder: Path, device: Device = CPU) -> Population:
        """The population that `save` laid down, its arrays mapped read-only in effect: writes would stay private."""
        public, held = (map_again(Pool, folder, name) if (folder / f"{name}.json").exists() else None for name in ("public", "held"))
        return cls(plan, map_again(Pool, folder, "pool"), map_again(Partition, folder, "deal"), public, held, device)
