"""The server's app and its folder."""

from __future__ import annotations

import json
import threading
import time
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from coterie.deployment import conducting, server_app
from coterie.deployment.server_app import STATUS, Deployment, main
from coterie.errors import Interrupted, UserError
from coterie.methods import METHODS
from coterie.testing import small_experiment


def deployment(folder) -> Deployment:
    return Deployment.begin(folder, small_experiment(METHODS.resolve("fedavg")), ["north"], 1)


def test_only_one_server_at_a_time_is_at_work_on_a_deployment(tmp_path) -> None:
    one = deployment(tmp_path)
    with one.alone(), pytest.raises(UserError, match="another server is at work"), one.alone(patience=0.0):
        pass
    with one.alone(patience=0.0):
        pass


def test_the_last_words_of_a_server_that_was_killed_are_not_taken_for_those_of_the_next(tmp_path, monkeypatch) -> None:
    """Flower's processes outlive the command that has started them for some seconds; then the app says that it was stopped."""
    made, begun = deployment(tmp_path), threading.Event()

    def stopped(post, folder) -> None:
        begun.set()
        time.sleep(0.5)
        raise Interrupted("stopped")

    def old() -> None:
        with pytest.raises(Interrupted):
            main(None, SimpleNamespace(run_config={"folder": str(tmp_path)}))

    @contextmanager
    def superlink(process):
        yield SimpleNamespace(poll=lambda: None)

    def submit(flower, folder) -> None:
        (folder / STATUS).write_text(json.dumps({"state": "done", "words": "here"}))

    monkeypatch.setattr(server_app, "conduct", stopped)
    monkeypatch.setattr(conducting, "start_server", lambda *settings: None)
    monkeypatch.setattr(conducting, "started", superlink)
    monkeypatch.setattr(conducting, "submit", lambda flower, folder: None if (folder / STATUS).exists() else submit(flower, folder))
    thread = threading.Thread(target=old)
    thread.start()
    assert begun.wait(30)
    assert conducting.serve(made, "127.0.0.1", 8000, None, lambda words: None) == "here"
    thread.join()
