"""What passes between a run and its workers, and between a participant and Flower: a header and a body, each with its length in front.

The parent believes nothing of what it reads: a frame that is too long, that is begun and not ended, or whose header is not JSON is a
`FrameError`, and whoever sent it is given up. So a task that prints into every file it finds open cannot confuse anybody.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["HEADER", "LARGEST", "UNHELD", "FrameError", "Letter", "Room", "ends", "letter", "receive", "send"]

LENGTHS = struct.Struct("<QQ")
HEADER = 64 * 2**20
"""Bytes of a header, at most: what a task logs is in it."""
PATIENCE = 30.0
"""Seconds in which a frame that has begun must have come: nothing but copying is left to do."""


IN_FLIGHT = 4 * 2**20
"""Bytes that an end may send before the other has read any: so a worker goes on with its next job while the parent is busy."""


KEPT = 4
"""Bodies that a `Room` remembers."""
LARGEST = 8 * 2**20
"""Bytes of a body, at most, that it remembers."""
UNHELD = 2
"""References to a body that only a `Room` knows: its own, and the one by which it is asked about."""


def ends() -> tuple[socket.socket, socket.socket]:
    """Two ends of a connection; the system may allow less in flight than is asked for."""
    both = socket.socketpair()
    for end in both:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, IN_FLIGHT)
    return both


@dataclass(frozen=True)
class Letter:
    """What a frame holds, where it is carried by something else than a socket: a few fields, and bytes.

    >>> Letter({"kind": "hello"}).body
    b''
    """

    fields: Mapping[str, Any]
    body: bytes = b""


class FrameError(ValueError):
    """The other end sends something that is no frame."""


def send(end: socket.socket, header: dict[str, Any] | bytes, body: bytes | bytearray | memoryview = b"") -> None:
    """Send a frame; its header may be JSON already.

    >>> ours, theirs = socket.socketpair()
    >>> with ours, theirs:
    ...     send(ours, {"ticket": 3}, b"reply")
    ...     receive(theirs, limit=100)
    ({'ticket': 3}, bytearray(b'reply'))
    """
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    end.sendall(LENGTHS.pack(len(text), len(body)) + text)
    if body:
        end.sendall(body)


class Room:
    """Where bodies are received: one that nobody holds any more is used again, because memory that is new has to be cleared first.

    >>> room = Room()
    >>> one, other = room.take(5), room.take(5)  # both are held
    >>> one is other
    False
    >>> known = id(other)
    >>> del other
    >>> id(room.take(5)) == known
    True
    """

    def __init__(self) -> None:
        self._held: deque[bytearray] = deque(maxlen=KEPT)

    def take(self, length: int) -> bytearray:
        """Of so many bytes; what they are means nothing."""
        for at in range(len(self._held)):
            if len(self._held[at]) == length and sys.getrefcount(self._held[at]) == UNHELD:
                return self._held[at]
        new = bytearray(length)
        if 0 < length <= LARGEST:
            self._held.append(new)
        return new


def receive(end: socket.socket, limit: int, room: Room | None = None) -> tuple[dict[str, Any], bytearray]:
    """Wait for a frame whose body has at most `limit` bytes; an `EOFError` where the other end has closed."""
    first = end.recv(LENGTHS.size)
    until = time.monotonic() + PATIENCE
    header, body = LENGTHS.unpack(first + _exactly(end, LENGTHS.size - len(first), until) if first else _closed())
    if header > HEADER or body > limit:
        raise FrameError(f"a frame of {header:,} and {body:,} bytes")
    try:
        fields = json.loads(_exactly(end, header, until))
    except (ValueError, RecursionError) as error:
        raise FrameError(f"a header that is none: {error}") from None
    if not isinstance(fields, dict):
        raise FrameError("a header that is no table")
    return fields, _exactly(end, body, until, room.take(body) if room else None)


def _exactly(end: socket.socket, length: int, until: float, data: bytearray | None = None) -> bytearray:
    """So many bytes, in good time."""
    data = bytearray(length) if data is None else data
    rest = memoryview(data)
    while rest:
        end.settimeout(max(until - time.monotonic(), 0.001))
        try:
            came = end.recv_into(rest)
        except TimeoutError:
            raise FrameError("a frame that does not end") from None
        finally:
            end.settimeout(None)
        rest = rest[came or _closed() :]
    return data


def _closed() -> Any:
    raise EOFError("the other end has closed")


def letter(end: socket.socket, limit: int) -> Letter:
    """Wait for a frame, as a letter."""
    fields, body = receive(end, limit)
    return Letter(fields, bytes(body))
