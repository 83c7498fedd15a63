"""Commands as processes of their own, to be stopped and killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

TRIES = int(os.environ.get("COTERIE_TRIES", "1"))
"""How many times as much to try as in CI: `make soak` sets it."""


def start(*words: str, folder: Path | None = None) -> subprocess.Popen[str]:
    """`coterie ...` in a process group of its own."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-m", "coterie", *words], cwd=folder, start_new_session=True, **pipes)


def hears(process: subprocess.Popen[str], how: signal.Signals = signal.SIGTERM) -> bool:
    """Whether a process has begun to handle a signal, by what Linux knows of it."""
    try:
        status = Path(f"/proc/{process.pid}/status").read_text()
    except FileNotFoundError:
        return False
    caught = next((int(line.split()[1], 16) for line in status.splitlines() if line.startswith("SigCgt")), 0)
    return bool(caught >> (how - 1) & 1)


def until_it_hears(process: subprocess.Popen[str]) -> None:
    """Wait for the few milliseconds before Python runs any code of ours."""
    while not hears(process) and process.poll() is None:
        time.sleep(0.001)
