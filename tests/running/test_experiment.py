"""Bad input gets one sentence: the key, the value, what was expected, the nearest valid name."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.errors import UserError
from coterie.methods import FedAvg, FedProx
from coterie.running.experiment import Experiment
from coterie.testing import small_experiment


def accuracy(logits, labels) -> float:
    """Called as ours is."""
    return 5.0


GOOD = {
    "name": "x",
    "data": {"source": "digits"},
    "partition": {"name": "iid", "clients": 4},
    "model": "mlp",
    "method": "fedavg",
}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"roundz": 3}, "roundz = 3: no such key here, did you mean 'rounds'?"),
        ({"rounds": 0}, "rounds = 0: should be greater than or equal to 1"),
        ({"rounds": "ten"}, "rounds = 'ten': should be a valid integer"),
        ({"rounds": 2.5}, "rounds = 2.5: should be a valid integer"),
        ({"seed": -1}, "seed = -1: should be greater than or equal to 0"),
        ({"name": "../up"}, "name = '../up': expected letters, digits, dots, dashes and underscores"),
        ({"cohort": 0}, "cohort"),
        ({"cohort": 1.5}, "cohort"),
        ({"method": "fedavgg"}, "method 'fedavgg' is unknown: did you mean 'fedavg'?"),
        ({"method": {"name": "fedprox", "muu": 1}}, "method.muu = 1: no such key here, did you mean 'mu'?"),
        ({"method": {"name": "fedprox", "mu": -1}}, "method.mu = -1: should be greater than or equal to 0"),
        ({"method": {"name": "fedprox", "mu": "x"}}, "method.mu = 'x': should be a valid number"),
        ({"method": {"mu": 1}}, "method = {'mu': 1} must be a name or a table with a name"),
        ({"method": "no.such:Thing"}, "method 'no.such:Thing' cannot be imported"),
        ({"method": "json:JSONDecoder"}, "is not a subclass of coterie.method.Method"),
        ({"model": "mlpp"}, "model 'mlpp' is unknown: did you mean 'mlp'?"),
        ({"partition": {"name": "iid", "clients": 0}}, "partition.clients = 0"),
        ({"partition": {"name": "dirichlt", "clients": 3}}, "did you mean 'dirichlet'?"),
        ({"data": {"source": "digit"}}, "did you mean 'digits'?"),
        ({"data": {"source": "digits", "sise": 32}}, "data.sise = 32: no such key here, did you mean 'size'?"),
        ({"data": {"source": "digits", "public": {"source": "digits", "sampels": 3}}}, "did you mean 'samples'?"),
        ({"training": {"epoch": 1}}, "training.epoch = 1: no such key here, did you mean 'epochs'?"),
        ({"data": {}, "training": {"stak": 5}}, "training.stak = 5: no such key here, did you mean 'stack'? Valid: augment, batch"),
        ({"training": {"optimiser": {"name": "sgd", "lr": -0.1}}}, "training.optimiser.lr = -0.1: should be greater than 0"),
        ({"training": {"optimiser": "sdg"}}, "optimiser 'sdg' is unknown: did you mean 'sgd'?"),
        ({"training": {"schedule": {"name": "steps", "every": 0}}}, "training.schedule.every = 0"),
        ({"evaluation": {"targets": [1.5]}}, "evaluation.targets.0 = 1.5"),
        ({"admission": {"quorum": 0}}, "admission.quorum = 0"),
        ({"admission": {"quorun": 1}}, "did you mean 'quorum'?"),
        ({"engine": {"name": "threads"}}, "engine.name = 'threads'"),
        ({"models_by": "turns"}, "models_by = 'turns': should be 'turn', 'group' or 'random'"),
        ({"noisy_labels": [-1]}, "noisy_labels.0 = -1: should be greater than or equal to 0"),
        ({"noisy_labels": 3}, "noisy_labels = 3: should be a list"),
        ({"evaluation": {"clients": []}}, "evaluation.clients"),
        ({"evaluation": {"clients": 0}}, "evaluation.clients"),
    ],
)
def test_mistakes_in_a_file(changes, sentence) -> None:
    with pytest.raises(UserError) as caught:
        Experiment.parse({**GOOD, **changes})
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"partition": {"name": "iid", "clients": 5000}}, "partition.clients = 5000: expected at most 1442 clients"),
        ({"cohort": 5}, "cohort = 5: expected at most the 4 clients in training"),
        ({"new_clients": {"count": 4}}, "new_clients.count = 4: expected fewer than the 4 clients"),
        ({"model": ["mlp", {"name": "mlp", "hidden": [3]}]}, "method 'fedavg' needs one model for all clients, not 2"),
        ({"model": "lenet5"}, "lenet5"),
        (
            {"evaluation": {"protocols": ["globl"]}},
            "evaluation.protocols = 'globl': no such protocol, did you mean 'global'?",
        ),
        ({"partition": {"name": "permuted", "clients": 4}}, "there is no common test set; try local_pre, local_post"),
        ({"evaluation": {"protocols": ["local_val"]}}, "expected partition.validation above 0"),
        ({"evaluation": {"protocols": ["inter"]}}, "expected partition = 'domains'"),
        ({"noisy_labels": [1, 4]}, "noisy_labels = [1, 4]: there is no client 4, expected numbers from 0 to 3"),
        ({"evaluation": {"clients": [9]}}, "evaluation.clients = [9]: there is no client 9, expected numbers from 0 to 3"),
        (
            {"evaluation": {"clients": [2]}, "new_clients": {"count": 2}},
            "evaluation.clients = [2]: there is no client 2, expected numbers from 0 to 1",
        ),
        ({"evaluation": {"metrics": ["operator:add", "numpy:add"]}}, "'numpy:add': there is a metric 'add' already"),
        ({"evaluation": {"metrics": ["tests.running.test_experiment:accuracy"]}}, "there is a metric 'accuracy' already"),
        ({"model": "wrn-10-1", "training": {"batch": 1}}, "training.batch = 1: BatchNorm learns nothing from one sample"),
        ({"model": "wrn-10-1", "method": {"name": "fedavg", "aggregation": "private"}}, "noise makes variances of BatchNorm negative"),
        ({"new_clients": {"count": 1}, "rounds": 5, "training": {"schedule": {"name": "cosine", "rounds": 5}}}, "where its rate is 0"),
    ],
)
def test_impossible_combinations(changes, sentence) -> None:
    with pytest.raises(UserError) as caught:
        Experiment.parse({**GOOD, **changes}).population()
    assert sentence in str(caught.value)


def test_public_images_take_the_shape_of_the_private_ones(tmp_path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (40, 7, 7), np.uint8), np.arange(40) % 10
    np.savez(tmp_path / "grey.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    public = {"source": {"name": "npz", "path": str(tmp_path / "grey.npz")}, "samples": 20}
    population = Experiment.load("digits-two-class").overridden({"data.channels": 3, "data.public": public}).population()
    assert population.public is not None
    assert population.public.shape == population.pool.shape == (3, 8, 8)
    assert len(population.public) == 20


def test_a_method_that_needs_public_data_says_so() -> None:
    class Needy(FedAvg):
        name = "needy"
        needs_public = True

    with pytest.raises(UserError, match=r"method 'needy' needs public data: give data\.public\.source"):
        small_experiment(Needy()).population()


def test_what_is_resolved_can_be_parsed_again() -> None:
    plan = Experiment.load("digits-two-class", ["method.name=fedprox", "method.mu=0.5", "new_clients.count=2", "evaluation.targets=[0.5]"])
    assert Experiment.parse(plan.resolved()) == plan
    assert plan.method == FedProx(mu=0.5)


def test_the_engine_does_not_count_in_the_digest() -> None:
    plan = Experiment.parse(GOOD)
    assert plan.digest() == plan.replace(engine={"name": "inline"}).digest() != plan.replace(seed=1).digest()


def test_overrides(tmp_path) -> None:
    path = tmp_path / "x.toml"
    path.write_text('name = "x"\nmodel = "mlp"\nmethod = "fedavg"\ndata.source = "digits"\npartition = {name = "iid", clients = 4}\n')
    plan = Experiment.load(path, ["method=fedprox", "method.mu=0.25", "training.optimiser.name=adam", "training.batch=all", "cohort=0.5"])
    assert plan.method == FedProx(mu=0.25)
    assert plan.training.batch == "all"
    assert plan.training.optimiser.name == "adam"
    assert plan.cohort_size(10) == 5
    for bad, sentence in (("rounds", "expected key=value"), ("rounds.x=1", "is 10, not a table")):
        with pytest.raises(UserError, match=sentence):
            Experiment.load(path, ["rounds=10", bad])


def test_a_file_that_is_missing_or_not_toml_is_a_sentence(tmp_path) -> None:
    with pytest.raises(UserError, match="neither a file nor the name of one: did you mean 'digits-two-class'"):
        Experiment.load("digits-two-clas")
    broken = tmp_path / "broken.toml"
    broken.write_text("rounds = = 3")
    with pytest.raises(UserError, match=r"broken\.toml is not TOML"):
        Experiment.load(broken)
    with pytest.raises(UserError, match=r"did you mean '.*broken\.toml'"):
        Experiment.load(tmp_path / "borken.toml")


def test_a_users_own_method_by_its_path() -> None:
    plan = Experiment.parse({**GOOD, "method": {"name": "coterie.methods.fedprox:FedProx", "mu": 0.5}})
    assert plan.method == FedProx(mu=0.5)


def test_two_sources_of_one_name_are_two_domains(tmp_path) -> None:
    for name in ("a", "b"):
        x, y = np.zeros((6, 8, 8), np.uint8), np.arange(6, dtype=np.uint8) % 2
        np.savez(tmp_path / f"{name}.npz", x_train=x[:4], y_train=y[:4], x_test=x[4:], y_test=y[4:])
    data = {"source": [{"name": "npz", "path": f"{name}.npz"} for name in ("a", "b")]}
    pool = Experiment.load("digits-two-class").overridden({"data": data}).data.load(tmp_path, 0)
    assert (pool.domains, len(pool)) == (("npz-1", "npz-2"), 12)


def test_a_file_that_lacks_something_is_named_with_an_example(tmp_path) -> None:
    (tmp_path / "short.toml").write_text('name = "x"\ndata.source = "digits"\n')
    with pytest.raises(UserError) as caught:
        Experiment.load(tmp_path / "short.toml")
    example = 'partition = { name = "iid", clients = 10 }'
    assert str(caught.value) == f"{tmp_path / 'short.toml'}: partition is missing, expected such as {example}"
