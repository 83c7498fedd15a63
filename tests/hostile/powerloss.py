"""A disk that forgets what was not synced: what a power cut may leave of a run, at every moment of it.

The recorder watches a run write (its syncs, renames, removals) and notes after each what the folder looks like and what of it the
disk has been told to keep. A file system promises only this: the bytes of a file as they were when it was last synced, and the names
in a folder as they were when the folder was last synced. Everything later may or may not be there, so each moment has several
aftermaths, and a run must be able to go on from every one of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

Names = dict[str, dict[str, int]]
"""Folder -> name -> which file; folders and names relative to the run's."""

AFTERMATHS: dict[str, tuple[bool, bool, str]] = {
    "nothing but what was synced": (False, False, "lost"),
    "all names, unsynced files empty": (True, True, "lost"),
    "all names, unsynced files half there": (True, True, "half"),
    "names of the run's folder only": (True, False, "lost"),
    "names of the memories only": (False, True, "lost"),
}
"""Whether names that were not synced are there, in the run's folder and in those below it; what of bytes that were not."""


@dataclass
class Moment:
    """What there is and what is on the disk, after one thing was done."""

    what: str
    names: Names
    synced_names: Names
    content: dict[int, bytes]
    synced: dict[int, bytes]

    def aftermath(self, folder: Path, how: str) -> None:
        """Lay down what a power cut in this moment leaves."""
        top, below, unsynced = AFTERMATHS[how]
        for place in {"", *self.names, *self.synced_names}:
            current = below if place else top
            names = (self.names if current else self.synced_names).get(place)
            if names is None or (place and place not in self._folders(top)):
                continue
            (folder / place).mkdir(parents=True, exist_ok=True)
            for name, file in names.items():
                if file in self.content or file in self.synced:
                    (folder / place / name).write_bytes(self._bytes(file, unsynced))

    def _folders(self, top: bool) -> set[str]:
        """Folders below the run's that are themselves still known by name."""
        return set((self.names if top else self.synced_names).get("", {}))

    def _bytes(self, file: int, unsynced: str) -> bytes:
        kept, now = self.synced.get(file, b""), self.content.get(file, b"")
        if unsynced == "lost" or now == kept:
            return kept
        return now[: max(len(kept), len(now) // 2)] if now.startswith(kept) else kept


@dataclass
class Recorder:
    """Notes what a run does to its folder."""

    folder: Path
    moments: list[Moment] = field(default_factory=list)
    _synced_names: Names = field(default_factory=dict)
    _synced: dict[int, bytes] = field(default_factory=dict)
    _held: dict[int, int] = field(default_factory=dict)
    """Every file ever seen, held open, so that no number is used twice."""

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Note everything that is done in here."""
        with ExitStack() as patches:
            for owner, name in ((os, "fsync"), (os, "replace"), (os, "unlink"), (os, "mkdir"), (os, "ftruncate")):
                patches.enter_context(mock.patch.object(owner, name, self._noted(name, getattr(owner, name))))
            yield
        for handle in self._held.values():
            os.close(handle)

    def _noted(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            self._note(f"before {name}")
            result = real(*arguments, **more)
            if name == "fsync":
                self._sync(Path(os.readlink(f"/proc/self/fd/{arguments[0]}")))
            self._note(name)
            return result

        return call

    def _sync(self, path: Path) -> None:
        if path.is_dir():
            place = "" if path == self.folder else path.name
            self._synced_names[place] = self._names().get(place, {})
        elif path.exists():
            self._synced[path.stat().st_ino] = path.read_bytes()

    def _names(self) -> Names:
        """What lies where now, but for what is only passing through."""
        found: Names = {}
        for path in [self.folder, *self.folder.rglob("*")] if self.folder.is_dir() else []:
            relative = path.relative_to(self.folder)
            if relative.parts[:1] == ("live",):
                continue
            if path.is_dir():
                found.setdefault("" if path == self.folder else str(relative), {})
            if path != self.folder:
                place = "" if path.parent == self.folder else str(relative.parent)
                found.setdefault(place, {})[path.name] = path.stat().st_ino
        return found

    def _note(self, what: str) -> None:
        names, content = self._names(), {}
        for place, held in names.items():
            for name, file in held.items():
                path = self.folder / place / name
                if path.is_file():
                    if file not in self._held:
                        self._held[file] = os.open(path, os.O_RDONLY)
                    content[file] = path.read_bytes()
        # a file that was removed or renamed over is still there for a folder that was not synced since
        content = {**(self.moments[-1].content if self.moments else {}), **content}
        self.moments.append(Moment(what, names, dict(self._synced_names), content, dict(self._synced)))
