"""Settings are looked for on validation data and tuning seeds, with the same budget for all."""

from __future__ import annotations

import json
from contextlib import contextmanager

import pytest
from tests.test_cli import call  # noqa: F401

from coterie.errors import UserError
from coterie.ledger import LEDGER, events
from coterie.running.experiment import Experiment
from coterie.studies.tune import Tuning, chosen_arms, tune, tuning_arms

SMALL = ("rounds=1", "training.epochs=1", "data.train=200", "data.test=50", "cohort=2", "engine.name=inline")
PLAN = Experiment.load("digits-two-class", SMALL)
OVER = {"training.optimiser.lr": [0.05, 1e-6], "method.mu": [0.01, 0.1]}


@contextmanager
def silent(arm):
    yield []


def test_every_method_has_the_same_number_of_tries_and_nothing_is_measured_on_test_data(tmp_path) -> None:
    arms = tuning_arms(PLAN, ["fedavg", "fedprox"], OVER, [100], tmp_path / "tuning")
    assert {name: len(each) for name, each in arms.items()} == {"fedavg": 2, "fedprox": 4}
    found = tune(arms, silent, jobs=1)
    assert found.budget == 2
    assert [each.method for each in found.tried] == ["fedavg", "fedavg", "fedprox", "fedprox"]
    assert len(found.chosen) == 2
    assert len({each.steps for each in found.tried}) == 1
    protocols = {e["protocol"] for path in tmp_path.rglob(LEDGER) for e in events(path) if e["event"] == "evaluation"}
    assert protocols == {"global_val"}
    fresh = chosen_arms(PLAN, ["fedavg", "fedprox"], found, [0], tmp_path)
    assert [arm.label for arm in fresh] == [each.label for each in found.chosen]
    assert fresh[0].experiment.training.optimiser.lr == found.chosen[0].point["training.optimiser.lr"]
    assert fresh[0].experiment.protocols == ("global", "local_post")
    assert fresh[0].experiment.partition.validation == 0


def test_tuning_seeds_are_not_used_again(tmp_path) -> None:
    with pytest.raises(UserError, match="--seeds 100: it was used for tuning"):
        chosen_arms(PLAN, [], Tuning([], [100], 1), [0, 100], tmp_path)


def test_a_key_that_nobody_has(tmp_path) -> None:
    with pytest.raises(UserError, match=r"method.mu = .*: none of fedavg has such a key, valid: aggregation"):
        tuning_arms(PLAN, ["fedavg"], {"method.mu": [1]}, [100], tmp_path)


def test_tune_says_what_was_tried_in_the_terminal_and_on_the_page(call, tmp_path) -> None:  # noqa: F811
    sets = [word for each in SMALL for word in ("--set", each)]
    words = ("--methods", "fedavg,fedprox", "--over", "training.optimiser.lr=0.05,1e-6", "--tuning-seeds", "100", "--seeds", "0")
    code, out, err = call("tune", "digits-two-class", *sets, *words, "--jobs", "1", "-q")
    assert code == 0, err
    assert "test data were not looked at" in out
    assert "fedprox lr=0.05" in out
    folder = tmp_path / "runs" / "digits-two-class-tuned"
    assert len(json.loads((folder / "tuning.json").read_text())["tried"]) == 4
    assert "Settings were chosen on validation data with the seeds 100" in (folder / "report.html").read_text()
