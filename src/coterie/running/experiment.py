"""An experiment: typed, written in TOML, complete. What is not in it does not influence a result.

name = "digits-two-class"
rounds = 30
cohort = 0.5
data.source = "digits"
partition = { name = "classes", clients = 10, per_client = 2 }
model = "mlp"
method = { name = "fedprox", mu = 0.1 }
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import AfterValidator, Field, ValidationError
from torch import nn

from coterie.aggregation import Private
from coterie.data.compose import with_random_labels
from coterie.data.examples import Examples
from coterie.data.folder import data_folder
from coterie.data.partitions import PARTITIONS, Partitioner
from coterie.data.partitions.base import stream
from coterie.data.pool import Partition, Pool
from coterie.errors import UserError
from coterie.method import Method
from coterie.methods import METHODS
from coterie.models import MODELS, Architecture
from coterie.models.trial import try_out
from coterie.own import look_in
from coterie.population import ModelsBy, Plan, Population
from coterie.protocols import PROTOCOLS, find_protocol
from coterie.running.admission import Admission
from coterie.running.cohort import draw_cohort, evaluation_set
from coterie.running.files import assign, embedded, find, load_toml, parse_override, without_nothing
from coterie.running.sections import Clients, Data, EngineSettings, Evaluation, NewClients, Section
from coterie.settings import Count, PositiveShare, Whole, explain, field_of, fields_of
from coterie.site import SERVER, ModelCache
from coterie.training.score import Scores, metric_name
from coterie.training.settings import Training

__all__ = ["Experiment"]

EXAMPLES = {
    "name": 'name = "mine"',
    "data": 'data = { source = "digits" }',
    "partition": 'partition = { name = "iid", clients = 10 }',
    "model": 'model = "mlp"',
    "method": 'method = "fedavg"',
}
"""What no experiment goes without."""


def _folder_name(name: str) -> str:
    """A name that a folder can have on any system."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise UserError(f"name = '{name}': expected letters, digits, dots, dashes and underscores, beginning with a letter or a digit")
    return name


class Experiment(Section):
    """Everything that decides a result.

    >>> experiment = Experiment.parse({"name": "demo", "data": {"source": "digits"}, "partition": {"name": "iid", "clients": 4},
    ...                                "model": "mlp", "method": {"name": "fedprox", "mu": 0.1}})
    >>> experiment.method, experiment.rounds
    (FedProx(weighting='samples', aggregation=WeightedMean(clip=None), regularisers=(), mu=0.1), 10)
    >>> Experiment.parse({"name": "demo"})
    Traceback (most recent call last):
    ...
    coterie.errors.UserError: data is missing, expected such as data = { source = "digits" }
    """

    name: Annotated[str, AfterValidator(_folder_name)]
    data: Data
    partition: Annotated[Partitioner, field_of(PARTITIONS, "partition")]
    model: Annotated[tuple[Architecture, ...], fields_of(MODELS, "model")]
    """One network for all, or a list: `models_by` says who has which; as many as clients, in turn, is one for each."""
    models_by: ModelsBy = "turn"
    """Who has which of several models: clients in turn, by group (a client's domain, else blocks of neighbours), at random by seed, or
    a list with the position of each client's."""
    noisy_labels: Clients = ()
    """Clients whose training labels are replaced by random ones; their validation and test data stay as they are."""
    method: Annotated[Method, field_of(METHODS, "method")]
    methods: dict[str, dict[str, Any]] = Field(default_factory=dict, exclude=True, repr=False)
    """Settings of methods by name, for the one that is run and for those that it is compared with. What is run is in `method`, so that
    this decides no result by itself."""
    seed: Whole = 0
    pretraining: Whole = 0
    """Epochs that every client trains its own model alone before it first takes part, in methods whose clients have one."""
    rounds: Count = 10
    cohort: Count | PositiveShare = 1.0
    """Clients a round: a number of them, or a share as a decimal."""
    training: Training = Field(default_factory=Training)
    evaluation: Evaluation = Field(default_factory=Evaluation)
    admission: Admission = Field(default_factory=Admission)
    new_clients: NewClients | None = None
    engine: EngineSettings = Field(default_factory=EngineSettings)
    float64: bool = False
    """Compute in double precision."""

    @classmethod
    def parse(cls, table: Mapping[str, Any], file: Path | None = None) -> Experiment:
        """From a table, as TOML gives it in a file; a mistake is a `UserError` of one sentence."""
        try:
            return cls.model_validate_json(json.dumps(_with_own_settings(table)), strict=True)
        except ValidationError as error:
            raise UserError(_missing(error, file) or explain(error, Experiment)) from None
        except TypeError as error:
            raise UserError(f"an experiment holds numbers, strings, booleans, lists and tables: {error}") from None

    @classmethod
    def load(cls, path: str | Path, overrides: Sequence[str] = ()) -> Experiment:
        """From a TOML file, or by the name of one that comes with Coterie; `overrides` are like `method.mu=0.01`."""
        file = find(path)
        if file not in embedded().values():
            look_in(file.parent)
        table = load_toml(file)
        for override in overrides:
            assign(table, *parse_override(override))
        return cls.parse(table, file)

    def overridden(self, overrides: Mapping[str, Any]) -> Experiment:
        """This experiment with keys given by their paths, like `{"method.mu": 0.01}`; a sub-table keeps its other keys."""
        table = without_nothing(self.resolved())
        for path, value in overrides.items():
            assign(table, path, value)
        return Experiment.parse({"methods": self.methods, **table})

    def method_named(self, name: str) -> Method:
        """A method as it is set up here: as the experiment's own, or with the settings that `methods` has for it."""
        if METHODS.find(name) is type(self.method):
            return self.method
        return METHODS.resolve({**self.methods.get(name, {}), "name": name}, f"methods.{name}")

    def with_method(self, method: Method) -> Experiment:
        """This experiment with another method, evaluated under those of its protocols that the method has a model for.

        Where the server's model is asked for and the method is about another model of the server, about that one too.

        >>> from coterie.methods.split_metadata import SplitMetadata
        >>> Experiment.load("digits-two-class").with_method(SplitMetadata()).protocols
        ('global', 'local_post', 'composed')
        """
        asked = self.evaluation.protocols
        protocols = tuple(each for each in asked if each in method.protocols)
        headline = method.protocols[0]
        if "global" in protocols and headline not in asked and not PROTOCOLS[headline].about_clients:
            protocols = (*protocols, headline)
        return self.replace(method=method, evaluation=self.evaluation.model_copy(update={"protocols": protocols}))

    def replace(self, **changes: Any) -> Experiment:
        """This experiment with some of its fields changed, validated again."""
        try:
            return Experiment.model_validate({**dict(self), **changes})
        except ValidationError as error:
            raise UserError(explain(error, Experiment)) from None

    def resolved(self) -> dict[str, Any]:
        """Every setting, defaults included, as plain data that `parse` takes back."""
        table: dict[str, Any] = json.loads(self.model_dump_json())
        return table

    def digest(self) -> str:
        """SHA-256 of all that decides a result; the engine does not."""
        table = {key: value for key, value in self.resolved().items() if key != "engine"}
        return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()

    @property
    def protocols(self) -> tuple[str, ...]:
        """What is evaluated: as asked, or the method's headline."""
        return self.evaluation.protocols or self.method.protocols[:1]

    def population(self, folder: Path | None = None) -> Population:
        """Load the data, deal it, and check that the pieces fit together."""
        where = data_folder(folder)
        pool, held = self.data.hold_out(self.data.load(where, self.seed), self.seed)
        public = self.data.load_public(where, self.seed, pool)
        partition = self.partition.partition(pool, self.seed)
        new_clients = partition.clients - self.clients_in_training(partition)
        plan = self._plan(new_clients)
        population = Population(plan, self._with_noisy_labels(pool, partition), partition, public, held)
        self._check(population)
        return population

    def _plan(self, new_clients: int) -> Plan:
        """How a client's number becomes its Site."""
        return Plan(
            method=self.method,
            seed=self.seed,
            architectures=self.model,
            training=self.training,
            float64=self.float64,
            models_by=self.models_by,
            new_clients=new_clients,
            noisy_labels=self.noisy_labels,
            pretraining=self.pretraining,
            metrics=self.evaluation.metrics,
        )

    def _with_noisy_labels(self, pool: Pool, partition: Partition) -> Pool:
        """The pool with other labels in the rows that noisy_labels clients train on, which nobody else may hold."""
        _check_clients("noisy_labels", self.noisy_labels, partition.clients)
        holders = np.bincount(np.concatenate([partition.train.flat, partition.validation.flat]), minlength=len(pool))
        for client in self.noisy_labels:
            rows = partition.train[client]
            if (holders[rows] > 1).any():
                raise UserError(
                    f"noisy_labels = {list(self.noisy_labels)}: others hold rows of client {client}, expected a partition that shares none"
                )
            pool = with_random_labels(pool, rows, stream(self.seed, "noisy_labels", str(client)))
        return pool

    def clients_in_training(self, partition: Partition) -> int:
        """Registered clients, less the new_clients."""
        return partition.clients - (self.new_clients.count if self.new_clients else 0)

    def cohort_size(self, clients: int) -> int:
        """Clients a round."""
        return self.cohort if isinstance(self.cohort, int) else max(1, round(self.cohort * clients))

    def cohort_of(self, round: int, clients: int) -> tuple[int, ...]:
        """The clients of a round, of those in training."""
        return draw_cohort(self.seed, round, clients, self.cohort_size(clients))

    def evaluated(self, clients: int, *, final: bool = False) -> tuple[int, ...]:
        """The clients, of those in training, that protocols about clients are measured at, in every round or in the last."""
        named = self.evaluation.clients or self.cohort_size(clients)
        if final and not isinstance(named, tuple):
            return evaluation_set(self.seed, clients, "all" if self.evaluation.final == "all" else max(named, self.evaluation.final))
        return evaluation_set(self.seed, clients, named)

    def check(self, population: Population) -> None:
        """Raise a UserError where this experiment does not fit the data of a population, made by it or by one with another method."""
        self._check(dataclasses.replace(population, plan=self._plan(population.plan.new_clients)))

    def _check(self, population: Population) -> None:
        """Impossible combinations, each in a sentence."""
        method, trained = self.method, self.clients_in_training(population.partition)
        if trained < 1:
            raise UserError(f"new_clients.count = {population.clients - trained}: expected fewer than the {population.clients} clients")
        if self.cohort_size(trained) > trained:
            raise UserError(f"cohort = {self.cohort}: expected at most the {trained} clients in training")
        if isinstance(self.models_by, tuple):
            _check_models(self.models_by, population.clients, len(self.model))
        if method.needs_public and population.public is None:
            raise UserError(f"method '{method.name}' needs public data: give data.public.source")
        if len(set(self.model)) > 1 and not method.mixes_architectures:
            able = [name for name in METHODS if METHODS.find(name).mixes_architectures]
            raise UserError(f"method '{method.name}' needs one model for all clients, not {len(self.model)}; any models: {', '.join(able)}")
        if population.public is not None and population.public.shape != population.pool.shape:
            raise UserError(f"data.public has samples of {population.public.shape}, expected {population.pool.shape}")
        if self.training.augment != "none" and not population.pool.images:
            raise UserError(
                f"training.augment = '{self.training.augment}' is for images, these samples have the shape {population.pool.shape}"
            )
        if isinstance(self.evaluation.clients, tuple):
            _check_clients("evaluation.clients", self.evaluation.clients, trained)
        for protocol in self.protocols:
            self._check_protocol(protocol, population)
        _check_metrics(self.evaluation.metrics)
        if population.new_clients and not any(map(population.measurable, population.new_clients)):
            raise UserError(f"new_clients.count = {len(population.new_clients)}: none of them has test data, expected more of them")
        if population.new_clients and self.training.schedule.factor(self.rounds + 1) == 0:
            raise UserError("training.schedule: new clients join after the last round, where its rate is 0, expected more rounds in it")
        method.check(population)
        server = population.site(SERVER, 0, ModelCache())
        for network in (server.architecture, *(method.network(each, 0) for each in dict.fromkeys(self.model))):
            self._check_normalised(server.model(architecture=network))  # building it says what does not fit, if anything
        some = Examples(population.pool, np.arange(min(2, len(population.pool))), dtype=server.dtype)
        for each in dict.fromkeys(self.model):
            try_out(each, server.model(architecture=each), some.one_batch()[0], population.pool.classes)

    def _check_normalised(self, net: nn.Module) -> None:
        if not any(isinstance(each, nn.modules.batchnorm._BatchNorm) for each in net.modules()):
            return
        if self.training.batch == 1:
            raise UserError("training.batch = 1: BatchNorm learns nothing from one sample, expected at least 2, or a model without it")
        if isinstance(getattr(self.method, "aggregation", None), Private):
            raise UserError("method.aggregation = 'private': noise makes variances of BatchNorm negative, expected a model without it")

    def _check_protocol(self, protocol: str, population: Population) -> None:
        key, partition = f"evaluation.protocols = '{protocol}'", population.partition
        found = find_protocol(protocol, "evaluation.protocols")
        if protocol not in self.method.protocols:
            raise UserError(f"{key}: method '{self.method.name}' does not offer it, expected {', '.join(self.method.protocols)}")
        if not found.about_clients and partition.permutation is not None:
            raise UserError(f"{key}: every client has its own order of pixels, so there is no common test set; try local_pre, local_post")
        if found.data == "own validation" and not len(partition.validation):
            raise UserError(f"{key}: there is no validation split, expected partition.validation above 0")
        if found.by_domain and partition.domain_of is None:
            raise UserError(f"{key}: clients have no domains, expected partition = 'domains'")
        measured = self.evaluated(self.clients_in_training(partition))
        if found.about_clients and not any(population.measurable(client, found.data) for client in measured):
            raise UserError(f"{key}: none of the {len(measured)} measured clients has data for it, expected more evaluation.clients")


def _check_clients(key: str, clients: Clients, among: int) -> None:
    """Numbers of clients are numbers of clients that there are."""
    for client in clients:
        if client >= among:
            raise UserError(f"{key} = {list(clients)}: there is no client {client}, expected numbers from 0 to {among - 1}")


def _check_metrics(metrics: Sequence[str]) -> None:
    """A user's own are told from each other, and from those that everybody has, by the names of their functions."""
    names = [metric_name(path) for path in metrics]
    for at, (path, name) in enumerate(zip(metrics, names, strict=True)):
        if name in Scores().metrics() or name in names[:at]:
            raise UserError(f"evaluation.metrics = '{path}': there is a metric '{name}' already, expected a function with another name")


def _check_models(models_by: tuple[int, ...], clients: int, models: int) -> None:
    """A list of positions has one for each client, of a model that there is."""
    if len(models_by) != clients or max(models_by) >= models:
        raise UserError(f"models_by = {list(models_by)}: expected {clients} numbers, one for each client, from 0 to {models - 1}")


def _with_own_settings(table: Mapping[str, Any]) -> dict[str, Any]:
    """A table in which the method that is run has the settings that `methods` has for it, beneath its own."""
    methods, own = table.get("methods", {}), table.get("method")
    own = {"name": own} if isinstance(own, str) else own
    if not (isinstance(methods, dict) and isinstance(own, dict)):
        return dict(table)  # which is then found to be wrong
    _check_methods(methods)
    return {**table, "method": {**methods.get(own.get("name"), {}), **own}}


def _check_methods(methods: Mapping[str, Any]) -> None:
    """Settings of methods are right for all of them, not only for the one that is run."""
    for name, settings in methods.items():
        if not isinstance(settings, dict) or "name" in settings:
            raise UserError(f"methods.{name} = {settings!r}: expected a table of settings, named like the method that they are for")
        METHODS.resolve({**settings, "name": name}, f"methods.{name}")


def _missing(error: ValidationError, file: Path | None) -> str:
    """What an experiment lacks as a whole, by an example; nothing where that is not what is wrong."""
    found = error.errors(include_url=False)
    if any(each["type"] != "missing" or len(each["loc"]) > 1 for each in found):
        return ""
    key = str(found[0]["loc"][0])
    return f"{'' if file is None else f'{file}: '}{key} is missing, expected such as {EXAMPLES[key]}"
