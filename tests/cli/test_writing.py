"""Experiments as files: what is written is what is read."""

from __future__ import annotations

import re

import pytest
from tests.test_cli import call  # noqa: F401

from coterie.cli.writing import commented
from coterie.running.experiment import Experiment
from coterie.running.files import embedded, load_toml


@pytest.mark.parametrize("name", ["digits-two-class", "digit-styles", "fccl-digits"])
def test_a_shown_experiment_is_the_same_experiment(name, call, tmp_path) -> None:  # noqa: F811
    """Settings for methods that it would be compared with included."""
    code, shown, _ = call("show", name)
    (tmp_path / "shown.toml").write_text(shown)
    assert code == 0
    assert Experiment.load(tmp_path / "shown.toml") == Experiment.load(name)


@pytest.mark.parametrize("name", list(embedded()))
def test_a_commented_experiment_is_the_same_experiment(name, tmp_path) -> None:
    path = tmp_path / "new.toml"
    path.write_text(commented(load_toml(embedded()[name]), "new.toml"))
    assert Experiment.load(path) == Experiment.load(name)


def test_every_default_that_is_commented_out_is_the_default(tmp_path) -> None:
    """Without its marks a commented file still says the same."""
    text = commented(load_toml(embedded()["digits-two-class"]), "new.toml")
    bare = re.sub(r"^# (\w+ = .+)$", r"\1", text, flags=re.MULTILINE)
    assert bare.count("\n# ") < text.count("\n# ") - 15
    (tmp_path / "new.toml").write_text(bare)
    assert Experiment.load(tmp_path / "new.toml") == Experiment.load("digits-two-class")


def test_new_writes_a_file_that_runs_and_nothing_over_another(call, tmp_path) -> None:  # noqa: F811
    code, out, _ = call("new", "my.toml")
    assert (code, "coterie run my.toml" in out) == (0, True)
    assert Experiment.load(tmp_path / "my.toml").name == "my"
    assert call("new", "my.toml")[0] == 2
    code, out, _ = call("show", "my.toml", "--set", "training.epochs=7")
    assert (code, "epochs = 7" in out) == (0, True)
