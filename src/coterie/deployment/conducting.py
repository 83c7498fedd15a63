"""The server's process: a SuperLink that it starts, the app on it, and what both say."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from coterie.deployment.flower import FlowerHome, free_port, register, start_server, started, submit, write_app
from coterie.deployment.keys import Keys
from coterie.deployment.server_app import ABOUT, LOG, PID, STANDINGS, STATUS, Deployment, held, is_held
from coterie.errors import RunError

__all__ = ["serve"]

POLL = 0.3
TRIES = 3
"""How often the app may end by itself before that is the end."""
BEGIN = 120.0
"""Seconds in which the app must have begun."""


def serve(
    deployment: Deployment,
    host: str,
    port: int,
    keys: Path | None,
    say: Callable[[str], None],
    look: Callable[[], None] = lambda: None,
    *,
    changed_code: bool = False,
) -> str:
    """Run a deployment to its end; where its results are. `look` is called again and again, to show how it stands."""
    folder = deployment.folder
    port = port or free_port(host)
    flower, found = FlowerHome(folder / "flower"), None if keys is None else Keys(keys.absolute())
    with held(folder):
        with held(folder / ABOUT):  # the app of a server that was killed may have last words, which are not about this one
            for old in (STATUS, STANDINGS):
                (folder / old).unlink(missing_ok=True)
        with started(start_server(flower, host, port, found, deployment.names, folder / "superlink.log")) as superlink:
            nodes = register(flower, found, deployment.names)
            write_app(flower.home / "app", folder, deployment.text(), nodes, changed_code)
            say(f"listening on {host}:{port} for {', '.join(deployment.names)}")
            return _conducted(folder, flower, superlink, say, look)


def _conducted(
    folder: Path, flower: FlowerHome, superlink: subprocess.Popen[bytes], say: Callable[[str], None], look: Callable[[], None]
) -> str:
    """Have the app run, and watch it."""
    seen = (folder / LOG).stat().st_size if (folder / LOG).exists() else 0
    for _ in range(TRIES):
        (folder / PID).unlink(missing_ok=True)
        submit(flower)
        if (words := _watched(folder, superlink, _Lines(folder / LOG, seen, say), look)) is not None:
            return words
        say("the server's app has ended by itself; once more from the last checkpoint")
        seen = (folder / LOG).stat().st_size if (folder / LOG).exists() else 0
    raise RunError(f"the server's app ends by itself again and again; see {folder / 'superlink.log'}")


def _watched(folder: Path, superlink: subprocess.Popen[bytes], lines: _Lines, look: Callable[[], None]) -> str | None:
    """Wait for the end: where the results are, or None where the app has ended without a word."""
    began = time.monotonic()
    while True:
        time.sleep(POLL)
        lines.show()
        look()
        if (folder / STATUS).exists():
            lines.show()
            look()
            status = json.loads((folder / STATUS).read_text(encoding="utf-8"))
            if status["state"] == "failed":
                raise RunError(status["words"])
            return str(status["words"])
        if superlink.poll() is not None:
            raise RunError(f"Flower's SuperLink has ended (exit code {superlink.returncode}); see {folder / 'superlink.log'}")
        if not _alive(folder, time.monotonic() - began) and not (folder / STATUS).exists():
            return None


def _alive(folder: Path, waited: float) -> bool:
    """Whether the app is there, or may still come; Flower lets one that has died stand as a process, so it is known by what it holds."""
    return is_held(folder / ABOUT) if (folder / PID).exists() else waited < BEGIN


class _Lines:
    """What is new in a log."""

    def __init__(self, path: Path, seen: int, say: Callable[[str], None]) -> None:
        self._path, self._seen, self._say = path, seen, say

    def show(self) -> None:
        """Say it."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._seen)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._seen += len(whole)
        for line in whole.decode(errors="replace").splitlines():
            self._say(line)
