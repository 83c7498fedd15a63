"""A short turn of the kill harness; `make soak` gives it three hundred tries."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.hostile.processes import TRIES


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux's /proc to find a run's workers")
def test_runs_killed_at_random_and_killed_again_while_resuming_end_with_the_same_bits() -> None:
    methods = ["--methods", "local,fedavg kept,fml,fccl"] if TRIES == 1 else []
    command = [sys.executable, "-m", "tests.hostile.kill", "--tries", str(4 * TRIES), "--seed", "3", *methods]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1])["failures"] == 0
