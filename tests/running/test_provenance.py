"""What decides a result is in its digests, and a run does not go on with something else without saying so."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.data import hashes
from coterie.engines import Inline
from coterie.errors import Interrupted, UserError
from coterie.ledger import Event, events
from coterie.methods import METHODS
from coterie.results.gather import gather
from coterie.running.experiment import Experiment
from coterie.running.provenance import code_digest, data_digest, module_digests, origin
from coterie.running.rounds import resume, run
from coterie.testing import small_experiment

METHOD = """
from dataclasses import dataclass
from coterie.methods.fedavg import FedAvg
{imports}
@dataclass(frozen=True)
class Mine(FedAvg):
    name = "mine"
"""


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """A folder to import from, forgotten afterwards."""
    folder = tmp_path / "code"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    before = set(sys.modules)
    yield folder
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.fixture(autouse=True)
def memory(tmp_path, monkeypatch) -> Path:
    """Where hashes are remembered."""
    path = tmp_path / "cache" / "hashes.json"
    monkeypatch.setattr(hashes, "_memory", lambda: path)
    return path


def plan_of(method: Any) -> Experiment:
    return small_experiment(METHODS.resolve("fedavg")).overridden({"method": method, "engine.name": "inline"})


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.parametrize(
    "imports",
    [
        "import helper",
        "from helper import SCALE",
        "from package.inner import nothing",
        "from package import inner",
        "from second import helper",
        "def later():\n    import helper",
    ],
)
def test_the_code_of_every_imported_module_counts(modules, imports) -> None:
    write(modules / "mine.py", METHOD.format(imports=imports))
    write(modules / "second.py", "import helper\n")
    write(modules / "package" / "__init__.py", "")
    write(modules / "package" / "inner.py", "from .deep import further\nnothing = None\n")
    write(modules / "package" / "deep.py", "import helper\nfurther = None\n")
    write(modules / "helper.py", "SCALE = 1.0\n")
    plan = plan_of("mine:Mine")
    before = code_digest(plan)
    assert {"coterie", "mine", "helper"} <= set(module_digests(plan))
    write(modules / "helper.py", "SCALE = 0.0\n")
    assert code_digest(plan) != before


def test_the_code_of_a_users_own_network_and_metric_counts(modules) -> None:
    write(modules / "nets.py", "import torch\nfrom helper import WIDTH\nclass Net(torch.nn.Flatten): ...\n")
    write(modules / "helper.py", "WIDTH = 3\n")
    write(modules / "scores.py", "def mine(logits, labels):\n    return 0.0\n")
    plan = plan_of("fedavg").overridden({"model": "nets:Net", "evaluation.metrics": ["scores:mine"]})
    __import__("scores")
    assert sorted(module_digests(plan)) == ["coterie", "helper", "nets", "scores"]


def test_installed_packages_do_not_count_and_coterie_does(modules, monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(modules / "site-packages"))
    write(modules / "site-packages" / "installed.py", "")
    write(modules / "mine.py", METHOD.format(imports="import installed, json, numpy, torch.nn.functional"))
    plan = plan_of("mine:Mine")
    assert sorted(module_digests(plan)) == ["coterie", "mine"]
    before = code_digest(plan)
    monkeypatch.setattr("coterie.running.provenance._own_code", lambda: "another")
    assert code_digest(plan) != before


def npz(folder: Path, seed: int) -> Experiment:
    """A plan on a file of one's own, always of the same size and of the same age."""
    rng, path = np.random.default_rng(seed), folder / "mine.npz"
    folder.mkdir(exist_ok=True)
    x, y = rng.integers(0, 255, (60, 8, 8), dtype=np.uint8), np.arange(60, dtype=np.uint8) % 3
    np.savez(path, x_train=x[:40], y_train=y[:40], x_test=x[40:], y_test=y[40:])
    os.utime(path, (1_000_000 + seed, 1_000_000 + seed))
    table = {"name": "own", "data": {"source": {"name": "npz", "path": "mine.npz"}}, "partition": {"name": "iid", "clients": 2}}
    return Experiment.parse({**table, "model": "mlp", "method": "fedavg", "rounds": 2, "engine": {"name": "inline"}})


def test_the_bytes_of_the_data_count_and_are_hashed_once(tmp_path, monkeypatch, memory) -> None:
    plan = npz(tmp_path / "data", 0)
    first = data_digest(plan, tmp_path / "data")
    assert npz(tmp_path / "data", 1).digest() == plan.digest()
    second = data_digest(plan, tmp_path / "data")
    assert second != first
    monkeypatch.setattr(hashlib, "file_digest", None)  # whoever hashes again fails
    assert data_digest(plan, tmp_path / "data") == second
    assert os.listdir(tmp_path / "data") == ["mine.npz"]
    memory.write_text("{damaged")
    with pytest.raises(TypeError):
        data_digest(plan, tmp_path / "data")


def test_a_file_that_changed_a_moment_ago_is_not_remembered(tmp_path, memory) -> None:
    path = tmp_path / "new.bin"
    path.write_bytes(b"1")
    hashes.digest_of([path])
    assert not memory.exists()


def test_a_cache_that_cannot_be_written_is_no_reason_to_stop(tmp_path, memory) -> None:
    memory.parent.write_text("a file where a folder should be")
    plan = npz(tmp_path / "data", 0)
    assert data_digest(plan, tmp_path / "data") == data_digest(plan, tmp_path / "data")


def test_the_same_data_in_another_folder_have_the_same_digest(tmp_path) -> None:
    plan = npz(tmp_path / "here", 0)
    npz(tmp_path / "there", 0)
    assert data_digest(plan, tmp_path / "here") == data_digest(plan, tmp_path / "there")


def test_an_image_in_another_class_is_other_data(tmp_path) -> None:
    one, other = tmp_path / "one" / "a" / "cat" / "1.png", tmp_path / "other" / "a" / "dog" / "1.png"
    for path in (one, other):
        path.parent.mkdir(parents=True)
        path.write_bytes(b"image")
        (path.parents[1] / "2.png").write_bytes(b"image")
    assert hashes.digest_of([one, one.parents[1] / "2.png"]) != hashes.digest_of([other, other.parents[1] / "2.png"])


SOURCE = """
import numpy as np
from dataclasses import dataclass
from coterie.data.pool import Pool
from coterie.data.sources import Source
@dataclass(frozen=True)
class Own(Source):
    name = "own"
    path: str = ""
    def load(self, folder):
        return Pool(np.load(self.path), np.zeros(4, np.int64), train=2, classes=1)
"""


def test_a_users_source_that_names_no_files_is_read_for_the_digest(modules, tmp_path) -> None:
    write(modules / "sources.py", SOURCE)
    path = tmp_path / "own.npy"
    plan = plan_of("fedavg").overridden({"data": {"source": {"name": "sources:Own", "path": str(path)}}})
    found = set()
    for value in (0, 1):
        np.save(path, np.full((4, 1, 8, 8), value, np.uint8))
        found.add(data_digest(plan))
    assert len(found) == 2


def test_data_that_are_missing_are_a_sentence(tmp_path) -> None:
    with pytest.raises(UserError, match=r"mine\.npz is missing: npz was looked for"):
        data_digest(npz(tmp_path / "data", 0), tmp_path / "nowhere")


def stopped(plan: Experiment, folder: Path, at: int = 1) -> None:
    """A run that was stopped in the midst."""

    def stop(event: Event) -> None:
        if event["event"] == "round" and event["round"] == at:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        run(plan, folder, engine=Inline(), callbacks=[stop])


def lines(folder: Path, event: str) -> list[Event]:
    return [each for each in events(folder / "ledger.jsonl") if each["event"] == event]


def test_the_ledger_says_where_its_numbers_come_from(tmp_path) -> None:
    plan = plan_of("fedavg")
    run(plan, tmp_path / "run")
    start = lines(tmp_path / "run", "start")[0]
    assert {key: start[key] for key in ("digest", "code", "modules", "data")} == origin(plan)


def test_a_run_whose_code_changed_does_not_go_on_unless_that_is_said(modules, tmp_path) -> None:
    write(modules / "mine.py", METHOD.format(imports="import helper"))
    write(modules / "helper.py", "SCALE = 1.0\n")
    folder = tmp_path / "run"
    stopped(plan_of("mine:Mine"), folder, at=2)
    before = (folder / "ledger.jsonl").read_bytes()
    write(modules / "helper.py", "SCALE = 0.0\n")
    with pytest.raises(UserError, match=r"the code changed since the run in .*run was begun \(helper\): .*--changed-code"):
        resume(folder, engine=Inline())
    assert (folder / "ledger.jsonl").read_bytes() == before
    resume(folder, engine=Inline(), changed_code=True)
    (line,) = lines(folder, "resume")
    assert (line["changed_code"], line["code"]) == (True, code_digest(plan_of("mine:Mine")))
    assert "changed_data" not in line
    assert gather([folder]).notices == ["run: its code was changed when it went on after round 1."]


def test_code_that_was_said_to_have_changed_is_the_code_from_then_on(modules, tmp_path) -> None:
    write(modules / "mine.py", METHOD.format(imports=""))
    folder = tmp_path / "run"
    stopped(plan_of("mine:Mine"), folder, at=2)
    write(modules / "mine.py", METHOD.format(imports="# changed"))

    def stop(at: int, **said: bool) -> None:
        def listener(event: Event) -> None:
            if event["event"] == "round" and event["round"] == at:
                raise KeyboardInterrupt

        with pytest.raises(Interrupted):
            resume(folder, engine=Inline(), callbacks=[listener], **said)

    stop(2, changed_code=True)  # stopped before its next checkpoint: nothing of the new code is kept, nor that it was said
    with pytest.raises(UserError, match="the code changed"):
        resume(folder, engine=Inline())
    stop(3, changed_code=True)
    resume(folder, engine=Inline())
    assert [line.get("changed_code") for line in lines(folder, "resume")] == [True, None]


def test_a_run_whose_data_changed_does_not_go_on_unless_that_is_said(tmp_path) -> None:
    folder, data = tmp_path / "run", tmp_path / "data"
    plan = npz(data, 0)

    def stop(event: Event) -> None:
        if event["event"] == "round":
            raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        run(plan, folder, data=data, engine=Inline(), callbacks=[stop])
    npz(data, 1)
    with pytest.raises(UserError, match=r"the data changed since .*--changed-data"):
        resume(folder, data=data, engine=Inline())
    resume(folder, data=data, engine=Inline(), changed_data=True)
    assert lines(folder, "resume")[0]["changed_data"] is True
    assert gather([folder]).notices == ["run: its data were changed when it went on after round 0."]


def test_a_run_that_is_over_can_be_looked_at_whatever_changed(tmp_path, monkeypatch) -> None:
    plan = plan_of("fedavg")
    first = run(plan, tmp_path / "run")
    monkeypatch.setattr("coterie.running.provenance._own_code", lambda: "another")
    assert resume(tmp_path / "run").summary == first.summary
