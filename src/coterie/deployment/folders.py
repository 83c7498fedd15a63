"""A participant's own folder as its part of an experiment's population."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from coterie.data.pool import Partition, Pool, Ragged
from coterie.data.sources.participants import Participants
from coterie.errors import UserError
from coterie.population import Population
from coterie.running.experiment import Experiment

__all__ = ["miscount", "population_of", "registered", "source_of"]

MOST = 10**7
"""Samples that a participant may say it has, unless `admission.max_examples` is said: the server makes a row for each."""


def source_of(experiment: Experiment) -> Participants:
    """The experiment's data, if they are the participants' own."""
    source = experiment.data.source[0]
    if len(experiment.data.source) != 1 or not isinstance(source, Participants):
        raise UserError(f"data.source = '{source.name}': with --data, expected 'participants', whose images are in folders of their own")
    return source


def population_of(experiment: Experiment, folder: Path, names: Sequence[str], client: int) -> Population:
    """The population as one participant has it: its own images, and of everybody else nothing."""
    source = source_of(experiment)
    x, y, test = source.own(folder)
    order = np.concatenate([np.flatnonzero(~test), np.flatnonzero(test)])
    train, mine = int(np.count_nonzero(~test)), client + 1
    domain = np.full(len(y), client)
    pool = Pool(x[order], y[order], train, len(source.labels), domain=domain, domains=tuple(names))
    rows = Ragged.of([[]] * client + [np.arange(train)])
    tests = Ragged.of([[]] * client + [np.arange(train, len(y))])
    partition = Partition(rows, tests, np.arange(mine), domain_of=np.arange(mine))
    shared = registered(experiment, dict.fromkeys(names, 1)).population()
    return Population(shared.plan, pool, partition, shared.public)


def registered(experiment: Experiment, samples: dict[str, int]) -> Experiment:
    """The experiment, once it is known who holds how many."""
    source = replace(source_of(experiment), names=tuple(samples), held=tuple(samples.values()))
    return experiment.replace(data=experiment.data.model_copy(update={"source": (source,)}))


def miscount(experiment: Experiment, samples: int) -> str | None:
    """Why a participant cannot register with so many samples; None where it can, or where the server itself knows how many it has.

    >>> miscount(Experiment.load("digits-two-class"), 10**12)
    """
    most = experiment.admission.max_examples or MOST
    if experiment.data.source[0].name != "participants" or 0 < samples <= most:
        return None
    return f"it says it has {samples:,} samples, expected 1 to {most:,} (admission.max_examples)"
