"""Site: what never leaves a participant. Its data, its architecture, its randomness; the server has one too.

A `Population` is all sites of an experiment: one shared pool, one deal of its rows, and the settings that turn a client's
number into its Site. Its arrays can be laid into a folder and mapped by every worker, so that starting one copies nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from coterie.data.examples import Examples, Samples
from coterie.data.pool import Deal, Pool, Ragged, Rows, count
from coterie.fit import Fitted, Frozen, Objective, Scores, Step, Training, fit, frozen, outputs_of, score, snapshot
from coterie.models import Architecture
from coterie.record import EMPTY, Record
from coterie.seeds import generator, scoped, seed_of

__all__ = ["SERVER", "SERVER_PROTOCOLS", "Bench", "ModelsBy", "Observation", "Plan", "Population", "Site"]

SERVER = -1
"""The server's number among the sites."""
SERVER_PROTOCOLS = frozenset({"global", "composed"})
"""Evaluation protocols that test the server's model on the whole test set; all others visit clients."""
ModelsBy = Literal["turn", "group", "random"]
"""How clients come by their architectures; see `Population.kind_of`."""
LISTED = 200
"""Clients whose classes are described one by one; of all further ones only the sums are."""


class Bench:
    """Networks built once per process and architecture, then reloaded; what they hold between uses means nothing."""

    def __init__(self) -> None:
        self._built: dict[tuple[Any, ...], nn.Module] = {}

    def model(self, architecture: Architecture, shape: tuple[int, int, int], classes: int, dtype: torch.dtype, slot: str) -> nn.Module:
        """The network in `slot`; two slots of one architecture are two networks."""
        key = (architecture, shape, classes, dtype, slot)
        if key not in self._built:
            with scoped(0):
                self._built[key] = architecture.build(shape, classes).to(dtype)
        return self._built[key]


@dataclass(frozen=True)
class Observation:
    """How a model did on some data of a site, seen under an evaluation protocol."""

    protocol: str
    scores: Scores
    domain: str | None = None


@dataclass(eq=False)
class Site:
    """One participant's private world in one round.

    >>> from coterie.testing import small_experiment
    >>> from coterie.methods import FedAvg
    >>> site = small_experiment(FedAvg()).population().site(client=2, round=1, bench=Bench())
    >>> site.fresh() == site.fresh(), site.score(site.fresh()).examples == len(site.test)
    (True, True)
    """

    id: int
    round: int
    seed: int
    train: Examples
    validation: Examples
    test: Examples
    architecture: Architecture
    training: Training
    bench: Bench
    dtype: torch.dtype = torch.float32
    public: Examples | None = None
    """Unlabelled data that every participant holds."""
    domain: str | None = None
    tests: Mapping[str, Examples] = field(default_factory=dict)
    """Test sets by domain, for measuring only."""
    wanted: frozenset[str] = frozenset()
    """The protocols under which this visit is to be observed."""
    observations: list[Observation] = field(default_factory=list)
    exhibiting: bool = False
    """Whether this visit may show exhibits."""
    kind: int = 0
    """Which of the experiment's architectures this is."""
    shown: dict[str, Any] = field(default_factory=dict)

    def rng(self, *purpose: str | int) -> torch.Generator:
        """A generator that only (run, round, client, purpose) decide."""
        return generator(self.seed, self.round, self.id, *purpose)

    def model(self, slot: str = "model", architecture: Architecture | None = None) -> nn.Module:
        """This participant's network, or a second one beside it in another slot."""
        return self.bench.model(architecture or self.architecture, self.train.shape, self.train.classes, self.dtype, slot)

    def fresh(self, purpose: str = "model", architecture: Architecture | None = None) -> Record:
        """New initial weights, the same whenever the same site asks for the same purpose."""
        with scoped(seed_of(self.seed, 0, self.id, purpose)):
            return snapshot((architecture or self.architecture).build(self.train.shape, self.train.classes).to(self.dtype))

    def fit(
        self,
        start: Record,
        objective: Objective,
        *,
        carried: Record = EMPTY,
        training: Training | None = None,
        data: Samples | None = None,
        frozen: Mapping[str, Frozen | Tensor] | None = None,
        model: nn.Module | None = None,
        purpose: str = "train",
        trainable: Callable[[str], bool] = lambda name: True,
        step: type[Step] = Step,
    ) -> Fitted:
        """Train on this site's data (or `data`) from `start`; see `coterie.fit.fit`."""
        return fit(
            model or self.model(),
            start,
            self.train if data is None else data,
            objective,
            training or self.training,
            seed=seed_of(self.seed, self.round, self.id, purpose),
            round=max(self.round, 1),
            frozen=frozen,
            carried=carried,
            trainable=trainable,
            step=step,
        )

    def predict(self, params: Record, data: Samples, slot: str = "model") -> Tensor:
        """Logits of this participant's network over `data`."""
        return outputs_of(frozen(self.model(slot), params), data)

    def score(self, params: Record, data: Examples | None = None, span: tuple[int, int] | None = None) -> Scores:
        """How well this participant's network does under `params` on its own test slice, or on `data`."""
        return score(self.model(), params, self.test if data is None else data, *(span or (0, None)))

    def observe(self, protocol: str, params: Record, span: tuple[int, int] | None = None) -> None:
        """Measure `params` under a protocol, if this visit wants it; what is seen reaches the ledger, not the message."""
        if protocol in self.wanted:
            for domain, data in self._exam(protocol):
                self.observations.append(Observation(protocol, self.score(params, data, span), domain))

    def show(self, name: str, values: Tensor) -> None:
        """Put an array on show under one of the method's `exhibits`; it reaches the ledger and the report, not the message."""
        if self.exhibiting:
            self.shown[name] = values.tolist()

    def _exam(self, protocol: str) -> Iterator[tuple[str | None, Examples]]:
        """What a protocol tests on: own test slice, own validation split, or every other domain's test set."""
        if protocol == "inter":
            yield from ((name, data) for name, data in self.tests.items() if name != self.domain)
        elif protocol == "local_val":
            yield from [(None, self.validation)] if len(self.validation) else []
        elif len(self.test):
            yield self.domain, self.test


@dataclass(frozen=True)
class Plan:
    """The settings that turn a client's number into its Site."""

    seed: int
    architectures: tuple[Architecture, ...]
    """`Population.kind_of` says who has which."""
    training: Training
    float64: bool = False
    models_by: ModelsBy = "turn"
    newcomers: int = 0
    """So many clients, the last ones, join only after training."""
    spoiled: tuple[int, ...] = ()
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
    deal: Deal
    public: Pool | None = None
    held: Pool | None = None
    """Labelled pictures that only the server has, for validation."""

    @property
    def clients(self) -> int:
        """How many clients are registered."""
        return self.deal.clients

    @property
    def newcomers(self) -> range:
        """The clients that join after training."""
        return range(self.clients - self.plan.newcomers, self.clients)

    def kind_of(self, client: int) -> int:
        """The position in `plan.architectures` of a client's architecture; the server's is the first.

        In turn: client `i` has architecture `i` modulo their number. By group: a client's domain where clients have one, else
        neighbouring clients in blocks as equal as can be. At random: drawn for each client by itself, from the run's seed.

        >>> from coterie.experiment import Experiment
        >>> table = Experiment.load("digits-two-class").resolved() | {"model": ["mlp", "mlp", "mlp"]}
        >>> def kinds(by):
        ...     population = Experiment.parse(table | {"models_by": by}).population()
        ...     return [population.kind_of(client) for client in range(10)]
        >>> kinds("turn"), kinds("group")
        ([0, 1, 2, 0, 1, 2, 0, 1, 2, 0], [0, 0, 0, 0, 1, 1, 1, 2, 2, 2])
        """
        kinds, by, domain_of = len(self.plan.architectures), self.plan.models_by, self.deal.domain_of
        if client == SERVER:
            return 0
        if by == "random":
            return seed_of(self.plan.seed, "architecture", client) % kinds
        if by == "turn":
            return client % kinds
        return client * min(kinds, self.clients) // self.clients if domain_of is None else int(domain_of[client]) % kinds

    def site(self, client: int, round: int, bench: Bench, wanted: frozenset[str] = frozenset(), exhibiting: bool = False) -> Site:
        """The Site of a client, or of the server."""
        if client == SERVER:
            return self._server(round, bench, wanted, exhibiting)
        deal, domains = self.deal, self.pool.domains
        pixels = None if deal.permutation is None else deal.permutation[client]
        domain = None if deal.domain_of is None else domains[int(deal.domain_of[client])]
        return Site(
            id=client,
            round=round,
            seed=self.plan.seed,
            train=self._examples(deal.train[client], pixels),
            validation=self._examples(deal.validation[client] if len(deal.validation) else np.empty(0, np.int64), pixels),
            test=self._examples(deal.tests[int(deal.test_of[client])], pixels),
            architecture=self.plan.architectures[self.kind_of(client)],
            training=self.plan.training,
            bench=bench,
            dtype=self.plan.dtype,
            public=self._public(),
            domain=domain,
            tests=self._tests_by_domain() if "inter" in wanted else {},
            wanted=wanted,
            exhibiting=exhibiting,
            kind=self.kind_of(client),
        )

    def _server(self, round: int, bench: Bench, wanted: frozenset[str], exhibiting: bool) -> Site:
        nothing = self._examples(np.empty(0, np.int64))
        return Site(
            id=SERVER,
            round=round,
            seed=self.plan.seed,
            train=nothing,
            validation=nothing if self.held is None else Examples(self.held, np.arange(len(self.held)), dtype=self.plan.dtype),
            test=self._examples(np.arange(self.pool.train, len(self.pool))),
            architecture=self.plan.architectures[self.kind_of(SERVER)],
            training=self.plan.training,
            bench=bench,
            dtype=self.plan.dtype,
            public=self._public(),
            wanted=wanted,
            exhibiting=exhibiting,
        )

    def pooled(self, clients: Iterable[int]) -> Examples:
        """The clients' training data in one place, which only a centralised baseline may look at."""
        return self._examples(np.sort(np.concatenate([self.deal.train[client] for client in clients])))

    def partition(self) -> dict[str, Any]:
        """Who holds what, as the ledger has it: samples by client and class (the first 200 clients), and by class over all.

        `kind_of` has the position of each client's model in the experiment's list; labels of `spoiled` clients are as replaced."""
        table, deal = count(self.pool, self.deal), self.deal
        domain_of = None if deal.domain_of is None else deal.domain_of[:LISTED].tolist()
        sums = {"clients": deal.clients, "classes": self.pool.classes, "totals": table.sum(axis=0).tolist()}
        domains = {"domains": list(self.pool.domains), "domain_of": domain_of, "note": self.pool.note}
        kinds = [self.kind_of(client) for client in range(min(deal.clients, LISTED))]
        return sums | {"counts": table[:LISTED].tolist()} | domains | {"kind_of": kinds, "spoiled": list(self.plan.spoiled)}

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
        for name, part in (("pool", self.pool), ("deal", self.deal), ("public", self.public), ("held", self.held)):
            if part is not None:
                _lay(folder, name, part)

    @classmethod
    def open(cls, plan: Plan, folder: Path) -> Population:
        """The population that `save` laid down, its arrays mapped read-only in effect: writes would stay private."""
        public, held = (_take(folder, name, Pool) if (folder / f"{name}.json").exists() else None for name in ("public", "held"))
        return cls(plan, _take(folder, "pool", Pool), _take(folder, "deal", Deal), public, held)


def _lay(folder: Path, name: str, part: Pool | Deal | Ragged) -> None:
    plain: dict[str, Any] = {}
    for each in fields(part):
        value = getattr(part, each.name)
        if isinstance(value, np.ndarray):
            np.save(folder / f"{name}.{each.name}.npy", value)
        elif isinstance(value, Ragged):
            _lay(folder, f"{name}.{each.name}", value)
        else:
            plain[each.name] = value
    (folder / f"{name}.json").write_text(json.dumps(plain))


def _take(folder: Path, name: str, kind: type[Any]) -> Any:
    plain = json.loads((folder / f"{name}.json").read_text())
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in plain.items()}
    for each in fields(kind):
        path = folder / f"{name}.{each.name}.npy"
        if path.exists():
            # Mode "c": torch warns of arrays that cannot be written; pages stay shared as nobody writes.
            values[each.name] = np.load(path, mmap_mode="c")
        elif (folder / f"{name}.{each.name}.json").exists():
            values[each.name] = _take(folder, f"{name}.{each.name}", Ragged)
    return kind(**values)
