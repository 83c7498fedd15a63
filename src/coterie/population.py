"""All sites of an experiment: one shared pool, one partition of its rows, and the settings that turn a client's number into its Site.

Its arrays can be saved in a folder and mapped by every worker, so that starting one copies nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from coterie.data.examples import Examples
from coterie.data.pool import Partition, Pool, Ragged, Rows, count
from coterie.models import Architecture
from coterie.seeds import seed_of
from coterie.site import SERVER, ModelCache, Site
from coterie.training.settings import Training

__all__ = ["ModelsBy", "Plan", "Population"]

ModelsBy = Literal["turn", "group", "random"]
"""How clients come by their architectures; see `Population.architecture_of`."""


LISTED = 200
"""Clients whose classes are described one by one; of all further ones only the sums are."""


@dataclass(frozen=True)
class Plan:
    """The settings that turn a client's number into its Site."""

    seed: int
    architectures: tuple[Architecture, ...]
    """`Population.architecture_of` says who has which."""
    training: Training
    float64: bool = False
    models_by: ModelsBy = "turn"
    new_clients: int = 0
    """So many clients, the last ones, join only after training."""
    noisy_labels: tuple[int, ...] = ()
    """Clients whose training labels were replaced by random ones."""

    @property
    def dtype(self) -> torch.dtype:
        """What networks compute in."""
        return torch.float64 if self.float64 else torch.float32


@dataclass(frozen=True, eq=False)
class Population:
    """All sites of an experiment."""

    plan: Plan
    pool: Pool
    partition: Partition
    public: Pool | None = None
    held: Pool | None = None
    """Labelled images that only the server has, for validation."""

    @property
    def clients(self) -> int:
        """How many clients are registered."""
        return self.partition.clients

    @property
    def new_clients(self) -> range:
        """The clients that join after training."""
        return range(self.clients - self.plan.new_clients, self.clients)

    def architecture_of(self, client: int) -> int:
        """The position in `plan.architectures` of a client's architecture; the server's is the first.

        In turn: client `i` has architecture `i` modulo their number. By group: a client's domain where clients have one, else
        neighbouring clients in blocks as equal as can be. At random: drawn for each client by itself, from the run's seed.

        >>> from coterie.running.experiment import Experiment
        >>> table = Experiment.load("digits-two-class").resolved() | {"model": ["mlp", "mlp", "mlp"]}
        >>> def kinds(by):
        ...     population = Experiment.parse(table | {"models_by": by}).population()
        ...     return [population.architecture_of(client) for client in range(10)]
        >>> kinds("turn"), kinds("group")
        ([0, 1, 2, 0, 1, 2, 0, 1, 2, 0], [0, 0, 0, 0, 1, 1, 1, 2, 2, 2])
        """
        kinds, by, domain_of = len(self.plan.architectures), self.plan.models_by, self.partition.domain_of
        if client == SERVER:
            return 0
        if by == "random":
            return seed_of(self.plan.seed, "architecture", client) % kinds
        if by == "turn":
            return client % kinds
        return client * min(kinds, self.clients) // self.clients if domain_of is None else int(domain_of[client]) % kinds

    def site(self, client: int, round: int, cache: ModelCache, wanted: frozenset[str] = frozenset(), exhibiting: bool = False) -> Site:
        """The Site of a client, or of the server."""
        if client == SERVER:
            return self._server(round, cache, wanted, exhibiting)
        partition, domains = self.partition, self.pool.domains
        pixels = None if partition.permutation is None else partition.permutation[client]
        domain = None if partition.domain_of is None else domains[int(partition.domain_of[client])]
        return Site(
            id=client,
            round=round,
            seed=self.plan.seed,
            train=self._examples(partition.train[client], pixels),
            validation=self._examples(partition.validation[client] if len(partition.validation) else np.empty(0, np.int64), pixels),
            test=self._examples(partition.tests[int(partition.test_of[client])], pixels),
            architecture=self.plan.architectures[self.architecture_of(client)],
            training=self.plan.training,
            cache=cache,
            dtype=self.plan.dtype,
            public=self._public(),
            domain=domain,
            tests=self._tests_by_domain() if "inter" in wanted else {},
            wanted=wanted,
            exhibiting=exhibiting,
            kind=self.architecture_of(client),
        )

    def _server(self, round: int, cache: ModelCache, wanted: frozenset[str], exhibiting: bool) -> Site:
        nothing = self._examples(np.empty(0, np.int64))
        return Site(
            id=SERVER,
            round=round,
            seed=self.plan.seed,
            train=nothing,
            validation=nothing if self.held is None else Examples(self.held, np.arange(len(self.held)), dtype=self.plan.dtype),
            test=self._examples(np.arange(self.pool.train, len(self.pool))),
            architecture=self.plan.architectures[self.architecture_of(SERVER)],
            training=self.plan.training,
            cache=cache,
            dtype=self.plan.dtype,
            public=self._public(),
            wanted=wanted,
            exhibiting=exhibiting,
        )

    def pooled(self, clients: Iterable[int]) -> Examples:
        """The clients' training data in one place, which only a centralised baseline may look at."""
        return self._examples(np.sort(np.concatenate([self.partition.train[client] for client in clients])))

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
        return Examples(self.pool, rows, pixels, self.plan.dtype)

    def _public(self) -> Examples | None:
        return None if self.public is None else Examples(self.public, np.arange(len(self.public)), dtype=self.plan.dtype)

    def _tests_by_domain(self) -> dict[str, Examples]:
        """Each domain's test rows, in the order of domains."""
        domain = self.pool.domain
        if domain is None:
            return {}
        rows = np.arange(self.pool.train, len(self.pool))
        return {name: self._examples(rows[domain[rows] == index]) for index, name in enumerate(self.pool.domains)}

    def save(self, folder: Path) -> None:
        """Lay the arrays into a folder for workers to map."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, part in (("pool", self.pool), ("deal", self.partition), ("public", self.public), ("held", self.held)):
            if part is not None:
                _save_arrays(folder, name, part)

    @classmethod
    def open(cls, plan: Plan, folder: Path) -> Population:
        """The population that `save` laid down, its arrays mapped read-only in effect: writes would stay private."""
        public, held = (_load_arrays(folder, name, Pool) if (folder / f"{name}.json").exists() else None for name in ("public", "held"))
        return cls(plan, _load_arrays(folder, "pool", Pool), _load_arrays(folder, "deal", Partition), public, held)


def _save_arrays(folder: Path, name: str, part: Pool | Partition | Ragged) -> None:
    plain: dict[str, Any] = {}
    for each in fields(part):
        value = getattr(part, each.name)
        if isinstance(value, np.ndarray):
            np.save(folder / f"{name}.{each.name}.npy", value)
        elif isinstance(value, Ragged):
            _save_arrays(folder, f"{name}.{each.name}", value)
        else:
            plain[each.name] = value
    (folder / f"{name}.json").write_text(json.dumps(plain))


def _load_arrays(folder: Path, name: str, kind: type[Any]) -> Any:
    plain = json.loads((folder / f"{name}.json").read_text())
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in plain.items()}
    for each in fields(kind):
        path = folder / f"{name}.{each.name}.npy"
        if path.exists():
            # Mode "c": torch warns of arrays that cannot be written; pages stay shared as nobody writes.
            values[each.name] = np.load(path, mmap_mode="c")
        elif (folder / f"{name}.{each.name}.json").exists():
            values[each.name] = _load_arrays(folder, f"{name}.{each.name}", Ragged)
    return kind(**values)
