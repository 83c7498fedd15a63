"""A participant's process: answers letters at a socket that only its owner can open, beside a SuperNode that it watches."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from coterie.deployment.flower import FlowerHome, start_supernode, stop
from coterie.deployment.participant import Participant
from coterie.framing import FrameError, letter, send

__all__ = ["listening", "serve_participant"]

LIMIT = 2**40
AGAIN = 5.0
"""Seconds before a SuperNode that has ended is started again."""


@contextmanager
def listening(participant: Participant) -> Iterator[Path]:
    """Answer letters at a socket, until this ends."""
    folder = Path(tempfile.mkdtemp(prefix="coterie-"))  # short: the path of a socket has at most about a hundred characters
    where = folder / "letters"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
        door.bind(str(where))
        os.chmod(where, 0o600)
        door.listen()
        threading.Thread(target=_attend, args=(door, participant), daemon=True).start()
        try:
            yield where
        finally:
            participant.close()
            shutil.rmtree(folder, ignore_errors=True)


def _attend(door: socket.socket, participant: Participant) -> None:
    with suppress(OSError):  # the door was closed
        while True:
            end, _ = door.accept()
            threading.Thread(target=_serve, args=(end, participant), daemon=True).start()


def _serve(end: socket.socket, participant: Participant) -> None:
    with end, suppress(OSError, EOFError, FrameError):  # who has asked is gone
        answer = participant.answer(letter(end, LIMIT))
        send(end, dict(answer.fields), answer.body)


def serve_participant(
    participant: Participant, server: str, keys: tuple[Path, Path] | None, over: Callable[[], bool] = lambda: False
) -> None:
    """Take part until told otherwise; a SuperNode that ends is started again."""
    flower, log = FlowerHome(participant.home / "flower"), participant.home / "supernode.log"
    participant.home.mkdir(parents=True, exist_ok=True)
    with listening(participant) as where:
        node = start_supernode(flower, server, keys, f'socket="{where}"', log)
        try:
            while not over():
                time.sleep(0.5)
                if node.poll() is not None:
                    participant.say(f"Flower's SuperNode has ended (see {log}): are its key registered and this machine's clock right?")
                    time.sleep(AGAIN)
                    node = start_supernode(flower, server, keys, f'socket="{where}"', log)
        finally:
            stop(node)
