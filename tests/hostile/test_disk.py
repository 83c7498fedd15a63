"""Full disks, folders that cannot be written or are gone, files cut short, clocks that go back: a sentence, and the run goes on later."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console
from tests.forms import rest_is_long
from tests.hostile.processes import start

from coterie.cli.watch import watch
from coterie.engines import Inline
from coterie.methods import FedAvg, Local
from coterie.running.rounds import resume, run
from coterie.testing import small_experiment

WORDS = ("--set", "method=local", "--set", "rounds=8", "--set", "evaluation.protocols=[]", "--set", "training.epochs=1", "--quiet")
ROOM = 64 * 2**20
LEFT = [("inline", 1_000_000), ("processes", 2_500_000), ("inline", 2_500_000)]
"""Engines, and bytes that the disk has left: it is full in the first round, or later."""


@pytest.fixture
def disk(tmp_path) -> Iterator[Path]:
    """A small disk of its own, in memory."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={ROOM}", "none", str(place)], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("only root can mount a small disk to fill")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def called(*words: str) -> tuple[int, str]:
    process = start(*words)
    _, said = process.communicate(timeout=300)
    return process.returncode, said


@pytest.fixture(scope="module")
def calm(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("calm") / "run"
    code, said = called("run", "digits-two-class", *WORDS, "--out", str(folder), "--set", "engine.name=inline")
    assert code == 0, said
    return json.loads((folder / "summary.json").read_text())["digest"]


@pytest.mark.parametrize(("engine", "left"), rest_is_long(LEFT, short=LEFT[:1]))
def test_a_full_disk_is_a_sentence_and_the_run_goes_on_when_there_is_room(disk, calm, engine, left) -> None:
    ballast = disk / "ballast"
    ballast.write_bytes(bytes(ROOM - left))
    code, said = called("run", "digits-two-class", *WORDS, "--out", str(disk / "run"), "--set", f"engine.name={engine}")
    assert code == 1, "the disk was meant to be too small"
    assert "No space left on device" in said
    assert said.splitlines()[-1].startswith("error: ")
    again, said = called("run", "--resume", str(disk / "run"), "--quiet")
    assert again == 1, "it is still full"
    assert said.splitlines()[-1].startswith("error: ")
    assert not list(disk.rglob("*.part"))
    ballast.unlink()
    code, said = called("run", "--resume", str(disk / "run"), "--quiet")
    assert code == 0, said
    assert json.loads((disk / "run" / "summary.json").read_text())["digest"] == calm


def test_a_disk_that_cannot_be_written_is_a_sentence(disk) -> None:
    run(small_experiment(FedAvg(), rounds=1), disk / "run", engine=Inline())
    (disk / "run" / "summary.json").unlink()
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    for words in (("run", "digits-two-class", "--out", str(disk / "new"), "--quiet"), ("run", "--resume", str(disk / "run"), "--quiet")):
        code, said = called(*words)
        assert code == 1
        assert "Read-only file system" in said
        assert len(said.splitlines()) == 1
    assert sorted(path.name for path in disk.iterdir()) == ["run"]


@pytest.mark.parametrize("out", rest_is_long(["/dev/full", "/proc/x", "x" * 300, "taken"], short=["/dev/full", "taken"]))
def test_a_folder_that_cannot_be_is_a_sentence(tmp_path, out) -> None:
    (tmp_path / "taken").write_text("a file")
    process = start("run", "digits-two-class", "--set", "engine.name=inline", "--out", out, "--quiet", folder=tmp_path)
    _, said = process.communicate(timeout=120)
    assert process.returncode in (1, 2)
    assert "Traceback" not in said
    assert out in said.replace("\n", "")


def test_a_folder_that_is_removed_in_mid_run_is_a_sentence(tmp_path) -> None:
    folder = tmp_path / "run"
    process = start("run", "digits-two-class", "--set", "rounds=500", "--set", "engine.name=inline", "--out", str(folder))
    assert process.stdout is not None
    for line in process.stdout:
        if "round 2/" in line:
            break
    while folder.exists():  # a run that writes while it goes makes this take more than one try
        shutil.rmtree(folder, ignore_errors=True)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "No such file or directory" in said
    assert "Traceback" not in said
    assert not folder.exists()


@pytest.mark.parametrize("name", ["ledger.jsonl", "checkpoint.safetensors"])
def test_a_file_cut_short_is_a_sentence_or_is_got_over(tmp_path, name) -> None:
    done = run(small_experiment(Local(), rounds=3), tmp_path / "run", engine=Inline())
    path = tmp_path / "run" / name
    path.write_bytes(path.read_bytes()[:-1000])
    before = (tmp_path / "run" / "summary.json").read_bytes()
    code, said = called("run", "--resume", str(tmp_path / "run"), "--quiet")
    if name == "ledger.jsonl":
        assert code == 1
        assert str(path) in said
        assert (tmp_path / "run" / "summary.json").read_bytes() == before
    else:
        assert code == 0
        assert json.loads((tmp_path / "run" / "summary.json").read_text())["digest"] == done.summary["digest"]


def test_a_clock_that_goes_back_changes_nothing(tmp_path, monkeypatch) -> None:
    plan = small_experiment(Local(), rounds=3)
    calm = run(plan, tmp_path / "calm", engine=Inline())
    back = itertools.count(2_000_000_000, -1000)
    monkeypatch.setattr(time, "time", lambda: float(next(back)))

    def stop(event) -> None:
        if event["event"] == "round" and event["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(Exception, match="stopped"):
        run(plan, tmp_path / "run", engine=Inline(), callbacks=[stop])
    for path in (tmp_path / "run").rglob("*"):
        os.utime(path, (3_000_000_000, 3_000_000_000))
    assert resume(tmp_path / "run", engine=Inline()).summary["digest"] == calm.summary["digest"]
    os.utime(tmp_path / "run" / "ledger.jsonl", (3_000_000_000, 3_000_000_000))
    assert watch(tmp_path / "run", Console(quiet=True), once=True).state == "finished"
