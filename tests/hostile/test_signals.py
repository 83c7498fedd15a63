"""Ctrl-C and SIGTERM at any moment of any command: one sentence and exit code 130, never 0, never a traceback."""

from __future__ import annotations

import os
import random
import signal
import time

import pytest
from tests.forms import rest_is_long
from tests.hostile.processes import TRIES, start, until_it_hears

from coterie.ledger import Ledger

LONG = ("--set", "rounds=400")


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> str:
    folder = str(tmp_path_factory.mktemp("finished") / "run")
    done = start("run", "digits-two-class", "--set", "rounds=2", "--set", "engine.name=inline", "--out", folder, "--quiet")
    done.communicate()
    assert done.returncode == 0
    return folder


@pytest.mark.parametrize("attempt", rest_is_long(range(8 * TRIES), short=range(4)))
def test_a_signal_at_any_moment_is_one_sentence_and_130(finished, tmp_path, attempt) -> None:
    """From the moment that Python runs code of ours: while importing, loading data, in rounds, reporting."""
    commands = [
        ("run", "digits-two-class", "--out", str(tmp_path / "run"), *LONG),
        ("run", "digits-two-class", "--out", str(tmp_path / "run"), *LONG, "--set", "engine.name=inline"),
        ("compare", "digits-two-class", "--methods", "fedavg,local", "--out", str(tmp_path / "compared"), *LONG),
        ("report", finished, "--out", str(tmp_path / "page.html")),
    ]
    rng = random.Random(attempt)
    command = commands[attempt % len(commands)]
    how = rng.choice([signal.SIGINT, signal.SIGTERM])
    process = start(*command)
    until_it_hears(process)
    time.sleep(rng.uniform(0, 1.0 if command[0] == "report" else 6.0))
    over = process.poll() is not None  # only a report may be: the others have hundreds of rounds to go
    os.kill(process.pid, how) if not over else None
    _, said = process.communicate(timeout=60)
    if over:
        assert command[0] == "report"
        assert process.returncode == 0
    else:
        assert process.returncode == 130, f"{command[0]}, {how.name}: {said}"
        assert said.count("error: stopped") == len(said.splitlines()) == 1


def test_looking_at_a_run_can_be_stopped(finished, tmp_path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    with open(os.path.join(finished, "ledger.jsonl")) as file:
        ledger.write_text(file.readline())
    with Ledger(ledger):  # somebody writes it: else the run is known to be dead, and there is nothing to wait for
        process = start("watch", str(tmp_path))
        until_it_hears(process)
        time.sleep(2)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said.strip() in ("error: stopped looking at it; the run goes on", "error: stopped")


def test_a_signal_while_modules_are_imported_waits_for_them(tmp_path) -> None:
    """An exception inside of an import that C++ began, as torch's does, is the end of the process: `terminate called`, and a core."""
    (tmp_path / "importing.py").write_text(
        "import os, signal, time\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
        "time.sleep(0.1)\n"
        "print('imported', flush=True)\n"
        "from coterie.methods import FedAvg as Mine\n"
    )
    process = start("run", "digits-two-class", "--set", "method=importing:Mine", "--out", "run", folder=tmp_path)
    shown, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "imported" in shown
    assert said.count("error: stopped") == len(said.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_a_second_signal_ends_at_once(tmp_path) -> None:
    """Even while the first is being obeyed: here by a method whose cleaning up never ends."""
    (tmp_path / "slow.py").write_text(
        "import time\n"
        "from coterie.methods import FedAvg\n"
        "class Slow(FedAvg):\n"
        "    name = 'slow'\n"
        "    def round(self, state, fed):\n"
        "        try:\n"
        "            print('begun', flush=True)\n"
        "            time.sleep(600)\n"
        "        finally:\n"
        "            print('ending', flush=True)\n"
        "            time.sleep(600)\n"
    )
    words = ("run", "digits-two-class", "--set", "method=slow:Slow", "--set", "engine.name=inline", "--out", "run", "--quiet")
    process = start(*words, folder=tmp_path)
    assert process.stdout is not None
    assert "begun" in process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    assert "ending" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "stopped at once" in said
