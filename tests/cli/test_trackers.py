"""Trackers really receive the metrics: read back from their own files, compared with the ledger."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests.results.ledgers import ROUNDS, last_mean, write_run

from coterie.cli import main as cli
from coterie.cli.trackers import Scalars, Tracker, tracking
from coterie.errors import UserError
from coterie.ledger import events
from coterie.results.summary import summarise
from coterie.results.tally import Tally

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
    sent = dict.fromkeys(("up", "down", "setup_up", "setup_down"), 0)
    steps: dict[str, int] = {}

    def note(name: str, round: int, value: float) -> None:
        found.setdefault(name, []).append((round, value))

    for event in events(folder / "ledger.jsonl"):
        if event["event"] == "exchange":
            sent[event["direction"] if event["round"] else f"setup_{event['direction']}"] += event["payload_bytes"]
        elif event["event"] == "training" and event["purpose"] == "training":
            name = "training" if event["site"] == "clients" else "server"
            steps[name] = steps.get(name, 0) + event["steps"]
        elif event["event"] == "evaluation" and event["client"] is None and "domain" not in event:
            note(f"{event['protocol']}/{'final_' if event.get('final') else ''}{event['metric']}", event["round"], event["value"])
        elif event["event"] == "round":
            for way, size in sent.items():
                note(f"bytes/{way}", event["round"], size)
            for name, count in steps.items():
                note(f"{name}/steps", event["round"], count)
            note("seconds", event["round"], event["seconds"])
    return found


def from_tensorboard(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder / "tensorboard"))
    accumulator.Reload()
    return {tag: [(each.step, each.value) for each in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]}


def agree(found: dict[str, list[tuple[int, float]]], folder: Path) -> None:
    expected = truth(folder)
    assert set(expected) <= set(found)
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


def test_what_was_sent_before_the_first_round_is_not_in_bytes_up(tmp_path) -> None:
    """Every view has one definition: rounds and setup apart."""
    folder = write_run(tmp_path / "run", "fedavg", 0)
    scalars, last = Scalars(), None
    for event in events(folder / "ledger.jsonl"):
        last = scalars.on_event(event) or last
    assert last is not None
    sent = summarise(Tally.read(folder / "ledger.jsonl"))["bytes"]
    for way in ("up", "down", "setup_up", "setup_down"):
        assert last[f"bytes/{way}"] == sent[way]
    assert last["bytes/setup_down"] == 5000
    assert last["local_post/final_accuracy"] == pytest.approx(last_mean("fedavg", 0))
    assert last["local_post/worst"] < last["local_post/accuracy"]
    assert (last["training/steps"], last["training/loss"]) == (50 + 60 * ROUNDS, pytest.approx(2 * 0.8**ROUNDS))


class Kept(Tracker):
    """A tracker that keeps what it is given."""

    def describe(self, settings) -> None:
        self.settings = dict(settings)

    def write(self, round, scalars) -> None:
        self.last = (round, dict(scalars))

    def close(self) -> None:
        """Nothing to close."""


def test_a_run_that_goes_on_goes_on_counting(tmp_path) -> None:
    """A tracker of a resumed run is new; what was sent before the stop is in the ledger."""
    folder = write_run(tmp_path / "run", "fedavg", 0)
    lines = (folder / "ledger.jsonl").read_text().splitlines(keepends=True)
    stop = 1 + next(at for at, line in enumerate(lines) if '"event":"round","round":6' in line)
    whole, resumed = Kept(folder, "whole"), Kept(folder, "resumed")
    for event in events(folder / "ledger.jsonl"):
        whole(event)
    (folder / "ledger.jsonl").write_text("".join(lines[:stop]))
    resumed({"event": "resume", "round": 6, "dropped_bytes": 0, "versions": {}})
    for line in lines[stop:]:
        resumed(json.loads(line))
    assert resumed.last == whole.last
    assert whole.settings["training.optimiser.lr"] == 0.05
