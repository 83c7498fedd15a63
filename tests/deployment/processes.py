"""`coterie deploy` as people use it: a server and participants, each a process of its own on loopback, all gone afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from coterie.deployment.flower import free_port

PATIENCE = 420.0
"""Seconds for anything to happen, on a machine that has other things to do."""

INTRUDERS = {
    "unknown-key": "Failed to activate SuperNode",
    "wrong-authority": "CERTIFICATE_VERIFY_FAILED",
    "no-tls": "Connection attempt failed",
}
"""Who must stay out, and what Flower says to it."""


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

    def coterie(self, name: str, *arguments: str, before: Sequence[str] = (), **variables: str) -> subprocess.Popen[bytes]:
        """Start a command (behind another, with variables) in a process group of its own, with its words in a file."""
        with (self.folder / f"{name}.out").open("ab") as out:
            process = subprocess.Popen(
                [*before, sys.executable, "-m", "coterie", *arguments],
                cwd=self.folder,
                env=os.environ | variables,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        self.running[name] = process
        return process

    def server(self, *more: str) -> subprocess.Popen[bytes]:
        return self.coterie("server", "deploy", "server", "experiment.toml", "--port", str(self.port), "--out", "deployment", *more)

    def client(
        self, name: str, *more: str, port: int | None = None, out: str | None = None, before: Sequence[str] = (), **variables: str
    ) -> subprocess.Popen[bytes]:
        where = ("--server", f"127.0.0.1:{port or self.port}", "--name", name, "--home", f"home-{out or name}", "--yes")
        return self.coterie(out or name, "deploy", "client", *where, *more, before=before, **variables)

    def intrude(self) -> None:
        """Clients that should stay out, with a stranger's key in `keys` and another authority in `other`."""
        self.client("stranger", out="unknown-key")
        self.client("north", "--keys", "other", out="wrong-authority")
        self.client("north", "--insecure", out="no-tls")

    def keeps_out(self) -> None:
        """Wait until each intruder was told why it is not let in; then it goes."""
        for intruder, words in INTRUDERS.items():
            said = self.folder / f"home-{intruder}" / "supernode.log"
            self.until(words, said)
            assert not (self.folder / f"home-{intruder}" / "sent.jsonl").exists()
            self.kill(intruder)

    def kill(self, name: str) -> None:
        """The command alone: what it has started learns of it from the kernel."""
        self.kill_group(self.running.pop(name))

    def cut_power(self, name: str) -> None:
        """All of it at once: nobody has time for a last word."""
        process = self.running.pop(name)
        self.signal(process, signal.SIGKILL)
        process.wait()

    def signal(self, process: subprocess.Popen[bytes], number: signal.Signals) -> None:
        """To a process and all that it has started."""
        for pid in (process.pid, *_below(process.pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def words(self, name: str) -> str:
        return _text(self.folder / f"{name}.out")

    def log(self) -> str:
        return _text(self.folder / "deployment" / "deployment.log")

    def until(self, words: str, where: Path | None = None) -> None:
        """Wait until something is said, in the deployment's log or another file; a server that has ended says nothing more."""

        def said() -> bool:
            ended = "server" in self.running and self.running["server"].poll() is not None
            heard = words in _text(where or self.folder / "deployment" / "deployment.log")
            assert heard or not ended, f"the server has ended:\n{self.words('server')}\n{self.log()}"
            return heard

        wait_for(said, lambda: f"nobody says {words!r}:\n{self.words('server')}\n{self.log()}")

    def until_busy(self, name: str) -> None:
        """Wait until a participant is in the middle of a task."""
        home = self.folder / f"home-{name}"
        wait_for(lambda: any(home.glob("*/live/message-*")), lambda: f"{name} has nothing to do:\n{self.words(name)}\n{self.log()}")

    def over(self) -> int:
        """The server's exit code, when it ends."""
        return self.running["server"].wait(timeout=PATIENCE)


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def wait_for(condition: Callable[[], bool], trouble: Callable[[], str]) -> None:
    """Until something is so; if it never is, say what the trouble is."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, trouble()
        time.sleep(0.05)


def _below(process: int) -> list[int]:
    """Processes that a process has started, and those that they have, by what Linux knows of them."""
    parents = dict[int, int]()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    found = [process]
    for each in found:
        found += [child for child, parent in parents.items() if parent == each]
    return found[1:]
