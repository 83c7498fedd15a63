"""Who has which model, and clients whose labels are noisy_labels: what turns a client's number into its world."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import numpy as np
import pytest

from coterie.data.partitions.base import Partitioner
from coterie.data.partitions.slices import everything
from coterie.data.pool import Partition, Pool, Ragged
from coterie.engines import Inline
from coterie.errors import UserError
from coterie.ledger import events
from coterie.methods import FedAvg, Local
from coterie.population import Population
from coterie.record import read
from coterie.running.experiment import Experiment
from coterie.running.rounds import run
from coterie.seeds import seed_of
from coterie.settings import spec
from coterie.site import SERVER, ModelCache
from coterie.testing import small_experiment


def experiment(models: int, clients: int, by: str, **more: Any) -> Experiment:
    table = {
        "name": "who",
        "data": {"source": "digits", "train": 300, "test": 100},
        "partition": {"name": "iid", "clients": clients, "validation": 0.2},
        "model": [{"name": "mlp", "hidden": [2 + width]} for width in range(models)],
        "models_by": by,
        "method": "local",
    }
    return Experiment.parse({**table, **more})


def kinds(population: Population) -> list[int]:
    return [population.architecture_of(client) for client in range(population.clients)]


@pytest.mark.parametrize("by", ["turn", "group", "random"])
def test_a_site_has_the_network_that_architecture_of_says(by) -> None:
    population = experiment(3, 7, by).population()
    for client, kind in enumerate(kinds(population)):
        assert population.site(client, 1, ModelCache()).architecture == population.plan.architectures[kind]
    assert population.architecture_of(SERVER) == 0
    assert population.site(SERVER, 1, ModelCache()).architecture == population.plan.architectures[0]


def test_in_turn_is_the_default() -> None:
    plan = experiment(3, 7, "turn")
    assert kinds(plan.population()) == [0, 1, 2, 0, 1, 2, 0]
    assert Experiment.parse({k: v for k, v in plan.resolved().items() if k != "models_by"}) == plan


@pytest.mark.parametrize(("models", "clients"), [(1, 4), (3, 7), (3, 9), (4, 10), (5, 5), (7, 3)])
def test_groups_are_neighbours_and_as_equal_as_can_be(models, clients) -> None:
    found = kinds(experiment(models, clients, "group").population())
    sizes = np.bincount(found)
    assert found == sorted(found)
    assert len(sizes) == min(models, clients), "every model that somebody can have is had"
    assert sizes.max() - sizes.min() <= 1


def test_a_group_is_a_domain_where_there_are_domains() -> None:
    population = experiment(3, 6, "group").population()
    apart = dataclasses.replace(population, partition=dataclasses.replace(population.partition, domain_of=np.array([2, 0, 0, 1, 3, 2])))
    assert kinds(apart) == [2, 0, 0, 1, 0, 2]


def test_at_random_is_by_seed_and_client_alone() -> None:
    many, few = (kinds(experiment(3, clients, "random").population()) for clients in (60, 20))
    assert many[:20] == few, "whoever else is there"
    assert many == [seed_of(0, "architecture", client) % 3 for client in range(60)]
    assert kinds(experiment(3, 60, "random", seed=1).population()) != many
    assert min(np.bincount(many, minlength=3)) >= 10


@pytest.mark.parametrize("by", ["turn", "group", "random"])
def test_every_model_is_tried_on_even_if_nobody_has_it(by) -> None:
    with pytest.raises(UserError, match="model 'lenet5' needs images of at least 16x16 pixels"):
        experiment(1, 2, by, model=["mlp", "mlp", "mlp", "mlp", "lenet5"]).population()


def test_the_ledger_says_who_has_which(tmp_path) -> None:
    plan = experiment(3, 6, "random", rounds=1, noisy_labels=[4])
    run(plan, tmp_path / "run", engine=Inline())
    line = next(each for each in events(tmp_path / "run" / "ledger.jsonl") if each["event"] == "partition")
    assert line["architecture_of"] == kinds(plan.population())
    assert line["noisy_labels"] == [4]


def test_new_clients_are_the_last_ones() -> None:
    plan = experiment(1, 5, "turn")
    assert list(plan.population().new_clients) == []
    assert list(plan.replace(new_clients={"count": 2}).population().new_clients) == [3, 4]


# --- noisy_labels clients ---


def test_only_training_labels_of_clients_with_noisy_labels_change() -> None:
    plan = experiment(1, 5, "turn")
    clean, dirty = plan.population(), plan.replace(noisy_labels=(4,)).population()
    rows = clean.partition.train[4]
    others = np.setdiff1d(np.arange(len(clean.pool)), rows)
    assert np.array_equal(dirty.partition.train[4], rows)
    assert np.array_equal(dirty.pool.y[others], clean.pool.y[others])
    right = (dirty.pool.y[rows] == clean.pool.y[rows]).mean()
    assert 0 < right < 0.3, "a tenth is right by chance"
    assert set(dirty.pool.y[rows]) == set(range(10))
    site = dirty.site(4, 1, ModelCache())
    assert site.train.labels.tolist() == dirty.pool.y[rows].tolist()
    assert site.validation.labels.tolist() == clean.site(4, 1, ModelCache()).validation.labels.tolist()
    assert site.test.labels.tolist() == clean.site(4, 1, ModelCache()).test.labels.tolist()


def test_noisy_labels_come_from_seed_and_client_alone() -> None:
    plan = experiment(1, 5, "turn")
    one, two, again = (plan.replace(noisy_labels=who).population() for who in ((4,), (1, 4), (4,)))
    rows = one.partition.train[4]
    assert np.array_equal(one.pool.y[rows], two.pool.y[rows])
    assert np.array_equal(one.pool.y, again.pool.y)
    assert not np.array_equal(one.pool.y[one.partition.train[1]], two.pool.y[one.partition.train[1]])
    other = plan.replace(seed=1)
    spoilt = other.replace(noisy_labels=(4,)).population()
    assert not np.array_equal(spoilt.pool.y[spoilt.partition.train[4]][:40], one.pool.y[rows][:40])


def test_noisy_labels_change_their_client_and_nobody_else(tmp_path) -> None:
    """Where nothing is exchanged, the others end with the same bits."""
    plan = small_experiment(Local(), rounds=2, cohort=1.0)
    for name, each in (("clean", plan), ("dirty", plan.replace(noisy_labels=(2,)))):
        run(each, tmp_path / name, engine=Inline())
    digests = [{p.name: read(p).digest() for p in (tmp_path / name / "memory").glob("*.2-1.*")} for name in ("clean", "dirty")]
    assert {name for name in digests[0] if digests[0][name] != digests[1][name]} == {"2.2-1.safetensors"}


@spec(kw_only=True)
class Everybody(Partitioner):
    """All rows at every client."""

    name: ClassVar[str] = "everybody"

    def assign(self, pool: Pool, seed: int) -> Partition:
        """The whole pool, again and again."""
        return Partition(Ragged.of([np.arange(pool.train)] * 3), *everything(pool, 3))


def test_rows_that_others_hold_cannot_get_noisy_labels() -> None:
    plan = small_experiment(FedAvg()).replace(partition=Everybody(clients=3))
    plan.population()
    with pytest.raises(UserError, match=r"^noisy_labels = \[1\]: others hold rows of client 1, expected a partition that shares none$"):
        plan.replace(noisy_labels=(1,)).population()


# --- evaluation at named clients ---


def test_named_clients_are_measured_and_only_they(tmp_path) -> None:
    plan = small_experiment(Local(), rounds=2, cohort=1.0)
    found = {}
    for name, each in (("all", plan), ("some", plan.replace(evaluation={"clients": (3, 1)}))):
        run(each, tmp_path / name, engine=Inline())
        lines = [line for line in events(tmp_path / name / "ledger.jsonl") if line["event"] == "evaluation" and line["round"] == 2]
        found[name] = {line["client"]: line["value"] for line in lines if line["metric"] == "accuracy"}
    assert set(found["all"]) == {None, *range(5)}
    assert set(found["some"]) == {None, 1, 3}
    assert found["some"][1] == found["all"][1]
    assert found["some"][None] == pytest.approx((found["all"][1] + found["all"][3]) / 2)
