"""Comparisons: what runs, what is reused, what survives a kill, and what the numbers say."""

from __future__ import annotations

import csv
import io
import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from coterie.errors import RunError, UserError
from coterie.ledger import events
from coterie.methods import FedAvg, FedProx
from coterie.results.comparison import contrast, read_arms
from coterie.results.sheets import wide
from coterie.running.experiment import Experiment
from coterie.running.provenance import code_digest
from coterie.running.rounds import run
from coterie.studies.compare import Arm, arm, arms_of, compare, finished, grid_of
from coterie.testing import small_experiment


def silent(arm: Arm):
    return nullcontext([])


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


def test_a_method_that_the_experiment_sets_up_is_compared_as_set_up(tmp_path) -> None:
    arms = arms_of(small_experiment(FedProx(mu=0.7)), ["fedavg", "fedprox"], [0], tmp_path)
    assert arms[1].experiment.method == FedProx(mu=0.7)


def test_a_folder_is_named_by_experiment_and_code(tmp_path, monkeypatch) -> None:
    plan = small_experiment(FedAvg())
    first = arm(plan, tmp_path, "fedavg")
    assert first.folder == arm(plan.replace(engine={"name": "inline"}), tmp_path, "fedavg").folder
    assert first.folder != arm(plan.replace(rounds=4), tmp_path, "fedavg").folder
    monkeypatch.setattr("coterie.running.provenance._own_code", lambda: "another")
    assert first.folder != arm(plan, tmp_path, "fedavg").folder


def test_the_code_of_a_users_own_method_counts(tmp_path, monkeypatch) -> None:
    module = tmp_path / "mine.py"
    source = "from coterie.methods import FedAvg\nclass Mine(FedAvg):\n    name = ''\n"
    module.write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    plan = small_experiment(FedAvg()).overridden({"method": "mine:Mine"})
    before = code_digest(plan)
    module.write_text(source + "# changed\n")
    assert code_digest(plan) != before


def test_the_ledger_says_which_code_wrote_it(tmp_path) -> None:
    plan = small_experiment(FedAvg()).replace(engine={"name": "inline"})
    run(plan, tmp_path / "run")
    assert next(events(tmp_path / "run" / "ledger.jsonl"))["code"] == code_digest(plan)


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


def test_what_is_there_is_reused_and_one_at_a_time_gives_the_same_bits(tmp_path) -> None:
    plan = small_experiment(FedAvg())
    heard: list[str] = []

    def watch(arm: Arm):
        return nullcontext([lambda event: heard.append(f"{arm.title} {event['event']}")])

    arms = arms_of(plan, ["fedavg", "local"], [0, 1], tmp_path / "a")
    first = compare(arms, watch)
    assert heard.count("local seed 1 round") == plan.rounds
    assert heard.count("fedavg seed 0 end") == 1
    heard.clear()
    assert compare(arms, watch) == first
    assert heard == []
    again = compare(arms_of(plan, ["fedavg"], [0], tmp_path / "b"), silent, jobs=1)
    assert again[0]["digest"] == first[0]["digest"]


def test_an_arm_that_fails_does_not_stop_the_others_and_a_mistake_stops_all(tmp_path) -> None:
    plan = small_experiment(FedAvg()).overridden({"admission.quorum": 1.0})
    arms = arms_of(plan, ["fedavg"], [0], tmp_path, {"training.optimiser.lr": [1e30, 0.1]})
    with pytest.raises(RunError, match=r"1 of 2 runs failed.*lr=1e\+30 seed 0: .*replies admitted"):
        compare(arms, silent)
    assert [finished(each) for each in arms] == [False, True]
    wrong = arms_of(plan.overridden({"data.source": "mnist"}), ["fedavg"], [0], tmp_path / "wrong")
    with pytest.raises(UserError, match="mnist"):
        compare(wrong, silent, data=tmp_path / "nothing")
    assert not wrong[0].folder.exists()


ROUNDS = 8
SETTINGS = [f"rounds={ROUNDS}", "cohort=4", "data.train=400"]
PROGRAM = "import coterie.running.rounds; coterie.running.provenance._own_code = lambda: 'fixed'; import coterie.cli; coterie.cli.main()"
"""The command line, with the digest of the code held still: sources may be edited while tests run."""


def start(folder: Path) -> subprocess.Popen[str]:
    words = ["compare", "digits-two-class", "--methods", "fedavg,local", "--seeds", "0,1", "--out", str(folder)]
    words += [word for setting in SETTINGS for word in ("--set", setting)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", PROGRAM, *words], cwd=folder.parent, **pipes)


def rounds_in(folder: Path) -> dict[str, int]:
    return {path.parent.name: sum(e["event"] == "round" for e in events(path)) for path in folder.glob("*/ledger.jsonl")}


def wait_until(process: subprocess.Popen[str], ready) -> None:
    while not ready() and process.poll() is None:
        time.sleep(0.05)


def without_clock(arms: list[Arm], summaries: list[dict]) -> list:
    """A comparison's table but for its seconds."""
    found = contrast(read_arms((each.label, each.folder) for each in arms))
    rows = [{key: value for key, value in row.items() if key != "seconds"} for row in wide(found)]
    return [*rows, *(summary["digest"] for summary in summaries)]


def test_a_comparison_stopped_then_killed_runs_only_what_is_missing_and_ends_in_the_same_table(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("coterie.running.provenance._own_code", lambda: "fixed")
    folder = tmp_path / "stopped"
    stopped = start(folder)
    wait_until(stopped, lambda: any(rounds_in(folder).values()))
    stopped.send_signal(signal.SIGINT)
    _, err = stopped.communicate()
    assert stopped.returncode == 130
    assert "of 4 runs are done. Go on with the same command" in err
    assert "Traceback" not in err
    before = rounds_in(folder)

    killed = start(folder)
    wait_until(killed, lambda: any(folder.glob("*/summary.json")) and any(0 < n < ROUNDS for n in rounds_in(folder).values()))
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert all(rounds_in(folder)[name] >= n for name, n in before.items())
    done = {path: path.stat().st_mtime_ns for path in folder.glob("*/summary.json")}
    assert 0 < len(done) < 4

    plan = Experiment.load("digits-two-class", SETTINGS)
    arms, calm = (arms_of(plan, ["fedavg", "local"], [0, 1], where) for where in (folder, tmp_path / "calm"))
    assert {path.parent for path in done} == {each.folder for each in arms if finished(each)}
    assert without_clock(arms, compare(arms, silent)) == without_clock(calm, compare(calm, silent))
    assert all(path.stat().st_mtime_ns == when for path, when in done.items())
    assert len(rounds_in(folder)) == 4
    for each in arms:
        lines = [(e["event"], e["round"]) for e in events(each.folder / "ledger.jsonl") if e["event"] in ("round", "end")]
        assert lines == [*(("round", n) for n in range(1, ROUNDS + 1)), ("end", ROUNDS)]
        assert not (each.folder / "live").exists()
    assert any(e["event"] == "resume" for each in arms for e in events(each.folder / "ledger.jsonl"))


def test_the_command_line(tmp_path, capsys, monkeypatch) -> None:
    from coterie.cli import main as cli

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(
            sys, "argv", ["coterie", "compare", "digits-two-class", "--set", "rounds=2", "--methods", "fedavg,local", *words]
        )
        try:
            cli.main()
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
        return code, *capsys.readouterr()

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("coterie.running.provenance._own_code", lambda: "fixed")
    assert "expected one format" in call("--csv", "--json")[2]
    code, _, err = call("--baseline", "locl")
    assert (code, "did you mean 'local'" in err) == (2, True)
    assert os.listdir(tmp_path) == []
    code, out, _ = call("--baseline", "local", "--grid", "training.epochs=1", "--csv")
    assert (code, out) == (2, "")  # with a grid, labels carry it
    code, out, _ = call("--csv")
    assert code == 0
    assert [row["method"] for row in csv.DictReader(io.StringIO(out))] == ["fedavg", "local"]
    assert "\\toprule" in call("--latex")[1]
    assert "| fedavg |" in call("--markdown")[1]
    assert Experiment.load("digits-two-class").name in call()[1]
