"""The round loop: what a run leaves behind, and how it comes back after being stopped at any moment."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from tests.forms import long

from coterie.engines import Inline, Processes
from coterie.errors import Interrupted, UserError
from coterie.ledger import Ledger, events
from coterie.method import task
from coterie.methods import FedAvg, FedDF, FedMD, Local
from coterie.record import Record, read
from coterie.results.read import read_whole
from coterie.running.experiment import Experiment
from coterie.running.provenance import code_digest
from coterie.running.rounds import new_folder, resume, run
from coterie.running.sections import NewClients
from coterie.site import SERVER, ModelCache
from coterie.testing import small_experiment


def ledger(folder: Path) -> list[dict]:
    return list(events(folder / "ledger.jsonl"))


def test_what_a_run_leaves_behind(tmp_path) -> None:
    plan = small_experiment(FedAvg()).replace(evaluation={"targets": (0.2, 0.99), "protocols": ("global", "local_pre", "local_post")})
    result = run(plan, tmp_path / "run", engine=Inline())
    left = ["checkpoint.previous.safetensors", "checkpoint.safetensors", "ledger.jsonl", "summary.json"]
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == left
    lines = ledger(tmp_path / "run")
    assert Experiment.parse(lines[0]["experiment"]) == plan
    assert lines[0]["seed"] == plan.seed
    assert lines[0]["versions"]["torch"] == torch.__version__
    assert lines[-1]["event"] == "end"
    exchanges = [line for line in lines if line["event"] == "exchange"]
    assert len(exchanges) == 3 * 3 * 2
    assert {line["kind"] for line in exchanges} == {"weights"}
    assert {line["payload_bytes"] for line in exchanges} == {4840}
    assert all(line["framed_bytes"] > line["payload_bytes"] for line in exchanges)
    evaluations = [line for line in lines if line["event"] == "evaluation"]
    per_client = [e for e in evaluations if e["protocol"] == "local_post" and e["metric"] == "accuracy" and e["round"] == 2]
    means = [e["value"] for e in per_client if e["client"] is None]
    values = [e["value"] for e in per_client if e["client"] is not None]
    assert len(values) == 3
    assert means == [pytest.approx(sum(values) / 3)]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary == result.summary
    assert summary["bytes"]["up"] == summary["bytes"]["down"] == 9 * 4840
    assert summary["targets"]["global"]["0.99"]["first_crossing"] is None
    assert summary["seconds"] > 0


def test_nothing_is_written_over_something_else(tmp_path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match="is not empty"):
        run(small_experiment(FedAvg()), tmp_path, engine=Inline())
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_new_folders_count_up(tmp_path) -> None:
    plan = small_experiment(FedAvg())
    first = new_folder(plan, tmp_path)  # which makes it, so that two that are started together get two
    assert (first.name, new_folder(plan, tmp_path).name) == ("conformance-fedavg-s0", "conformance-fedavg-s0-2")


def test_cohorts_come_from_the_seed_alone(tmp_path) -> None:
    def cohorts(name: str, **changes) -> list[tuple]:
        run(small_experiment(FedAvg()).replace(**changes), tmp_path / name, engine=Inline())
        return [(e["round"], e["client"]) for e in ledger(tmp_path / name) if e["event"] == "exchange" and e["direction"] == "down"]

    assert cohorts("a") == cohorts("b") != cohorts("c", seed=1)


def test_evaluation_every_k_rounds_and_at_the_end(tmp_path) -> None:
    run(small_experiment(FedAvg(), rounds=5).replace(evaluation={"every": 2}), tmp_path / "run", engine=Inline())
    assert sorted({e["round"] for e in ledger(tmp_path / "run") if e["event"] == "evaluation"}) == [2, 4, 5]


def test_early_stop_at_a_target(tmp_path) -> None:
    result = run(small_experiment(FedAvg(), rounds=30).replace(evaluation={"stop_at": 0.3}), tmp_path / "run", engine=Inline())
    assert result.summary["rounds"] < 30
    assert result.accuracy() >= 0.3
    assert ledger(tmp_path / "run")[-1]["reached"] is True


def test_rounds_are_accounted_for(tmp_path) -> None:
    run(small_experiment(FedAvg()), tmp_path / "run", engine=Inline())
    rounds = [line for line in ledger(tmp_path / "run") if line["event"] == "round"]
    for line in rounds:
        assert 0 < line["where"]["work"] <= line["where"]["clients"] <= line["seconds"]
        assert line["where"]["evaluation"] <= line["seconds"]


def kill_and_resume(plan: Experiment, folder: Path, delay: float) -> int:
    """Run in a process that is killed after `delay` seconds; then resume it; how many rounds it had finished."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["coterie.engines.processes", "coterie.running.rounds"])
    process = context.Process(target=run, args=(plan, folder))
    process.start()
    while not (folder / "ledger.jsonl").exists() and process.is_alive():
        time.sleep(0.002)
    time.sleep(delay)
    process.kill()
    process.join()
    return sum(line["event"] == "round" for line in ledger(folder))


@pytest.mark.parametrize(
    ("engine", "method"),
    [
        ("inline", FedAvg()),
        pytest.param("inline", Local(), marks=long),
        pytest.param("processes", FedAvg(), marks=long),
        ("processes", Local()),
    ],
)
def test_a_kill_at_any_moment_loses_at_most_the_round_in_progress(tmp_path, method, engine) -> None:
    plan = small_experiment(method, rounds=8).replace(engine={"name": engine, "workers": 2 if engine == "processes" else None})
    plan = plan.replace(training=plan.training.replace(state="kept"))
    calm = run(plan, tmp_path / "calm")
    rng = random.Random(f"{method} {engine}")
    finished = []
    for attempt in range(6 if engine == "inline" else 3):
        folder = tmp_path / f"killed-{attempt}"
        try:
            finished.append(kill_and_resume(plan, folder, rng.uniform(0, 1.2 if engine == "inline" else 1.5)))
            result = resume(folder, engine=Inline())
        except UserError as error:
            if "no first line" in str(error):  # killed before anything was on disk
                continue
            raise
        assert result.summary["digest"] == calm.summary["digest"], f"attempt {attempt}, killed after {finished[-1]} rounds"
        assert {k: result.summary[k] for k in ("bytes", "protocols", "rounds")} == {
            k: calm.summary[k] for k in ("bytes", "protocols", "rounds")
        }
        assert not (folder / "live").exists()
        assert len(list((folder / "memory").glob("*"))) == len(list((tmp_path / "calm" / "memory").glob("*")))
    assert finished, "every attempt was killed before its first line"


def test_a_kill_between_any_two_writes(tmp_path, monkeypatch) -> None:
    """Stop dead (as if killed) at every single rename and every ledger commit of a run; each resumes to the same bits."""
    plan = small_experiment(Local(), rounds=2)
    calm = run(plan, tmp_path / "calm", engine=Inline())

    class Killed(BaseException):
        pass

    replace, fsync = os.replace, os.fsync
    for moment in range(200):
        calls = [0]

        def count(real, *args, calls=calls, moment=moment):
            if calls[0] == moment:
                raise Killed
            calls[0] += 1
            return real(*args)

        folder = tmp_path / f"moment-{moment}"
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", lambda *args: count(replace, *args))
            patch.setattr(os, "fsync", lambda *args: count(fsync, *args))
            try:
                run(plan, folder, engine=Inline())
            except Killed:
                pass
            else:
                break
        if (folder / "ledger.jsonl").exists():  # else nothing was begun
            assert resume(folder, engine=Inline()).summary["digest"] == calm.summary["digest"], moment
    assert moment > 10, "the run made fewer writes than it has to"


def test_resume_says_so_in_the_ledger_and_a_finished_run_is_left_alone(tmp_path) -> None:
    def stop(event) -> None:
        if event["event"] == "round" and event["round"] == 2:
            raise KeyboardInterrupt

    plan = small_experiment(FedAvg())
    with pytest.raises(Interrupted, match="coterie run --resume"):
        run(plan, tmp_path / "run", engine=Inline(), callbacks=[stop])
    done = resume(tmp_path / "run", engine=Inline())
    lines = ledger(tmp_path / "run")
    assert [line["round"] for line in lines if line["event"] == "resume"] == [1]
    assert [line["round"] for line in lines if line["event"] == "round"] == [1, 2, 3]
    again = resume(tmp_path / "run", engine=Inline())
    assert again.summary == done.summary
    assert ledger(tmp_path / "run") == lines


def test_a_folder_without_a_run_cannot_be_resumed(tmp_path) -> None:
    with pytest.raises(UserError, match="there is no ledger"):
        resume(tmp_path)
    (tmp_path / "ledger.jsonl").write_text('{"event": "sta')
    with pytest.raises(UserError, match="no first line"):
        resume(tmp_path)


@pytest.mark.parametrize("how", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=long)])
def test_ctrl_c_finishes_writing_and_says_how_to_go_on(tmp_path, how) -> None:
    command = [sys.executable, "-m", "coterie", "run", "digits-two-class", "--set", "rounds=500", "--out", str(tmp_path / "run")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    for line in process.stdout:
        if "round 3/" in line:
            os.killpg(process.pid, how) if how == signal.SIGINT else process.send_signal(how)  # a terminal tells everybody
            break
    _, complaint = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"coterie run --resume {tmp_path / 'run'}" in complaint
    assert "Traceback" not in complaint
    assert read(tmp_path / "run" / "checkpoint.safetensors").number("round") >= 2
    assert not (tmp_path / "run" / "live").exists()


def test_new_clients_join_at_the_end(tmp_path) -> None:
    plan = small_experiment(FedAvg(), rounds=4).replace(new_clients=NewClients(count=2, epochs=6), cohort=1.0)
    result = run(plan, tmp_path / "run", engine=Inline())
    lines = ledger(tmp_path / "run")
    trained = {line["client"] for line in lines if line["event"] == "exchange" and line["task"] == "train"}
    assert trained == {0, 1, 2}
    assert lines[-1] == {"event": "end", "round": 4, "reached": False}
    new_clients = [line for line in lines if line["event"] == "new_client"]
    assert [line["client"] for line in new_clients] == [3, 4]
    for line in new_clients:
        curve = line["accuracy"]
        assert len(curve) == 7
        assert curve[line["epochs_to_plateau"]] >= line["plateau"] - 0.005
        assert all(value < line["plateau"] - 0.005 for value in curve[: line["epochs_to_plateau"]])
    assert len(result.summary["new_clients"]) == 2
    alone = run(plan.replace(method=Local()), tmp_path / "alone", engine=Inline())
    assert alone.summary["new_clients"][0]["accuracy"][0] < result.summary["new_clients"][0]["accuracy"][0]


@pytest.mark.parametrize("key", ["model", "method.meme"])
def test_the_digest_of_the_code_knows_a_users_own_network(tmp_path, monkeypatch, key) -> None:
    """Wherever it is named: a result of other code must not be taken for this one."""
    name = f"own_{key.replace('.', '_')}"
    path = tmp_path / f"{name}.py"
    path.write_text("from torch import nn\nclass Net(nn.Sequential):\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    plan = Experiment.load("digits-two-class", ["method=fml", f"{key}={name}:Net"])
    before = code_digest(plan)
    assert code_digest(plan) == before != code_digest(Experiment.load("digits-two-class", ["method=fml"]))
    path.write_text(path.read_text() + "# changed\n")
    assert code_digest(plan) != before


def test_public_data_is_setup_and_never_hidden(tmp_path) -> None:
    """Counted for those who are sent it: FedAvg's clients never see it, FedDF's server keeps it."""
    public = {"source": "digits", "samples": 50}
    for method, sent, lines, expected in (
        (FedMD(), False, 5, 0),
        (FedMD(), True, 5, 5 * 50 * 64),
        (FedAvg(), True, 0, 0),
        (FedDF(steps=1), True, 0, 0),
    ):
        folder = tmp_path / f"{method.name}-{sent}"
        plan = small_experiment(method).replace(data={"source": "digits", "train": 300, "test": 100, "public": {**public, "sent": sent}})
        result = run(plan, folder, engine=Inline())
        handed = [line for line in ledger(folder) if line["event"] == "exchange" and line["kind"] == "public data"]
        assert len(handed) == lines
        assert {line["round"] for line in handed} <= {0}
        assert result.summary["bytes"]["setup_down"] == expected
        if method == FedAvg():
            assert result.summary["bytes"]["down"] == 9 * 4840


def test_a_client_has_public_data_where_its_method_says_so(tmp_path) -> None:
    for method, at_client, at_server in ((FedMD(), True, True), (FedDF(), False, True), (FedAvg(), False, False)):
        plan = small_experiment(method).overridden({"data.public": {"source": "digits", "samples": 50}})
        population = plan.population()
        assert [population.site(each, 1, ModelCache()).public_data is not None for each in (0, SERVER)] == [at_client, at_server]


def test_two_runs_cannot_begin_in_one_folder(tmp_path, monkeypatch) -> None:
    """One that looked at the folder before the other wrote to it finds out when it has the ledger for itself."""
    plan = small_experiment(FedAvg(), rounds=1)
    run(plan, tmp_path / "run", engine=Inline())
    before = (tmp_path / "run" / "ledger.jsonl").read_bytes()
    monkeypatch.setattr("coterie.running.rounds.check_folder", lambda folder: None)
    with pytest.raises(UserError, match="not empty: another run was begun in it meanwhile"):
        run(plan, tmp_path / "run", engine=Inline())
    assert (tmp_path / "run" / "ledger.jsonl").read_bytes() == before


def test_what_is_no_number_is_null_on_the_ledger_and_in_the_summary(tmp_path) -> None:
    """A network that has become infinite has no loss; every reader of JSON can read so all the same."""
    plan = small_experiment(Local(), rounds=2).overridden({"training.optimiser.lr": 1e30})
    folder = run(plan, tmp_path / "run", engine=Inline()).folder

    def refuse(word: str) -> None:
        raise AssertionError(word)

    lines = [json.loads(line, parse_constant=refuse) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    json.loads((folder / "summary.json").read_text(), parse_constant=refuse)
    assert any(line["event"] == "evaluation" and line["metric"] == "loss" and line["value"] is None for line in lines)
    assert read_whole(folder).tally.last("local_post", "accuracy").value < 0.5


class TwoAsks(FedAvg):
    """Two exchanges a round, one of them with a message for each client, one left unread."""

    name: ClassVar[str] = "two-asks"

    def round(self, state, fed):
        fed.ask("train", state)
        messages = {client: Record(greeting=torch.full((client + 1,), 1.0)) for client in fed.cohort}
        for reply in fed.ask("echo", messages):
            assert reply.record["greeting"].numel() == reply.client + 1
        return state

    @task
    def echo(self, site, memory, message):
        return message, memory


def test_any_number_of_exchanges_in_a_round(tmp_path) -> None:
    run(small_experiment(TwoAsks(), rounds=1).replace(cohort=1.0), tmp_path / "run", engine=Inline())
    found = [
        (e["task"], e["direction"], e["client"], e["kind"], e["payload_bytes"])
        for e in ledger(tmp_path / "run")
        if e["event"] == "exchange"
    ]
    assert [f for f in found if f[0] == "echo" and f[1] == "up"] == [("echo", "up", k, "greeting", 4 * (k + 1)) for k in range(5)]
    assert sum(f[0] == "train" and f[1] == "up" for f in found) == 5


@long
def test_ten_thousand_clients_use_no_more_memory_a_round_than_one_thousand(tmp_path) -> None:
    """In fresh processes: peak memory of ten rounds with 20 clients each, from populations of 1,000 and of 10,000."""
    peaks = {}
    for clients in (1000, 10_000):
        code = f"""
import resource, sys, tempfile, time
import numpy as np
path = sys.argv[1]
rng = np.random.default_rng(0)
np.savez(path, x_train=rng.integers(0, 256, (40000, 8, 8), dtype=np.uint8), y_train=rng.integers(0, 10, 40000).astype(np.uint8),
         x_test=rng.integers(0, 256, (500, 8, 8), dtype=np.uint8), y_test=np.arange(500, dtype=np.uint8) % 10)
from coterie import Experiment, run
from coterie.engines import Inline, Processes
plan = Experiment.parse(dict(name="many", rounds=6, cohort=20, data=dict(source=dict(name="npz", path=path)), model="mlp", method="local",
                             partition=dict(name="shards", clients={clients}), evaluation=dict(every=6, final=20)))
began = time.perf_counter()
before = [0]
def first(event):
    if event["event"] == "round" and event["round"] == 1:
        before[0] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
run(plan, tempfile.mkdtemp(), engine=Inline(), callbacks=[first])
print(before[0], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter() - began)
"""
        output = subprocess.run([sys.executable, "-c", code, str(tmp_path / f"{clients}.npz")], capture_output=True, text=True, check=True)
        peaks[clients] = [float(word) for word in output.stdout.split()]
    few, many = peaks[1000], peaks[10_000]
    assert many[1] - many[0] <= (few[1] - few[0]) + 5_000, f"growth over five rounds in kB: {few} and {many}"
    assert many[1] <= few[1] * 1.1


class Logs(FedAvg):
    """Logs arrays, from a client and from the server."""

    name: ClassVar[str] = "logs"

    def round(self, state, fed):
        fed.server.log("count", torch.tensor([float(fed.round)]))
        return super().round(state, fed)

    @task
    def train(self, site, memory, message):
        reply, memory = super().train(site, memory, message)
        site.log("bias", reply.group("model").tensors["head.bias"])
        return reply, memory


@pytest.mark.parametrize("engine", [Inline, lambda: Processes(2)], ids=["inline", "processes"])
def test_logged_arrays_reach_the_ledger_on_evaluated_rounds(tmp_path, engine) -> None:
    result = run(small_experiment(Logs(), rounds=4).replace(evaluation={"every": 2}), tmp_path / "run", engine=engine())
    shown = [line for line in ledger(tmp_path / "run") if line["event"] == "log"]
    assert {(line["round"], line["name"]) for line in shown} == {(r, n) for r in (2, 4) for n in ("bias", "count")}
    assert all(len(line["values"]) == (10 if line["name"] == "bias" else 1) for line in shown)
    assert result.summary["bytes"]["up"] == 12 * 4840


def test_two_processes_never_write_one_run(tmp_path) -> None:
    def meddle(event) -> None:
        if event["event"] == "round":
            with pytest.raises(UserError, match="still going on in another process"):
                Ledger(tmp_path / "run" / "ledger.jsonl")

    run(small_experiment(FedAvg(), rounds=1), tmp_path / "run", engine=Inline(), callbacks=[meddle])
    Ledger(tmp_path / "run" / "ledger.jsonl").__exit__(None, None, None)
