"""What a run can go on from: its last two checkpoints, the memories they name, and a ledger that is what it was.

A checkpoint goes on disk after all that it speaks of: the ledger, then every new memory, then the checkpoint itself. Only then is
removed what neither it nor the one before it needs. So at every moment, whatever is cut short (by a kill, a full disk, a power
cut), there is a checkpoint whose ledger and memories are whole. All have checksums: a flipped bit is found, never computed with.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from coterie import durable
from coterie.engines.worker import RECEIPT, memory_file, read_memory
from coterie.errors import RunError
from coterie.ledger import LEDGER, Mark, check
from coterie.record import Record, RecordError, read, write
from coterie.running.federation import Coordinator

__all__ = ["CHECKPOINT", "PREVIOUS", "Checkpoints", "Latest", "digest", "latest"]

CHECKPOINT = "checkpoint.safetensors"


PREVIOUS = "checkpoint.previous.safetensors"


MARKS = 64
"""Moments of the ledger that a checkpoint vouches for, at most: the more, the closer a damaged line is found."""
AT_ONCE = 16
"""Memories that are synced side by side: file systems put many on disk in the time of one."""


@dataclass(frozen=True)
class Latest:
    """The newest checkpoint of a run that is whole."""

    record: Record | None = None
    """None where the run has got to none."""
    damage: str | None = None
    """What is wrong with a newer one, if anything."""
    spare: Mapping[int, str] = field(default_factory=dict)
    """Memories that only the checkpoint before it needs."""

    @property
    def round(self) -> int:
        """The last round that it holds."""
        return 0 if self.record is None else int(self.record.number("round"))

    @property
    def over(self) -> bool:
        """Whether the run has nothing left to do."""
        return self.record is not None and bool(self.record["done"])

    @property
    def marks(self) -> list[Mark]:
        """What the ledger was then, and at some moments before."""
        return [] if self.record is None else [Mark(*mark) for mark in json.loads(str(self.record["ledger"]))]

    @property
    def length(self) -> int | None:
        """How much of the ledger it vouches for."""
        return self.marks[-1].bytes if self.record else None

    @property
    def memories(self) -> dict[int, str]:
        """Client -> the version of what it keeps."""
        return {} if self.record is None else _versions(self.record)


def latest(folder: Path) -> Latest:
    """The checkpoint to go on from: the newest, or the one before where the newest or a memory of its round is damaged.

    Where there is nothing to go on from, or the ledger is not what it was, that is a `RunError` that names file and line.
    """
    newest, damage = _try(folder / CHECKPOINT)
    older, older_damage = _try(folder / PREVIOUS)
    named, named_before = (_versions(each) if each else {} for each in (newest, older))
    damage = damage or _damaged_memory(folder, named.items() - named_before.items())
    older_damage = older_damage or _damaged_memory(folder, named_before.items() - named.items())
    if newest and not damage:
        found = Latest(newest, None, dict(named_before.items() - named.items()) if older else {})
    elif older and not older_damage:
        found = Latest(older, damage)
    elif damage or older_damage:
        reasons = "; ".join(filter(None, (damage, older_damage)))
        raise RunError(f"{reasons}: there is no checkpoint to go on from. Without any (remove them), --resume begins again")
    else:
        found = Latest()
    check(folder / LEDGER, found.marks)
    return found


@dataclass(eq=False)
class Checkpoints:
    """Keeps the last two checkpoints of a run, and what they need."""

    folder: Path
    sync: bool = True
    """Whether to wait for the disk."""
    _marks: list[Mark] = field(default_factory=list)
    _named: dict[int, str] = field(default_factory=dict)
    """The memories of the last checkpoint."""
    _retired: list[Path] = field(default_factory=list)
    """Memories that go with the next checkpoint: only the one before the last needs them."""
    _begun: bool = False

    def save(self, fed: Coordinator, state: Record, round: int, *, done: bool, reached: bool = False) -> None:
        """Put the ledger, the memories and then the checkpoint on disk; only then remove memories that no checkpoint needs."""
        if done:
            fed.ledger.write("end", round=round, reached=reached)
        self._marks.append(fed.ledger.commit(sync=self.sync))
        if len(self._marks) > MARKS:
            self._marks = [*self._marks[:-1:2], self._marks[-1]]
        if self.sync:
            self._settle(fed.memories)
        facts = Record(round=round, ledger=json.dumps(self._marks), done=done, reached=reached)
        record = Record(state=state, memories=_table(fed.memories)) | facts
        write(record, self.folder / CHECKPOINT, "a checkpoint", sync=self.sync, keep=self.folder / PREVIOUS)
        replaced = [(client, version) for client, version in self._named.items() if fed.memories.get(client) != version]
        spare = {memory_file(self.folder, *each) for each in replaced}
        _remove([*self._retired, *fed.passing(), *(path for path in fed.replaced() if path not in spare)])
        self._named, self._retired = dict(fed.memories), list(spare)

    def adopt(self, found: Latest) -> None:
        """Go on from what was found, if anything: it becomes the newest, and what neither it nor the one before needs is removed."""
        if found.record and (found.damage or not (self.folder / CHECKPOINT).exists()):
            os.replace(self.folder / PREVIOUS, self.folder / CHECKPOINT)
        self._marks, self._named = found.marks, found.memories
        self._retired = [memory_file(self.folder, *spare) for spare in found.spare.items()]
        kept = {memory_file(self.folder, *each) for each in self._named.items()} | set(self._retired)
        _remove(path for path in (self.folder / "memory").glob("*") if path not in kept)
        _remove(durable.litter(self.folder))

    def _settle(self, memories: Mapping[int, str]) -> None:
        """Wait until the memories that are new since the last checkpoint are on disk, and the names of all."""
        new = [memory_file(self.folder, client, version) for client, version in memories.items() if self._named.get(client) != version]
        with ThreadPoolExecutor(AT_ONCE) as threads:
            list(threads.map(durable.sync_file, new))
        if new:
            durable.sync_folder(new[0].parent)
        if not self._begun or (new and not self._named):
            durable.sync_folder(self.folder)
        self._begun = True


def digest(folder: Path, state: Record, memories: Mapping[int, str]) -> str:
    """SHA-256 of the state of the server and of every client."""
    sha = hashlib.sha256(state.digest().encode())
    for client, version in sorted(memories.items()):
        memory = read_memory(folder, client, version)
        sha.update(f"{client}:{memory.get(RECEIPT) or memory.digest()}".encode())
    return sha.hexdigest()


def _try(path: Path) -> tuple[Record | None, str | None]:
    """A checkpoint, or what is wrong with it; neither where there is none."""
    try:
        return read(path, "a checkpoint"), None
    except FileNotFoundError:
        return None, None
    except RecordError as error:
        return None, str(error)


def _damaged_memory(folder: Path, memories: Iterable[tuple[int, str]]) -> str | None:
    """What is wrong with the first of these memories that is not whole."""
    for client, version in sorted(memories):
        try:
            read_memory(folder, client, version)
        except RecordError as error:
            return str(error)
    return None


def _table(memories: Mapping[int, str]) -> Record:
    """Versions by client, as columns: a checkpoint of many clients is written in no time."""
    names = {name: number for number, name in enumerate(dict.fromkeys(memories.values()))}
    clients = np.fromiter(memories, np.int64, len(memories))
    which = np.fromiter(map(names.__getitem__, memories.values()), np.int32, len(memories))
    return Record(clients=torch.from_numpy(clients), which=torch.from_numpy(which), versions=" ".join(names))


def _versions(checkpoint: Record) -> dict[int, str]:
    table = checkpoint.group("memories")
    names, columns = str(table["versions"]).split(), table.tensors
    return {client: names[which] for client, which in zip(columns["clients"].tolist(), columns["which"].tolist(), strict=True)}


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
