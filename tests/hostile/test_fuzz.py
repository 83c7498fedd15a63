"""A short turn of the fuzzer; `make fuzz` goes on for as long as it is told to."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.hostile.processes import TRIES


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux, to know its own memory")
def test_bytes_from_outside_are_answered_or_refused_in_bounded_time_and_memory() -> None:
    command = [sys.executable, "-W", "error", "-m", "tests.hostile.fuzz", "--examples", str(60 * TRIES)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr[-3000:]
    assert min(json.loads(done.stdout)["by_target"].values()) >= 60
