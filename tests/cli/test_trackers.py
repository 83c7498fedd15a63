"""Trackers really receive the metrics: read back from their own files, compared with the ledger."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from coterie.cli import main as cli
from coterie.cli.trackers import tracking
from coterie.errors import UserError
from coterie.ledger import events

WORDS = ("digits-two-class", "--set", "rounds=2", "--set", "engine.name=inline", "--quiet")


@pytest.fixture
def call(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")

    def run(*words: str) -> None:
        monkeypatch.setattr(sys, "argv", ["coterie", *words])
        cli.main()

    return run


def truth(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Every scalar by round, from the ledger."""
    found: dict[str, list[tuple[int, float]]] = {}
    sent = {"up": 0, "down": 0}
    for event in events(folder / "ledger.jsonl"):
        if event["event"] == "exchange":
            sent[event["direction"]] += event["payload_bytes"]
        elif event["event"] == "evaluation" and event["client"] is None:
            found.setdefault(f"{event['protocol']}/{event['metric']}", []).append((event["round"], event["value"]))
        elif event["event"] == "round":
            for name, value in {"bytes/up": sent["up"], "bytes/down": sent["down"], "seconds": event["seconds"]}.items():
                found.setdefault(name, []).append((event["round"], value))
    return found


def from_tensorboard(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder / "tensorboard"))
    accumulator.Reload()
    return {tag: [(each.step, each.value) for each in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]}


def agree(found: dict[str, list[tuple[int, float]]], folder: Path) -> None:
    expected = truth(folder)
    assert set(found) == set(expected)
    for name, curve in expected.items():
        assert found[name] == [(step, pytest.approx(value, rel=1e-6)) for step, value in curve], name  # float32 on disk


def test_tensorboard_receives_a_run(call, tmp_path) -> None:
    call("run", *WORDS, "--track", "tensorboard", "--out", "here")
    agree(from_tensorboard(tmp_path / "here"), tmp_path / "here")


def test_mlflow_receives_a_run_and_goes_on_with_it(call, tmp_path) -> None:
    from mlflow import MlflowClient

    call("run", *WORDS, "--track", "mlflow", "--out", "here")
    client = MlflowClient()
    experiment = client.get_experiment_by_name("coterie")
    (found,) = client.search_runs([experiment.experiment_id])
    names = found.data.metrics
    agree({name: [(m.step, m.value) for m in client.get_metric_history(found.info.run_id, name)] for name in names}, tmp_path / "here")
    assert found.data.params["method.name"] == "fedavg"
    assert found.info.status == "FINISHED"
    with tracking("mlflow", tmp_path / "here", "again") as (tracker,):
        tracker({"event": "round", "round": 3, "seconds": 1.0})
    (found,) = client.search_runs([experiment.experiment_id])
    assert [m.step for m in client.get_metric_history(found.info.run_id, "seconds")] == [1, 2, 3]


def test_every_arm_of_a_comparison_is_tracked_in_its_folder(call, tmp_path) -> None:
    call("compare", *WORDS, "--methods", "fedavg,local", "--track", "tensorboard")
    folders = sorted((tmp_path / "runs" / "digits-two-class").iterdir())
    assert len(folders) == 2
    for folder in folders:
        agree(from_tensorboard(folder), folder)


@pytest.mark.parametrize(("name", "module"), [("tensorboard", "torch.utils.tensorboard"), ("mlflow", "mlflow.entities")])
def test_an_extra_that_is_missing_is_named(monkeypatch, tmp_path, name, module) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=rf"pip install 'coterie\[{name}\]'"), tracking(name, tmp_path, "demo"):
        pass
