"""A user's own things, found where the user works."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from coterie import own
from coterie.errors import UserError, place_of
from coterie.running.experiment import Experiment

METHOD = """
from dataclasses import dataclass
from coterie import FedAvg

@dataclass(frozen=True)
class Mine(FedAvg):
    name = "mine"
"""
PLAN = """
name = "mine"
model = "mlp"
method = "beside_it:Mine"
data.source = { name = "npz", path = "mine.npz" }
partition = { name = "iid", clients = 2 }
"""


@pytest.fixture(autouse=True)
def forgotten(monkeypatch):
    monkeypatch.setattr(own, "_places", [])
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in ("beside_it", "broken_when_imported"):
        sys.modules.pop(name, None)


def test_methods_and_data_beside_the_experiment_file_are_found(tmp_path) -> None:
    (tmp_path / "beside_it.py").write_text(METHOD)
    (tmp_path / "mine.toml").write_text(PLAN)
    x, y = np.zeros((20, 8, 8), np.uint8), np.arange(20) % 2
    np.savez(tmp_path / "mine.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    plan = Experiment.load(tmp_path / "mine.toml")
    assert plan.method.name == "mine"
    assert plan.population(tmp_path / "elsewhere").clients == 2
    assert plan.resolved()["data"]["source"][0]["path"] == "mine.npz"  # the same digest wherever it lies


def test_the_data_folder_comes_first(tmp_path) -> None:
    for name in ("data", "here"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.npz").touch()
    own.look_in(tmp_path / "here")
    assert own.file_at("x.npz", tmp_path / "data") == tmp_path / "data" / "x.npz"
    (tmp_path / "data" / "x.npz").unlink()
    assert own.file_at("x.npz", tmp_path / "data") == tmp_path / "here" / "x.npz"


def test_what_is_nowhere_says_where_it_was_looked_for(tmp_path) -> None:
    own.look_in(tmp_path)
    with pytest.raises(UserError, match=f"No module named 'no_such' \\(looked for in .*{tmp_path.name} and where Python looks"):
        own.imported("no_such:Thing", "method 'no_such:Thing'")


@pytest.mark.parametrize(
    ("code", "said"),
    [("x = 1 +", "invalid syntax"), ("1 / 0", "ZeroDivisionError: division by zero (broken_when_imported.py:1)")],
)
def test_a_module_that_breaks_when_it_is_imported_is_a_sentence(tmp_path, code, said) -> None:
    own.look_in(tmp_path)
    (tmp_path / "broken_when_imported.py").write_text(code)
    with pytest.raises(UserError) as caught:
        own.imported("broken_when_imported:Thing", "method 'broken_when_imported:Thing'")
    assert said in str(caught.value)
    assert str(caught.value).startswith("method 'broken_when_imported:Thing' cannot be imported: ")


def test_a_module_that_is_misspelt_is_named_with_the_nearest_that_lies_there(tmp_path) -> None:
    (tmp_path / "beside_it.py").write_text(METHOD)
    own.look_in(tmp_path)
    with pytest.raises(UserError, match="No module named 'bside_it', did you mean 'beside_it'\\? \\(looked for in "):
        own.imported("bside_it:Mine", "method")
    with pytest.raises(UserError, match=r"method 'beside_it.py:Mine' names a file, expected its module: beside_it:Mine$"):
        own.imported("beside_it.py:Mine", "method 'beside_it.py:Mine'")


def test_what_is_listed_could_be_meant(tmp_path) -> None:
    (tmp_path / "beside_it.py").write_text("from torch import nn\n\nclass Net(nn.Module): ...\n\nclass NotNet: ...\n")
    own.look_in(tmp_path)
    for model in ("beside_it:Nett", {"name": "custom", "module": "beside_it:Nett"}):
        with pytest.raises(UserError, match=r"no such class there, did you mean 'Net'\? Valid: Net$"):
            Experiment.load("digits-two-class").overridden({"model": model}).population()


def test_the_place_of_an_error_is_the_users_own_line() -> None:
    with pytest.raises(OSError, match="No such file") as caught:
        Path("/no/such/file").read_text()
    assert place_of(caught.value).startswith(" (test_own.py:")


def test_a_script_from_standard_input_has_workers_too(tmp_path) -> None:
    script = """
import coterie
experiment = coterie.Experiment.load("digits-two-class", ["rounds=1"])
print(coterie.run(experiment, "run").summary["rounds"], len(coterie.compare(experiment, ["fedavg", "local"], [0], "runs").runs))
"""
    done = subprocess.run([sys.executable, "-"], input=script, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "1 2\n"), done.stderr


def test_a_script_without_a_guard_is_told_so_and_not_by_a_page_of_our_code(tmp_path) -> None:
    (tmp_path / "script.py").write_text(
        'import coterie\ncoterie.run(coterie.Experiment.load("digits-two-class", ["rounds=1", "engine.workers=1"]), "run")\n'
    )
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.strip().endswith("put what the script does under `if __name__ == '__main__':`")
    assert done.stderr.count("  File ") == 2, done.stderr
