"""Arms: which runs a comparison has, with which settings, and that no two are called the same."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import pytest

from coterie.errors import UserError
from coterie.methods.fedavg import FedAvg
from coterie.methods.fedprox import FedProx
from coterie.methods.local import Local
from coterie.running.experiment import Experiment
from coterie.studies.arms import arm, arms_of, grid_of, split, unreached
from coterie.testing import small_experiment


@dataclass(frozen=True)
class Zero(FedAvg):
    """As a user writes it who forgot the name."""


@dataclass(frozen=True)
class Another(FedAvg):
    """Somebody's own, called like ours."""

    name = "fedavg"


@dataclass(frozen=True)
class Same(FedAvg):
    """And a second one."""

    name = "fedavg"


def labels(methods, *more, plan: Experiment | None = None, **options) -> list[str]:
    return [each.label for each in arms_of(plan or small_experiment(FedAvg()), methods, [0], *more, **options)]


def test_a_method_that_forgot_its_name_is_not_taken_for_its_parent(tmp_path) -> None:
    assert labels(["fedavg", Zero()], tmp_path) == ["fedavg", "zero"]
    assert labels(["fedavg", f"{__name__}:Zero"], tmp_path) == ["fedavg", "zero"]


def test_methods_of_one_name_are_called_by_where_they_come_from(tmp_path) -> None:
    assert labels([FedAvg(), Another(), Same()], tmp_path) == ["fedavg", f"{__name__}:Another", f"{__name__}:Same"]


def test_settings_that_differ_or_were_said_are_in_the_label(tmp_path) -> None:
    assert labels([{"name": "fedprox", "mu": 1.0}, {"name": "fedprox", "mu": 0.1}], tmp_path) == ["fedprox mu=1.0", "fedprox mu=0.1"]
    assert labels([FedProx(mu=1.0), FedProx(mu=0.1)], tmp_path) == ["fedprox mu=1.0", "fedprox mu=0.1"]
    assert labels(["fedavg", "fedprox(mu=0.5)"], tmp_path) == ["fedavg", "fedprox mu=0.5"]
    assert labels(["fedprox", "local"], tmp_path) == ["fedprox", "local"]
    both = ["fedprox(mu=0.5)", "fedprox(mu=0.5, weighting=uniform)"]
    assert labels(both, tmp_path) == ["fedprox weighting=samples mu=0.5", "fedprox weighting=uniform mu=0.5"]


def test_no_two_arms_have_one_title(tmp_path) -> None:
    methods = ["fedavg", Zero(), Another(), "fedprox", "fedprox(mu=0.5)", FedProx(mu=2.0), FedAvg(weighting="uniform"), "local"]
    grid = {"method.weighting": ["samples", "uniform"], "training.epochs": [1, 2]}
    for more in ({}, {"training.epochs": [1, 2]}, grid):
        arms = arms_of(small_experiment(FedAvg()), methods, [0, 1], tmp_path, more)
        for one, other in itertools.combinations(arms, 2):
            assert (one.title, one.folder) != (other.title, other.folder)
            assert (one.title == other.title) == (one.digests == other.digests)


def test_grids_are_over_any_key_and_a_methods_own_key_is_for_that_method(tmp_path) -> None:
    plan = small_experiment(FedAvg())
    arms = arms_of(plan, ["fedavg", "fedprox"], [0], tmp_path, {"method.mu": [0.1, 1.0], "training.epochs": [1, 5]})
    assert [each.label for each in arms] == [
        "fedavg epochs=1",
        "fedavg epochs=5",
        *(f"fedprox mu={mu} epochs={epochs}" for mu in ("0.1", "1.0") for epochs in (1, 5)),
    ]
    assert arms[-1].experiment.method == FedProx(mu=1.0)
    assert arms[-1].experiment.training.epochs == 5
    assert arms[-1].experiment.training.optimiser == plan.training.optimiser


def test_a_folder_is_named_by_experiment_code_and_data(tmp_path, monkeypatch) -> None:
    plan = small_experiment(FedAvg())
    first = arm(plan, tmp_path, "fedavg")
    assert first.folder == arm(plan.replace(engine={"name": "inline"}), tmp_path, "fedavg").folder
    assert first.folder != arm(plan.replace(rounds=4), tmp_path, "fedavg").folder
    for digest in ("_own_code", "data_digest"):
        with monkeypatch.context() as patch:
            patch.setattr(f"coterie.running.provenance.{digest}", lambda *_: "another")
            assert first.folder != arm(plan, tmp_path, "fedavg").folder


@pytest.mark.parametrize(
    ("axes", "sentence"),
    [
        (["method.mu"], "expected key=value,value"),
        (["seed=1,2"], "a comparison has --seeds"),
        (["method.nu=1"], "none of fedavg, local has such a key"),
        (["training.epoch=1"], "training.epoch = 1"),
    ],
)
def test_mistakes_in_a_grid(tmp_path, axes, sentence) -> None:
    with pytest.raises(UserError, match=sentence):
        arms_of(small_experiment(FedAvg()), ["fedavg", "local"], [0], tmp_path, grid_of(axes))


def methods_of(arms) -> dict[str, object]:
    return {each.label: each.experiment.method for each in arms}


def test_an_override_reaches_every_method_that_has_the_key(tmp_path) -> None:
    plan, names, overrides = small_experiment(Local()), ["local", "fedavg", "fedprox"], {"method.weighting": "uniform"}
    arms = methods_of(arms_of(plan, names, [0], tmp_path, overrides=overrides))
    assert list(arms.values()) == [Local(), FedAvg(weighting="uniform"), FedProx(weighting="uniform")]
    assert list(arms) == ["local", "fedavg weighting=uniform", "fedprox weighting=uniform"]
    assert unreached(plan, names, overrides) == ["method.weighting = uniform is for fedavg, fedprox; local has no such key"]


def test_an_override_that_no_method_has_a_key_for_is_an_error(tmp_path) -> None:
    with pytest.raises(UserError, match=r"method\.nu = 1: none of local, fedprox has such a key, did you mean 'mu'\?"):
        labels(["local", "fedprox"], tmp_path, overrides={"method.nu": 1})


def test_an_override_of_the_experiment_is_for_all(tmp_path) -> None:
    arms = arms_of(small_experiment(FedAvg()), ["fedavg", "local"], [0], tmp_path, overrides={"training.epochs": 7})
    assert [each.experiment.training.epochs for each in arms] == [7, 7]


def test_what_comes_with_a_name_goes_before_what_is_for_all(tmp_path) -> None:
    arms = arms_of(small_experiment(FedAvg()), ["fedprox(mu=0.5)", "fedprox"], [0], tmp_path, overrides={"method.mu": 0.01})
    assert [each.experiment.method for each in arms] == [FedProx(mu=0.5), FedProx(mu=0.01)]


def test_a_method_that_the_experiment_sets_up_is_compared_as_set_up(tmp_path) -> None:
    plan = small_experiment(FedProx(mu=0.7, weighting="uniform"))
    arms = arms_of(plan, ["fedavg", "fedprox", "fedprox(mu=0.1)"], [0], tmp_path)
    assert [each.experiment.method for each in arms[1:]] == [plan.method, FedProx(mu=0.1, weighting="uniform")]


FILE = """
name = "own"
data.source = "digits"
partition = { name = "iid", clients = 2 }
model = "mlp"
method = "%s"

[methods.fedprox]
mu = 0.3

[methods.fedavg]
weighting = "uniform"
"""


def test_a_file_has_settings_for_each_method(tmp_path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(FILE % "fedavg")
    plan = Experiment.load(path)
    assert plan.method == FedAvg(weighting="uniform")
    assert Experiment.load(path, ["method=fedprox"]).method == FedProx(mu=0.3)
    assert Experiment.load(path, ["method=fedprox", "method.mu=0.9"]).method == FedProx(mu=0.9)
    arms = methods_of(arms_of(plan, ["fedavg", "fedprox", "local"], [0], tmp_path, {"training.epochs": [2]}))
    assert list(arms.values()) == [FedAvg(weighting="uniform"), FedProx(mu=0.3), Local()]
    overridden = methods_of(arms_of(plan, ["fedprox"], [0], tmp_path, overrides={"method.mu": 0.1, "rounds": 3}))
    assert overridden == {"fedprox mu=0.1": FedProx(mu=0.1)}


def test_settings_of_other_methods_decide_no_result(tmp_path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(FILE % "local")
    plan, bare = Experiment.load(path), Experiment.load(path, ["methods={}"])
    assert plan.digest() == bare.digest()
    assert "methods" not in plan.resolved()


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("methods.fedprox.nu=1", r"methods\.fedprox\.nu = 1: no such key here, did you mean 'mu'"),
        ("methods.fedprx.mu=1", "method 'fedprx' is unknown: did you mean 'fedprox'"),
        ("methods.fedprox=1", r"methods\.fedprox = 1: expected a table of settings"),
        ("methods=1", "methods = 1"),
    ],
)
def test_mistakes_in_the_settings_of_methods(tmp_path, override, sentence) -> None:
    path = tmp_path / "own.toml"
    path.write_text(FILE % "local")
    with pytest.raises(UserError, match=sentence):
        Experiment.load(path, [override])


@pytest.mark.parametrize(
    ("method", "sentence"),
    [
        ("fedprox(mu)", r"expected name\(key=value"),
        ("fedprox(mu=0.1", r"expected name\(key=value"),
        ("fedprox(nu=0.1)", r"method\.nu = 0\.1: no such key here, did you mean 'mu'"),
        ("fedprx(mu=0.1)", "did you mean 'fedprox'"),
        (7, "expected a name"),
        ({"mu": 1.0}, "expected a name"),
    ],
)
def test_mistakes_in_methods(tmp_path, method, sentence) -> None:
    with pytest.raises(UserError, match=sentence):
        labels([method], tmp_path)


def test_commas_within_brackets_and_quotes_do_not_part() -> None:
    assert split('a(x=[1, 2], y="b,c"), d , {e = 1, f = 2},') == ['a(x=[1, 2], y="b,c")', "d", "{e = 1, f = 2}"]


def test_what_no_method_can_be_measured_by_is_an_error_and_not_another_measure(tmp_path) -> None:
    plan = Experiment.load("digits-two-class", ['evaluation.protocols=["composed"]'])
    with pytest.raises(UserError, match=r"evaluation\.protocols = \['composed'\]: none of fedavg, fedper offers any of these, expected"):
        arms_of(plan, ["fedavg", "fedper"], [0], tmp_path)
    assert [each.experiment.protocols for each in arms_of(plan, ["split-metadata", "local"], [0], tmp_path)] == [
        ("composed",),
        ("local_post",),
    ]


def test_arms_stop_by_the_same_or_not_at_all(tmp_path) -> None:
    plan = Experiment.load("digits-two-class", ["evaluation.stop_at=0.9"])
    sentence = r"evaluation\.stop_at = 0\.9: .* \(fedavg by 'global', local by 'local_post'\), expected evaluation\.protocols to begin with"
    with pytest.raises(UserError, match=sentence):
        arms_of(plan, ["fedavg", "fedprox", "local"], [0, 1], tmp_path)
    assert len(arms_of(plan, ["fedavg", "fedprox"], [0, 1], tmp_path)) == 4
    both = Experiment.load("digits-two-class", ["evaluation.stop_at=0.9", 'evaluation.protocols=["local_post"]'])
    assert len(arms_of(both, ["fedavg", "local"], [0], tmp_path)) == 2
