"""Long runs: what a round leaves behind does not grow with the rounds before it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.hostile.processes import TRIES

from coterie.engines import Inline
from coterie.methods import Local
from coterie.running.checkpoint import CHECKPOINT
from coterie.running.rounds import run
from coterie.testing import small_experiment

ROUNDS = 40 * TRIES


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs Linux's /proc to count open files")
def test_files_on_disk_and_open_ones_and_the_checkpoint_stay_as_many_and_as_large(tmp_path) -> None:
    folder = tmp_path / "run"
    seen: list[tuple[int, int, int]] = []

    def look(event) -> None:
        if event["event"] == "round" and event["round"] > 5:
            checkpoint = (folder / CHECKPOINT).stat().st_size
            seen.append((len(os.listdir("/proc/self/fd")), len(list(folder.rglob("*"))), checkpoint))

    plan = small_experiment(Local(), rounds=ROUNDS).overridden({"evaluation.every": 1_000_000})
    run(plan.replace(cohort=1.0), folder, engine=Inline(), callbacks=[look])
    handles, files, sizes = (set(column) for column in zip(*seen, strict=True))
    assert len(handles) == 1
    assert len(files) == 1
    assert max(sizes) - min(sizes) < 64 * 100, "a checkpoint vouches for at most 64 moments of the ledger"
