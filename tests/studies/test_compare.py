"""Comparisons: what runs, what is reused, what survives a kill, and what the numbers say."""

from __future__ import annotations

import csv
import io
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.engines import Inline
from coterie.errors import Interrupted, RunError, UserError
from coterie.ledger import LEDGER, events
from coterie.methods.fedavg import FedAvg
from coterie.results.comparison import contrast, read_arms
from coterie.results.gather import gather
from coterie.results.sheets import wide
from coterie.results.summary import summary_in
from coterie.running.experiment import Experiment
from coterie.running.rounds import resume, run
from coterie.studies.arms import Arm, arms_of
from coterie.studies.compare import COMMON, Compared, _ArmRunner, _common, check, compare, finished, reuse
from coterie.testing import small_experiment

PLAN = small_experiment(FedAvg()).replace(engine={"name": "inline"})


def silent(arm: Arm):
    return nullcontext([])


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
    second = compare(arms, watch)
    assert (first.reused, second.reused) == (0, 4)
    assert second.summaries == first.summaries
    assert heard == []
    again = compare(arms_of(plan, ["fedavg"], [0], tmp_path / "b"), silent, jobs=1)
    assert again.summaries[0]["digest"] == first.summaries[0]["digest"]


def test_one_of_every_method_goes_first_and_then_whichever_takes_longest(tmp_path) -> None:
    arms, begun = arms_of(PLAN, ["fedavg", "local", "fedprox"], [0, 1, 2], tmp_path), list[str]()

    def watch(arm: Arm):
        begun.append(arm.label)
        return nullcontext([])

    compare(arms[:8], watch, jobs=2)
    assert begun[:3] == ["fedavg", "local", "fedprox"]
    assert sorted(begun) == sorted(arm.label for arm in arms[:8])
    runner = _ArmRunner(silent, None, {}, alone=True)
    runner._took = {"fedavg": 2.0, "local": 5.0, "fedprox": 3.0}
    queue, order = list(arms), list[str]()
    while queue:
        order.append((free := runner._next(queue)).title)
        queue.remove(free)
    assert order == [f"{label} seed {seed}" for label in ("local", "fedprox", "fedavg") for seed in (0, 1, 2)]
    assert runner._next([]) is None


def test_an_arm_that_fails_leaves_the_others_and_is_named(tmp_path) -> None:
    plan = PLAN.overridden({"admission.quorum": 1.0})
    arms = arms_of(plan, ["fedavg"], [0], tmp_path, {"training.optimiser.lr": [1e30, 0.1]})
    compared = compare(arms, silent)
    assert [finished(each) for each in arms] == [False, True]
    assert [each.label for each in compared.arms] == ["fedavg lr=0.1"]
    assert list(compared.failed) == ["fedavg lr=1e+30 seed 0"]
    with pytest.raises(RunError, match=r"1 of 2 runs failed.*lr=1e\+30 seed 0: .*replies admitted"):
        compared.complete()


def test_who_is_stopped_while_an_arm_starts_leaves_no_process_to_wait_for(tmp_path, monkeypatch) -> None:
    """A child that nobody knows is joined when Python ends: the whole run would be waited for."""
    kind = multiprocessing.get_context("forkserver").Process
    start = kind.start

    def stopped(process) -> None:
        start(process)
        raise KeyboardInterrupt

    monkeypatch.setattr(kind, "start", stopped)
    with pytest.raises(Interrupted, match="stopped; 0 of 1 runs are done"):
        compare(arms_of(PLAN, ["fedavg"], [0], tmp_path), silent)
    assert multiprocessing.active_children() == []


def test_a_run_whose_ledger_is_damaged_is_in_no_table(tmp_path) -> None:
    """Its summary is whole, so it is not run again; what is left of its ledger would be another mean over as many seeds."""
    compared = compare(arms_of(PLAN, ["fedavg"], [0, 1], tmp_path), silent)
    (compared.arms[0].folder / "ledger.jsonl").write_text("junk\n")
    again = compare(arms_of(PLAN, ["fedavg"], [0, 1], tmp_path), silent).complete()
    assert again.reused == 2
    with pytest.raises(RunError, match=r"fedavg-s0-\S+ is damaged: its first line,.*; 1 line is damaged.*Remove that folder"):
        read_arms((each.label, each.folder) for each in again.arms)
    shutil.rmtree(again.arms[0].folder)
    mended = compare(arms_of(PLAN, ["fedavg"], [0, 1], tmp_path), silent)
    assert mended.reused == 1
    assert len(read_arms((each.label, each.folder) for each in mended.arms)[0].runs) == 2


def test_a_folder_for_arms_that_never_begin_does_not_stay(tmp_path) -> None:
    def stopped(arm: Arm):
        raise RunError("no tracker")

    with pytest.raises(RunError, match="no tracker"):
        compare(arms_of(PLAN, ["fedavg"], [0], tmp_path / "new"), stopped)
    assert os.listdir(tmp_path) == []


def test_data_that_are_missing_are_said_before_there_are_arms(tmp_path) -> None:
    plan = PLAN.overridden({"data.source": "mnist"})
    with pytest.raises(UserError, match="mnist was looked for"):
        arms_of(plan, ["fedavg"], [0], tmp_path / "wrong", data=tmp_path / "nothing")
    assert os.listdir(tmp_path) == []


def test_every_arm_is_checked_before_the_first_one_starts(tmp_path) -> None:
    started: list[str] = []

    def watch(arm: Arm):
        started.append(arm.title)
        return nullcontext([])

    arms = arms_of(PLAN, ["fedavg", "fedfusion", "local"], [0, 1], tmp_path)
    with pytest.raises(UserError, match=r"fedfusion seed 0: .*feature maps"):
        compare(arms, watch)
    assert (started, os.listdir(tmp_path)) == ([], [])


def test_arms_that_share_their_data_load_them_once(tmp_path, monkeypatch) -> None:
    loaded: list[int] = []
    real = Experiment.population
    monkeypatch.setattr(Experiment, "population", lambda self, data=None: loaded.append(self.seed) or real(self, data))
    arms = arms_of(PLAN, ["fedavg", "fedprox", "local"], [0, 1], tmp_path, {"training.epochs": [1, 2]})
    check(arms)
    assert sorted(loaded) == [0, 1]


def test_arms_start_from_the_same_pretraining_done_once(tmp_path) -> None:
    arms = arms_of(PLAN.replace(pretraining=1), ["local", "fml"], [0], tmp_path)
    assert not compare(arms, silent).failed
    (shared,) = (tmp_path / "pretrained").iterdir()
    assert any(shared.glob("*.safetensors"))


def npz(path: Path, seed: int, learnable: bool) -> None:
    """Three classes that can be told apart, or noise."""
    rng, y = np.random.default_rng(seed), np.arange(150, dtype=np.uint8) % 3
    noise = rng.integers(0, 60, (150, 8, 8), dtype=np.uint8)
    x = noise + 60 * y[:, None, None] if learnable else rng.integers(0, 240, (150, 8, 8), dtype=np.uint8)
    np.savez(path, x_train=x[:90], y_train=y[:90], x_test=x[90:], y_test=y[90:])


def test_a_comparison_is_run_again_when_the_data_changed(tmp_path) -> None:
    data, partition = {"source": {"name": "npz", "path": str(tmp_path / "mine.npz")}}, {"name": "iid", "clients": 2}
    plan = PLAN.overridden({"data": data, "partition": partition, "cohort": 2, "training.epochs": 10})
    found = []
    for seed, learnable in ((0, True), (1, False)):
        npz(tmp_path / "mine.npz", seed, learnable)
        compared = compare(arms_of(plan, ["fedavg"], [0], tmp_path / "runs"), silent)
        found.append((compared.reused, compared.summaries[0]["protocols"]["global"]["accuracy"]["last"]))
    assert found[0][1] > 0.9
    assert found[1][1] < 0.6
    assert [reused for reused, _ in found] == [0, 0]


METHOD = """
from dataclasses import dataclass
from coterie.methods.fedavg import FedAvg
from helper import SCALE
@dataclass(frozen=True)
class Scaled(FedAvg):
    def round(self, state, fed):
        return super().round(state, fed).map(lambda value: value * SCALE)
"""


def test_a_comparison_is_run_again_when_a_module_that_the_method_imports_changed(tmp_path, monkeypatch) -> None:
    (tmp_path / "scaled.py").write_text(METHOD)
    monkeypatch.syspath_prepend(str(tmp_path))
    found = []
    for scale in ("1.0", "0.00"):  # of another length: Python takes a module of the same second and length for the one it has compiled
        (tmp_path / "helper.py").write_text(f"SCALE = {scale}\n")
        found.append(compare(arms_of(PLAN, ["scaled:Scaled"], [0], tmp_path / "runs"), silent))
    assert [each.reused for each in found] == [0, 0]
    assert len({each.summaries[0]["digest"] for each in found}) == 2
    for name in ("scaled", "helper"):
        del sys.modules[name]


def test_what_run_did_is_reused_and_belongs_to_the_comparison(tmp_path) -> None:
    plan = PLAN
    done = run(plan, tmp_path / "runs" / "mine", engine=Inline())
    arms = arms_of(plan, ["fedavg", "local"], [0], tmp_path / "runs" / "small")
    reuse(arms, tmp_path / "runs")
    assert [finished(each) for each in arms] == [True, False]
    assert arms[0].folder.readlink() == Path("../mine")
    compared = compare(arms, silent)
    assert (compared.reused, compared.summaries[0]) == (1, done.summary)
    assert len(gather([tmp_path / "runs" / "small"]).arms) == 2


def test_what_run_did_with_other_settings_code_or_data_is_not_reused(tmp_path, monkeypatch) -> None:
    plan = PLAN
    run(plan, tmp_path / "runs" / "mine", engine=Inline())
    others = arms_of(plan.replace(rounds=2), ["fedavg"], [0], tmp_path / "runs" / "small")
    monkeypatch.setattr("coterie.running.provenance._own_code", lambda: "another")
    others += arms_of(plan, ["fedavg"], [0], tmp_path / "runs" / "small")
    reuse(others, tmp_path / "runs")
    assert not any(each.folder.exists() for each in others)


def test_a_run_that_went_on_with_other_code_is_not_reused(tmp_path, monkeypatch) -> None:
    plan, folder = PLAN, tmp_path / "runs" / "mine"

    def stop(event) -> None:
        if event["event"] == "round" and event["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        run(plan, folder, engine=Inline(), callbacks=[stop])
    with monkeypatch.context() as patch:
        patch.setattr("coterie.running.provenance._own_code", lambda: "another")
        resume(folder, engine=Inline(), changed_code=True)
    arms = arms_of(plan, ["fedavg"], [0], tmp_path / "runs" / "small")
    reuse(arms, tmp_path / "runs")
    assert not finished(arms[0])


def test_a_link_to_a_run_that_is_gone_is_forgotten(tmp_path) -> None:
    plan = PLAN
    run(plan, tmp_path / "runs" / "mine", engine=Inline())
    arms = arms_of(plan, ["fedavg"], [0], tmp_path / "runs" / "small")
    reuse(arms, tmp_path / "runs")
    shutil.rmtree(tmp_path / "runs" / "mine")
    assert not finished(arms[0])
    assert compare(arms, silent).reused == 0
    assert not arms[0].folder.is_symlink()


ROUNDS = 8
SETTINGS = [f"rounds={ROUNDS}", "cohort=4", "data.train=400"]
PROGRAM = "import coterie.running.provenance as p; p._own_code = lambda: 'fixed'; from coterie.cli.main import main; main()"
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


def without_clock(compared: Compared) -> list:
    """A comparison's table but for its seconds."""
    found = contrast(read_arms((each.label, each.folder) for each in compared.arms))
    rows = [{key: value for key, value in row.items() if key != "seconds"} for row in wide(found)]
    return [*rows, *(summary["digest"] for summary in compared.summaries)]


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
    assert without_clock(compare(arms, silent)) == without_clock(compare(calm, silent))
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


# --- rounds that arms have in common ---

SPLIT = {"name": "split-metadata", "upload": "evaluated", "server": {"epochs": 2}}
SPLITS = [{"name": "fedavg", "weighting": "uniform"}, {**SPLIT, "budget": 2}, {**SPLIT, "budget": 3}, {**SPLIT, "selection": "full"}]


def split_plan(every: int = 3) -> Experiment:
    table = {
        "name": "split",
        "rounds": 3,
        "cohort": 3,
        "data": {"source": "digits", "train": 120, "test": 40},
        "partition": {"name": "iid", "clients": 4},
        "model": {"name": "cnn", "channels": [2, 3], "hidden": [8]},
        "method": "fedavg",
        "training": {"epochs": 1, "batch": 10, "optimiser": {"name": "sgd", "lr": 0.1}},
        "evaluation": {"every": every},
    }
    return Experiment.parse(table)


def told(folder: Path) -> list[dict[str, Any]]:
    """A ledger without what a clock says, and that it began elsewhere."""
    dull = {"seconds", "where", "shares"}
    return [
        {key: value for key, value in event.items() if key not in dull} for event in events(folder / LEDGER) if event["event"] != "resume"
    ]


def test_arms_that_begin_alike_do_those_rounds_once_and_have_the_bits_of_runs_by_themselves(tmp_path) -> None:
    arms = arms_of(split_plan(), SPLITS, [0], tmp_path / "arms")
    compare(arms, silent, jobs=2).complete()
    assert not (tmp_path / "arms" / COMMON).exists()
    took = []
    for number, each in enumerate(arms):
        alone = run(each.experiment, tmp_path / str(number), engine=Inline())
        assert summary_in(each.folder)["digest"] == alone.summary["digest"]
        assert told(each.folder) == told(alone.folder)
        took.append([event["seconds"] for event in events(each.folder / LEDGER) if event["event"] == "round"])
    assert sum(seconds[0] > 0 for seconds in took) == 1
    assert all(seconds[2] > 0 for seconds in took)


@pytest.mark.parametrize(
    ("every", "methods"),
    [
        (1, SPLITS),  # everything is evaluated
        (3, [SPLITS[0], {**SPLIT, "upload": "always"}]),
        (3, [SPLITS[0], {"name": "fedprox", "mu": 0.1}]),
        (3, [{"name": "fedavg"}, SPLITS[1]]),  # their means have other weights
    ],
)
def test_who_does_something_else_begins_by_itself(every, methods, tmp_path) -> None:
    arms = arms_of(split_plan(every), methods, [0], tmp_path)
    assert not _common(arms, None)


def test_common_rounds_that_were_stopped_go_on(tmp_path) -> None:
    arms = arms_of(split_plan(), SPLITS[:2], [0], tmp_path / "arms")
    common = _common(arms, None)[arms[0].folder]
    run(common.experiment, common.folder, engine=Inline(), until=1)
    assert not common.done
    compare(arms, silent, jobs=1).complete()
    for number, each in enumerate(arms):
        assert summary_in(each.folder)["digest"] == run(each.experiment, tmp_path / str(number), engine=Inline()).summary["digest"]
