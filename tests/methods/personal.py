"""What the tests of SCAFFOLD, Ditto, FedPer and FedProto share: an experiment's data, batches and first weights as their oracle takes them.

plan = uneven(Ditto(lam=0.5))
result = run(plan, tmp_path / "run", engine=Inline())
expected = oracle.ditto(federation_of(plan), start_of(plan), lam=0.5)
assert_same(result.state.group("model"), expected.w)
for client, memory in memories_of(result.folder).items():
    assert_same(memory.group("personal"), expected.v[client])
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from tests.methods.oracle_training import Client, Epochs, Federation, Sgd, Weights

from coterie.method import Method
from coterie.record import Record, read
from coterie.running.cohort import draw_cohort
from coterie.running.experiment import Experiment
from coterie.seeds import seed_of
from coterie.site import SERVER, ModelCache, Site
from coterie.training import optimisers
from coterie.training.loop import order_of, sizes_of
from coterie.training.settings import Training

ALIASES = {"dense1.0.weight": "A", "dense1.0.bias": "a", "head.weight": "B", "head.bias": "b"}
"""The parts of an `mlp` with one hidden layer, as the oracle calls them."""


def uneven(method: Method, **changes: Any) -> Experiment:
    """Five clients of very different sizes, three a round, batches that do not divide them, momentum and decay, in double precision."""
    table = {
        "name": "uneven",
        "rounds": 4,
        "cohort": 3,
        "seed": 5,
        "float64": True,
        "data": {"source": "digits", "train": 240, "test": 50},
        "partition": {"name": "quantity", "clients": 5, "minimum": 7},
        "model": {"name": "mlp", "hidden": [12]},
        "method": "fedavg",
        "training": {"epochs": 2, "batch": 7, "optimiser": {"name": "sgd", "lr": 0.05, "momentum": 0.9, "weight_decay": 0.001}},
        "engine": {"name": "inline"},
    }
    return Experiment.parse(table).replace(**{"method": method, **changes})


def sites_of(experiment: Experiment) -> list[Site]:
    """The clients in training."""
    population = experiment.population()
    return [population.site(client, 0, ModelCache()) for client in range(experiment.clients_in_training(population.partition))]


def clients_of(experiment: Experiment) -> list[Client]:
    """Each client's training data, images as rows."""
    return [_client(site) for site in sites_of(experiment)]


def orders(site: Site, round: int, purpose: str = "train", training: Training | None = None) -> Epochs:
    """For each epoch, the positions of each batch that `site.fit(purpose=...)` takes in a round."""
    training, seed = training or site.training, seed_of(site.seed, round, site.id, purpose)
    samples = len(site.train)
    epochs = [(order_of(samples, seed, epoch), sizes) for epoch, sizes in enumerate(sizes_of(site.model(), samples, training))]
    return [[batch.numpy() for batch in order[: sum(sizes)].split(sizes)] for order, sizes in epochs]


def cohorts_of(experiment: Experiment, clients: int) -> list[tuple[int, ...]]:
    """Who is drawn in each round."""
    size = experiment.cohort_size(clients)
    return [draw_cohort(experiment.seed, round, clients, size) for round in range(1, experiment.rounds + 1)]


def sgd_of(training: Training) -> Sgd:
    """What the oracle knows of how to train; what it does not know must not be asked for."""
    chosen = training.optimiser
    assert isinstance(chosen, optimisers.Sgd)
    assert not chosen.nesterov
    assert training.clip is None
    assert training.augment == "none"
    return Sgd(chosen.lr, chosen.momentum, chosen.weight_decay, training.schedule.factor, training.state == "kept")


def federation_of(experiment: Experiment, **trainings: Training) -> Federation:
    """Everything that the oracle and the library share; `trainings` by purpose, where one differs from the experiment's.

    Only the order of batches follows `trainings`: another optimiser goes to the oracle itself, as `sgd_of(training)`.
    """
    assert experiment.float64
    sites = sites_of(experiment)
    return Federation(
        clients=[_client(site) for site in sites],
        cohorts=cohorts_of(experiment, len(sites)),
        orders=lambda round, client, purpose: orders(sites[client], round, purpose, trainings.get(purpose)),
        sgd=sgd_of(experiment.training),
    )


def start_of(experiment: Experiment) -> Weights:
    """The server's first weights."""
    return as_weights(experiment.population().site(SERVER, 0, ModelCache()).fresh())


def starts_of(experiment: Experiment, purpose: str = "model") -> list[Weights]:
    """Each client's own first weights: `site.fresh(purpose)`."""
    return [as_weights(site.fresh(purpose)) for site in sites_of(experiment)]


def as_weights(model: Record) -> Weights:
    """A state of the network, or a part of it, as the oracle calls it."""
    return {ALIASES[name]: value.numpy() for name, value in model.tensors.items()}


def assert_same(found: Record, expected: Weights, atol: float = 1e-9) -> None:
    """A state, or a part of it, is what the oracle says."""
    weights = as_weights(found)
    assert weights.keys() == expected.keys()
    for name, value in expected.items():
        assert weights[name].dtype == np.float64
        np.testing.assert_allclose(weights[name], value, rtol=0, atol=atol, err_msg=name)


def memories_of(folder: Path) -> dict[int, Record]:
    """What each client kept at the end of a run."""
    return {int(path.name.split(".")[0]): read(path) for path in sorted((folder / "memory").iterdir())}  # of two, the newer is last


def _client(site: Site) -> Client:
    x, y = site.train.one_batch()
    return Client(x.flatten(1).numpy(), y.numpy())
