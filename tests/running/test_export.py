"""Models out: what is exported answers as what was measured, also where there is no Coterie."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from coterie.engines import Inline
from coterie.errors import UserError
from coterie.ledger import LEDGER, events
from coterie.methods import METHODS
from coterie.running.experiment import Experiment
from coterie.running.export import export
from coterie.running.result import Result
from coterie.running.rounds import run
from coterie.testing import small_experiment

PERSONAL = ("local", "fml", "ditto", "fedmd", "fccl")


def planned(method: str) -> Experiment:
    plan = small_experiment(METHODS.resolve(method), rounds=2, cohort=1.0)
    public = {"data.public": {"source": "digits", "samples": 50}} if plan.method.needs_public else {}
    return plan.overridden({**public, "evaluation.protocols": ["local_post"]} if method in PERSONAL else {})


def finished(tmp_path: Path, method: str) -> Result:
    return run(planned(method), tmp_path / method, engine=Inline())


def own_accuracy(result: Result, plan: Experiment, client: int) -> float:
    population = plan.population()
    rows = population.partition.tests[int(population.partition.test_of[client])]
    said = result.model(client=client).predict(population.pool.x[rows])
    return float((said.numpy() == population.pool.y[rows]).mean())


@pytest.fixture(scope="module")
def fedavg(tmp_path_factory) -> Result:
    return finished(tmp_path_factory.mktemp("export"), "fedavg")


def test_the_servers_model_predicts_what_the_run_measured(fedavg) -> None:
    pool = small_experiment(METHODS.resolve("fedavg")).population().pool
    model = Result.load(fedavg.folder).model()
    said = model.predict(pool.x[pool.train :])
    assert float((said.numpy() == pool.y[pool.train :]).mean()) == pytest.approx(fedavg.accuracy())
    assert torch.equal(said, model.predict(pool.x[pool.train :, 0]))  # without the channel
    assert model.probabilities(pool.x[:3]).sum(1).tolist() == pytest.approx([1, 1, 1])
    with pytest.raises(UserError, match=r"have the shape \(5, 5\), the model takes \(1, 8, 8\)"):
        model.predict(np.zeros((2, 5, 5), np.uint8))


@pytest.mark.parametrize("method", PERSONAL)
def test_a_clients_own_model_is_the_one_that_was_measured(tmp_path, method) -> None:
    plan, result = planned(method), finished(tmp_path, method)
    last = [each for each in events(result.folder / LEDGER) if each["event"] == "evaluation" and each["round"] == 2]
    seen = {each["client"]: each["value"] for each in last if each["protocol"] == "local_post" and each["metric"] == "accuracy"}
    for client in (0, 1):
        assert own_accuracy(result, plan, client) == pytest.approx(seen[client])


def test_fedper_puts_the_servers_layers_under_a_clients_own_head(tmp_path) -> None:
    result = finished(tmp_path, "fedper")
    nets = [result.model(client=client).net.state_dict() for client in (0, 1)]
    assert torch.equal(nets[0]["dense1.0.weight"], nets[1]["dense1.0.weight"])
    assert not torch.equal(nets[0]["head.weight"], nets[1]["head.weight"])
    with pytest.raises(UserError, match="has no model of the server's"):
        result.model()


def test_what_is_not_there_is_a_sentence(fedavg, tmp_path) -> None:
    with pytest.raises(UserError, match="client 0 has no model of its own: method 'fedavg' leaves no model with its clients"):
        fedavg.model(client=0)
    with pytest.raises(UserError, match="client = 99: there is no such client"):
        fedavg.model(client=99)
    with pytest.raises(UserError, match="there is no ledger"):
        export(tmp_path)
    for form in ("safetensors", "torchscript"):
        with pytest.raises(OSError, match="No such file") as caught:
            export(fedavg.folder, format=form, out=tmp_path / "nowhere" / "x.pt")
        assert caught.value.filename == str(tmp_path / "nowhere" / "x.pt")


ELSEWHERE = """
import json, sys
sys.modules["coterie"] = None  # whoever imports it fails
import torch
from safetensors import safe_open

folder = sys.argv[1]
x = torch.load(f"{folder}/x.pt")
whole = torch.jit.load(f"{folder}/model.pt")(x)
with safe_open(f"{folder}/model.safetensors", "pt") as file:
    about = json.loads(file.metadata()["coterie"])
    w = {name: file.get_tensor(name) for name in file.keys()}
h = (x.float() * torch.tensor(about["scale"]) + torch.tensor(about["shift"])).flatten(1)
layers = sorted({name.rpartition(".")[0] for name in w if name.startswith("dense")})
for layer in layers:
    h = torch.relu(h @ w[layer + ".weight"].T + w[layer + ".bias"])
by_hand = h @ w["head.weight"].T + w["head.bias"]
assert torch.allclose(whole, by_hand, atol=1e-5)
print(json.dumps(whole.argmax(1).tolist()))
"""


def test_files_are_of_use_in_a_process_without_coterie(fedavg, tmp_path) -> None:
    x = small_experiment(METHODS.resolve("fedavg")).population().pool.x[:20]
    torch.save(torch.from_numpy(x), tmp_path / "x.pt")
    export(fedavg.folder, out=tmp_path / "model.safetensors")
    export(fedavg.folder, format="torchscript", out=tmp_path / "model.pt")
    command = [sys.executable, "-W", "ignore", "-c", ELSEWHERE, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == fedavg.model().predict(x).tolist()


def test_onnx_is_what_its_checker_takes(fedavg, tmp_path) -> None:
    onnx = pytest.importorskip("onnx")
    model = onnx.load(export(fedavg.folder, format="onnx", out=tmp_path / "model.onnx"))
    onnx.checker.check_model(model)
    assert [each.name for each in model.graph.input] == ["samples"]


@pytest.mark.filterwarnings("ignore:.*torch.jit.load:DeprecationWarning")
def test_a_tables_model_says_what_goes_in_and_what_comes_out(tmp_path, monkeypatch) -> None:
    """Found from Python in the current folder too, and written down with columns and classes."""
    monkeypatch.chdir(tmp_path)
    rows = [f"{age},{city},{'yes' if age > 40 else 'no'}" for age in range(20, 60) for city in ("Oslo", "Bern")]
    Path("people.csv").write_text("\n".join(["age,city,buys", *rows]) + "\n")
    table = {
        "name": "people",
        "rounds": 1,
        "data": {"source": {"name": "csv", "path": "people.csv", "label": "buys"}},
        "partition": {"name": "iid", "clients": 2},
        "model": "tabular",
        "method": "fedavg",
        "engine": {"name": "inline"},
    }
    run(Experiment.parse(table), "runs/people", data=tmp_path / "elsewhere")
    model = Result.load("runs/people").model(data=tmp_path / "elsewhere")
    assert (model.columns, model.labels) == (["age", "city=Bern", "city=Oslo"], ["no", "yes"])
    assert len(model.predict([[30.0, 1.0, 0.0]])) == 1
    path = export("runs/people", format="torchscript", data=tmp_path / "elsewhere")
    extra = {"coterie.json": ""}
    torch.jit.load(str(path), _extra_files=extra)
    about = json.loads(extra["coterie.json"])
    assert (about["columns"], about["classes"]) == (model.columns, model.labels)
    assert "name=value" in about["use"]
