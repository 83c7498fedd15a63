"""Models that participants choose themselves (`coterie deploy client --model`): which can be had, and what the experiment then is.

A participant says what its model is called and how it is set up; the run's ledger has it, so that the run can be repeated anywhere.
Nothing is imported on a participant's word, and nothing built that is larger than what the experiment lets clients send.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch

from coterie.deployment.folders import registered
from coterie.engines.flower import Hello
from coterie.errors import UserError, nearest
from coterie.methods import METHODS
from coterie.models import MODELS, Architecture, Custom
from coterie.population import Population
from coterie.running.experiment import Experiment

__all__ = ["Choices", "with_models"]

LONGEST = 2000
"""Characters in which a participant can say what its model is."""


def with_models(experiment: Experiment, population: Population, chosen: Mapping[int, Architecture]) -> Experiment:
    """The experiment in which some clients have models of their own choice; the same where they have these anyway.

    >>> from coterie.methods import FedAvg
    >>> from coterie.models import MLP
    >>> from coterie.testing import small_experiment
    >>> plan = small_experiment(METHODS.resolve("local"))
    >>> made = with_models(plan, plan.population(), {1: MLP(hidden=(8,))})
    >>> [each.hidden for each in made.model], made.models_by
    ([(16,), (8,)], (0, 1, 0, 0, 0))
    >>> plan = small_experiment(FedAvg())
    >>> with_models(plan, plan.population(), {1: MLP(hidden=(8,))})  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    coterie.errors.UserError: model = {"name": "mlp", ...}: method 'fedavg' averages parameters, expected the experiment's ...
    """
    models, has = list(experiment.model), [population.architecture_of(client) for client in range(population.clients)]
    for client, model in sorted(chosen.items()):
        if model == models[has[client]]:
            continue
        if not experiment.method.mixes_architectures:
            able = ", ".join(name for name in METHODS if METHODS.find(name).mixes_architectures)
            why = f"method '{experiment.method.name}' averages parameters, expected the experiment's {_words(models[has[client]])}"
            raise UserError(f"model = {_words(model)}: {why}; any model: {able}")
        models += [model] if model not in models else []
        has[client] = models.index(model)
    if len(models) == len(experiment.model) and has == [population.architecture_of(client) for client in range(population.clients)]:
        return experiment
    made = experiment.replace(model=tuple(models), models_by=tuple(has))
    made.check(population)
    return made


class Choices:
    """What participants of an experiment say of their models.

    >>> from coterie.testing import small_experiment
    >>> choices = Choices(small_experiment(METHODS.resolve("local")), ["north", "south", "west", "east", "far"])
    >>> choices.refusal(Hello("south", 60, 20, "5f", {"name": "custom", "module": "os:system"}))  # doctest: +ELLIPSIS
    "model = 'custom': ..."
    >>> choices.refusal(Hello("south", 60, 20, "5f", {"name": "mlp", "hidden": [8]}))
    >>> choices.begin().models_by
    (0, 1, 0, 0, 0)
    """

    def __init__(self, experiment: Experiment, names: Sequence[str], begun: Experiment | None = None) -> None:
        self._experiment, self._names, self._begun = experiment, list(names), begun
        self._chosen: dict[int, Architecture] = {}

    @cached_property
    def _population(self) -> Population:
        if self._experiment.data.source[0].name == "participants":
            return registered(self._experiment, dict.fromkeys(self._names, 1)).population()
        return self._experiment.population()

    def begin(self) -> Experiment:
        """The experiment with the models that were chosen so far; from now on they stay as they are."""
        self._begun = with_models(self._experiment, self._population, self._chosen) if self._chosen else self._experiment
        return self._begun

    def refusal(self, hello: Hello) -> str | None:
        """Why a participant cannot take part with its model; None where it can."""
        client = self._names.index(hello.name)
        try:
            if hello.model is not None:
                self.choose(client, hello.model)
            elif self._begun is not None and self._begun.models_by != self._experiment.models_by:
                self._same(client, self._experiment.model[self._population.architecture_of(client)])
        except UserError as error:
            return str(error)
        return None

    def choose(self, client: int, said: Any) -> Architecture:
        """The model in a participant's words; a UserError where it cannot have it."""
        model = self._understood(said)
        if self._begun is not None:
            self._same(client, model)
        with_models(self._experiment, self._population, {client: model})
        self._chosen[client] = model
        return model

    def _same(self, client: int, model: Architecture) -> None:
        """A run goes on with the models that it was begun with."""
        assert self._begun is not None
        plan = replace(self._population.plan, architectures=self._begun.model, models_by=self._begun.models_by)
        expected = self._begun.model[replace(self._population, plan=plan).architecture_of(client)]
        if model != expected:
            raise UserError(f"model = {_words(model)}: expected {_words(expected)}, with which this run was begun")

    def _understood(self, said: Any) -> Architecture:
        ours = [MODELS.dump(each) for each in self._experiment.model]
        name = said.get("name") if isinstance(said, dict) and len(json.dumps(said)) <= LONGEST else said
        if said not in ours and (not isinstance(name, str) or name not in MODELS.specs or name == Custom.name):
            valid = [each for each in MODELS if each != Custom.name]
            raise UserError(f"model = {name!r:.60}: {nearest(str(name)[:60], valid)}, or one that the experiment itself names")
        model = MODELS.resolve(said, "model")
        size, most = self._size(model), self._experiment.admission.limit(max(map(self._size, self._experiment.model)))
        if size > most:
            raise UserError(f"model = {_words(model)}: it has {size:,} bytes, expected at most {most:,} (admission.max_mb)")
        return model

    def _size(self, model: Architecture) -> int:
        """Bytes of a network, without a place for any."""
        pool = self._population.pool
        try:
            with torch.device("meta"):
                net = model.build(pool.shape, pool.classes)
        except (RuntimeError, TypeError, OverflowError, MemoryError) as error:  # of numbers that are too large for torch
            raise UserError(f"model = {_words(model):.60}: it cannot be built: {str(error).partition(chr(10))[0]:.200}") from None
        return sum(int(value.nbytes) for value in net.state_dict().values())


def _words(model: Architecture) -> str:
    return f"{json.dumps(MODELS.dump(model)):.200}"
