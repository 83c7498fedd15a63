"""`coterie deploy` as people use it: a server and participants, each a process of its own on loopback, all gone afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from coterie.deployment.flower import free_port

PATIENCE = 420.0
"""Seconds for anything to happen, on a machine that has other things to do."""


class Stage:
    """Processes that end with the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.running.values():
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGTERM)  # it ends what it has started
        for process in self.running.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=30)
            self.kill_group(process)

    def kill_group(self, process: subprocess.Popen[bytes]) -> None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def coterie(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a command, in a process group of its own, with its words in a file."""
        with (self.folder / f"{name}.out").open("ab") as out:
            command = [sys.executable, "-m", "coterie", *arguments]
            process = subprocess.Popen(command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)
        self.running[name] = process
        return process

    def server(self, *more: str) -> subprocess.Popen[bytes]:
        return self.coterie("server", "deploy", "server", "experiment.toml", "--port", str(self.port), "--out", "deployment", *more)

    def client(self, name: str, *more: str, port: int | None = None, out: str | None = None) -> subprocess.Popen[bytes]:
        where = ("--server", f"127.0.0.1:{port or self.port}", "--name", name, "--home", f"home-{out or name}", "--yes")
        return self.coterie(out or name, "deploy", "client", *where, *more)

    def kill(self, name: str) -> None:
        """As a power cut would: what it has started learns of it from the kernel."""
        self.kill_group(self.running.pop(name))

    def words(self, name: str) -> str:
        path = self.folder / f"{name}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    def log(self) -> str:
        path = self.folder / "deployment" / "deployment.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def until(self, words: str, where: str = "log") -> None:
        """Wait until something is said."""
        end = time.monotonic() + PATIENCE
        while words not in (self.log() if where == "log" else self.words(where)):
            assert time.monotonic() < end, f"nobody says {words!r}:\n{self.words('server')}\n{self.log()}"
            if "server" in self.running and self.running["server"].poll() is not None:
                assert words in self.log(), f"the server has ended:\n{self.words('server')}\n{self.log()}"
            time.sleep(0.2)

    def over(self) -> int:
        """The server's exit code, when it ends."""
        return self.running["server"].wait(timeout=PATIENCE)
