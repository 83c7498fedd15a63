"""The server's app and its folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from tests.deployment.processes import wait_for

from coterie.deployment import conducting, server_app
from coterie.deployment.server_app import STATUS, Deployment, end_with_server, held, main
from coterie.errors import Interrupted, UserError
from coterie.methods import METHODS
from coterie.testing import small_experiment


def deployment(folder) -> Deployment:
    return Deployment.new(folder, small_experiment(METHODS.resolve("fedavg")), ["north"], 1).begun()


def test_a_folder_goes_on_with_what_it_holds_and_nothing_else(tmp_path) -> None:
    made, plan = deployment(tmp_path), small_experiment(METHODS.resolve("fedavg"))
    assert Deployment.new(tmp_path, plan, ["north"], 1).begun().run == made.run
    with pytest.raises(UserError, match=r"a deployment that is there has rounds = 3, not 7; expected the same, or another folder"):
        Deployment.new(tmp_path, plan.replace(rounds=7), ["north"], 1).begun()
    with pytest.raises(UserError, match=r"a deployment that is there has clients = north, not north, south"):
        Deployment.new(tmp_path, plan, ["north", "south"], 1).begun()


def test_nodes_are_named_by_numbers() -> None:
    assert server_app._nodes("north=17, south=4") == {"north": 17, "south": 4}
    assert server_app._nodes("") == {}
    with pytest.raises(UserError, match=r"nodes = 'north': expected name=number"):
        server_app._nodes("north")


def test_only_one_server_at_a_time_is_at_work_on_a_deployment(tmp_path) -> None:
    with held(tmp_path), pytest.raises(UserError, match="another server is at work"), held(tmp_path, patience=0.0):
        pass
    with held(tmp_path, patience=0.0):
        pass


def test_the_app_ends_with_the_command_that_has_started_it(tmp_path) -> None:
    """Flower's own process would look for a SuperLink that is gone, and hold the run, for minutes."""
    code = f"from pathlib import Path; from coterie.deployment.server_app import *; end_with_server(Path({str(tmp_path)!r})); "
    words = [sys.executable, "-c", code + "print('begun', flush=True); import time; time.sleep(600)"]
    with held(tmp_path):
        app = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert app.stdout is not None
        assert app.stdout.readline() == "begun\n"
        assert app.poll() is None
    assert app.wait(timeout=60) == 1
    app.stdout.close()


def test_an_app_that_was_killed_is_missed_though_nobody_has_taken_note_of_its_death(tmp_path) -> None:
    """Flower's own process does not: the app stands as a process that is none."""
    deployment(tmp_path)
    code = f"from pathlib import Path; from coterie.deployment.server_app import *; folder = Path({str(tmp_path)!r})\n"
    code += "with held(folder / 'deployment.json'):\n    (folder / 'server.pid').write_text('1'); import time; time.sleep(600)"
    assert conducting._alive(tmp_path, 0.0)
    assert not conducting._alive(tmp_path, conducting.BEGIN)
    app = subprocess.Popen([sys.executable, "-c", code])
    wait_for((tmp_path / "server.pid").exists, lambda: "the app has not begun")
    assert conducting._alive(tmp_path, conducting.BEGIN)
    os.kill(app.pid, signal.SIGKILL)
    wait_for(lambda: not conducting._alive(tmp_path, 0.0), lambda: "its death is not noticed")
    assert app.wait() == -signal.SIGKILL


def test_an_app_that_no_command_has_started_goes_on(tmp_path) -> None:
    end_with_server(tmp_path)
    with held(tmp_path, patience=0.0):
        pass


def test_the_last_words_of_a_server_that_was_killed_are_not_taken_for_those_of_the_next(tmp_path, monkeypatch) -> None:
    """Flower's processes outlive the command that has started them for some seconds; then the app says that it was stopped."""
    made, begun = deployment(tmp_path), threading.Event()

    def stopped(post, folder, nodes, *, changed_code) -> None:
        begun.set()
        time.sleep(0.5)
        raise Interrupted("stopped")

    def old() -> None:
        with pytest.raises(Interrupted):
            main(None, SimpleNamespace(run_config={"folder": str(tmp_path), "deployment": made.text(), "nodes": "", "changed_code": False}))

    @contextmanager
    def superlink(process):
        yield SimpleNamespace(poll=lambda: None)

    def submit(flower) -> None:
        if not (tmp_path / STATUS).exists():
            (tmp_path / STATUS).write_text(json.dumps({"state": "done", "words": "here"}))

    monkeypatch.setattr(server_app, "conduct", stopped)
    monkeypatch.setattr(conducting, "start_server", lambda *settings: None)
    monkeypatch.setattr(conducting, "started", superlink)
    monkeypatch.setattr(conducting, "submit", submit)
    thread = threading.Thread(target=old)
    thread.start()
    assert begun.wait(30)
    assert conducting.serve(made, "127.0.0.1", 8000, None, lambda words: None) == "here"
    thread.join()
