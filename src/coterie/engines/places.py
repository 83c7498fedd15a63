"""Memory that a worker and its parent share: a reply is laid down where both see it, and copied nowhere on its way.

Through a socket every byte of a reply is copied twice; for small clients that are trained in stacks that takes as long as a quarter of
their training. What a worker has laid down and named it does not touch before the parent says so: an agreement between processes of one
run, which code that means harm could break (`surroundings.py`). Where a system has no such memory, or all of it is taken, replies go
through the socket.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
import sys
from contextlib import suppress
from typing import Any

import numpy as np

from coterie.framing import LARGEST, UNHELD, FrameError, Room
from coterie.wire import Buffer

__all__ = ["Places", "share", "shared"]

COUNT = 32
"""Places for one reply each."""
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | 0x0010 if hasattr(fcntl, "F_SEAL_GROW") else 0
"""Who has mapped the memory may write into it, and nobody else ever: not as into a file, nor by mapping it once more (0x0010)."""
ALIVE = 32 * 2**20
"""Bytes of replies, at most, that lie in all of them: of large ones there are few."""


def share(end: socket.socket) -> Places | None:
    """Make such memory, of which nothing is used before it is written, and send it to the other end; None where there is none to be had."""
    made, descriptors = None, list[int]()
    with suppress(OSError):  # a system that forbids it, or has too little
        if SEALS:
            descriptors.append(os.memfd_create("coterie", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
            os.ftruncate(descriptors[0], mmap.PAGESIZE + COUNT * LARGEST)
            made = Places(descriptors[0])
    socket.send_fds(end, [b" "], descriptors if made else [])
    for each in descriptors:
        os.close(each)
    return made


def shared(end: socket.socket) -> Places | None:
    """What the other end has made, the first thing that comes from it; None where tasks could write into it as into a file."""
    made, (_, descriptors, *_) = None, socket.recv_fds(end, 1, 1)
    for each in descriptors:
        with suppress(OSError):  # a system that is too old, or a process that may have no more memory
            found = Places(each)
            fcntl.fcntl(each, fcntl.F_ADD_SEALS, SEALS)
            made = found
        os.close(each)
    return made


class Places:
    """One side's view of the memory.

    >>> ours, theirs = socket.socketpair()
    >>> with ours, theirs:
    ...     parents, workers = share(ours), shared(theirs)
    >>> reply = workers.take(5)
    >>> reply[:] = b"reply"
    >>> at = workers.name(reply)
    >>> bytes(parents.find(at, 5))
    b'reply'
    """

    def __init__(self, descriptor: int) -> None:
        self._mapped = mmap.mmap(descriptor, 0)
        """First, for each place, 1 from when the worker names it to when the parent needs it no more; then the places."""
        self._places: list[Any] = [
            np.frombuffer(self._mapped, np.uint8, LARGEST, at) for at in range(mmap.PAGESIZE, len(self._mapped), LARGEST)
        ]
        self._found = set[int]()
        self._elsewhere = Room()

    def take(self, length: int) -> Buffer:
        """The worker's: room for so many bytes, in the first place that nobody needs; elsewhere, if there is none."""
        for at in range(min(len(self._places), ALIVE // length) if 0 < length <= LARGEST else 0):
            if not self._mapped[at] and self._unheld(at):
                return memoryview(self._places[at])[:length]
        return self._elsewhere.take(length)

    def name(self, body: Buffer) -> int | None:
        """The worker's: the place that a body lies in, which is the parent's from now on; None of one that lies elsewhere."""
        at = next((at for at, place in enumerate(self._places) if isinstance(body, memoryview) and body.obj is place), None)
        if at is not None:
            self._mapped[at] = 1
        return at

    def find(self, at: Any, length: Any) -> Buffer:
        """The parent's: the body of so many bytes that the worker has named."""
        known = type(at) is int and 0 <= at < len(self._places) and at not in self._found
        if not known or type(length) is not int or not 0 <= length <= LARGEST:
            raise FrameError(f"a reply that lies nowhere: {at!r:.20}, {length!r:.20}")
        self._found.add(at)
        return memoryview(self._places[at])[:length]

    def sweep(self) -> None:
        """The parent's: give back the places of all bodies that nobody holds any more."""
        for at in [at for at in self._found if self._unheld(at)]:
            self._found.remove(at)
            self._mapped[at] = 0

    def _unheld(self, at: int) -> bool:
        return sys.getrefcount(self._places[at]) == UNHELD
