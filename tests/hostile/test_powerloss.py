"""A power cut at any moment: no state of the disk from which a resume loses more than the round in progress."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from tests.forms import rest_is_long
from tests.hostile.powerloss import AFTERMATHS, Recorder
from tests.hostile.processes import TRIES, start

from coterie.engines import Inline
from coterie.ledger import LEDGER, events
from coterie.methods import FedAvg, Local
from coterie.running.checkpoint import CHECKPOINT, latest
from coterie.running.rounds import resume, run
from coterie.testing import small_experiment

STATES = 20 if TRIES == 1 else 60 * TRIES
"""Aftermaths that are resumed from, drawn from all there are; `make soak` tries every one."""


@pytest.fixture(scope="module", params=[Local(), FedAvg()], ids=["with memories", "without"])
def watched(request, tmp_path_factory):
    """A run whose every write was watched, its moments, and its digest."""
    folder = tmp_path_factory.mktemp("watched") / "run"
    recorder = Recorder(folder)
    plan = small_experiment(request.param, rounds=4)
    with recorder.watching():
        digest = run(plan, folder, engine=Inline()).summary["digest"]
    return plan, recorder.moments, digest


def test_a_disk_that_forgets_what_was_not_synced_loses_no_run(watched, tmp_path) -> None:
    _, moments, digest = watched
    states = [(number, how) for number in range(len(moments)) for how in AFTERMATHS]
    random.Random(0).shuffle(states)
    tried = 0
    for number, how in states[:STATES]:
        folder = tmp_path / "run"
        moments[number].aftermath(folder, how)
        if not (folder / LEDGER).exists() or next(events(folder / LEDGER), None) is None:
            assert not (folder / CHECKPOINT).exists(), f"{number}, {how}: a checkpoint without a ledger"
        else:
            assert resume(folder, engine=Inline()).summary["digest"] == digest, f"moment {number} ({moments[number].what}), {how}"
            tried += 1
        shutil.rmtree(folder, ignore_errors=True)
    assert tried > min(STATES, len(states)) // 3


def test_no_more_than_the_round_in_progress_is_lost(watched, tmp_path) -> None:
    """Once a checkpoint's sync has come back, every later state of the disk has it or a newer one."""
    _, moments, _ = watched
    for how in AFTERMATHS:
        reached = -1
        for number, moment in enumerate(moments):
            if moment.what != "fsync" or CHECKPOINT not in moment.synced_names.get("", {}):
                continue
            folder = tmp_path / "run"
            moment.aftermath(folder, how)
            record = latest(folder).record
            assert record is not None, f"moment {number}, {how}"
            assert int(record.number("round")) >= reached, f"moment {number}, {how}"
            reached = int(record.number("round"))
            shutil.rmtree(folder)
        assert reached == 4


def test_without_syncs_the_same_disk_loses_the_run(tmp_path) -> None:
    """What the setting is for, and that this test can see the difference."""
    recorder = Recorder(tmp_path / "run")
    with recorder.watching():
        run(small_experiment(Local(), rounds=2).overridden({"engine.durable": False}), tmp_path / "run", engine=Inline())
    recorder.moments[-1].aftermath(tmp_path / "after", "all names, unsynced files empty")
    with pytest.raises(Exception, match="is damaged"):
        resume(tmp_path / "after", engine=Inline())


def mounted(image: Path, place: Path, options: str) -> None:
    place.mkdir(exist_ok=True)
    done = subprocess.run(["mount", "-o", f"loop,{options}", str(image), str(place)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no loop devices, or not root: {done.stderr.strip()}")


@pytest.mark.parametrize(("method", "options"), rest_is_long([("local", "rw"), ("fedavg", "noauto_da_alloc")], short=[("local", "rw")]))
def test_an_ext4_image_copied_at_random_moments_loses_no_run(tmp_path, method, options) -> None:
    """The kernel's own word on what is on the disk: its image is copied while the run goes on, mounted, and the run resumed."""
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("no mkfs.ext4")
    image, place = tmp_path / "disk.img", tmp_path / "disk"
    with image.open("wb") as file:
        file.truncate(64 * 2**20)
    subprocess.run(["mkfs.ext4", "-q", "-E", "lazy_itable_init=0", str(image)], check=True)
    mounted(image, place, options)
    words = ["--set", f"method={method}", "--set", "rounds=30", "--set", "evaluation.protocols=[]", "--set", "evaluation.every=30"]
    words += ["--set", "engine.name=inline", "--set", "data.train=200", "--quiet"]
    process = start("run", "digits-two-class", *words, "--out", str(place / "run"))
    try:
        copies = copied(process, image, place / "run" / CHECKPOINT, 2 if TRIES == 1 else 3 * TRIES)
        assert process.wait(timeout=600) == 0
        digest = json.loads((place / "run" / "summary.json").read_text())["digest"]
    finally:
        process.kill()
        process.communicate()
        subprocess.run(["umount", "--lazy", str(place)], check=True)
    assert copies, "the run was over before it was begun"
    for copy in copies:
        mounted(copy, place, "rw")
        try:
            again = start("run", "--resume", str(place / "run"), "--quiet")
            _, said = again.communicate(timeout=600)
            assert again.returncode == 0, f"{copy.name}: {said}"
            assert json.loads((place / "run" / "summary.json").read_text())["digest"] == digest
        finally:
            subprocess.run(["umount", "--lazy", str(place)], check=True)


def copied(process: subprocess.Popen[str], image: Path, checkpoint: Path, number: int) -> list[Path]:
    """The disk's image at random moments after the first checkpoint; the run holds still while it is copied."""
    rng, copies = random.Random(0), []
    while not checkpoint.exists() and process.poll() is None:
        time.sleep(0.01)
    while len(copies) < number and process.poll() is None:
        time.sleep(rng.uniform(0.05, 1.0))
        os.kill(process.pid, signal.SIGSTOP)
        copies.append(image.with_name(f"copy-{len(copies)}.img"))
        shutil.copyfile(image, copies[-1])
        os.kill(process.pid, signal.SIGCONT)
    return copies
