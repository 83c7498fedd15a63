"""A way to the server that can be cut and healed."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class Proxy:
    """Passes on what comes to a port of its own, until it is cut: then connections break and new ones are refused."""

    def __init__(self) -> None:
        self._to = 0
        self._door: socket.socket | None = None
        self._ends: list[socket.socket] = []
        self.passed = 0
        """Bytes that went through."""
        self.port = 0
        self.heal()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *error: object) -> None:
        self.cut()

    def lead_to(self, port: int) -> None:
        """From now on, to this port."""
        self._to = port

    def heal(self) -> None:
        """Listen, on the same port as before."""
        self._door = socket.create_server(("127.0.0.1", self.port))
        self.port = self._door.getsockname()[1]
        threading.Thread(target=self._attend, args=(self._door,), daemon=True).start()

    def cut(self) -> None:
        """Break everything."""
        ends, self._ends, door, self._door = self._ends, [], self._door, None
        for end in [*ends, *([door] if door else [])]:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _attend(self, door: socket.socket) -> None:
        with suppress(OSError):  # the door was closed
            while True:
                near, _ = door.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", self._to))
                except OSError:
                    near.close()
                    continue
                self._ends += [near, far]
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=self._pass, args=(one, other), daemon=True).start()

    def _pass(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(65536):
                other.sendall(data)
                self.passed += len(data)
        for end in (one, other):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
