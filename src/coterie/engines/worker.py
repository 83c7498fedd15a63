"""How a job is performed where the client is, and what clients keep, as files."""

from __future__ import annotations

import dataclasses
import errno
import mmap
import os
import sys
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from coterie.awaited import Awaited, PutAside
from coterie.engines.engine import EVALUATE, Job, Outcome, TaskError
from coterie.engines.places import Places
from coterie.engines.stacks import Held, Stacks, Trainer
from coterie.engines.surroundings import CleanCache, Surroundings, seed_generators
from coterie.errors import RunError
from coterie.framing import Room
from coterie.method import Method, find_task
from coterie.population import Population
from coterie.record import EMPTY, NO_LIMITS, Record, RecordError, decode, encode, read, write
from coterie.seeds import seed_of
from coterie.site import SERVER, Site, Work
from coterie.training.stacking import Request, Stack
from coterie.wire import Buffer

__all__ = ["RECEIPT", "Memories", "Performer", "memory_file", "read_memory"]

RECEIPT = "kept by the participant"
"""What stands in a memory's file where the memory is on a participant's own disk: its digest, under this name."""
DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO}
"""Errors that are the disk's and not a client's."""


class DiskError(RunError):
    """What a client keeps cannot be written, through no fault of its own."""


class Escaped(Exception):
    """A client's code has raised what is not an Exception; that is its cause."""


@contextmanager
def client_code() -> Iterator[None]:
    """Whatever is raised in here is an Exception, SystemExit and KeyboardInterrupt too: a client does not end a run."""
    try:
        yield
    except (Exception, PutAside):
        raise
    except BaseException as error:
        raise Escaped from error


def memory_file(folder: Path, client: int, version: str) -> Path:
    """Where one version of what a client keeps lies in a run's folder."""
    return folder / "memory" / f"{client}.{version}.safetensors"


def read_memory(folder: Path, client: int, version: str) -> Record:
    """One version of what a client keeps; a file that is damaged, missing or another's is a `RecordError`."""
    path = memory_file(folder, client, version)
    try:
        return read(path, _about(client, version))
    except FileNotFoundError:
        raise RecordError(f"{path} is missing") from None


def _about(client: int, version: str) -> str:
    return f"what client {client} keeps, version {version}"


class Memories:
    """What clients keep, as files, with the recently used ones in RAM up to a budget."""

    def __init__(self, folder: Path, budget: int) -> None:
        self._folder = folder
        self._budget = budget
        self._held: OrderedDict[int, tuple[str, Record]] = OrderedDict()
        self._bytes = 0

    def get(self, client: int, version: str | None) -> Record:
        """What a client kept; beyond the budget it is mapped from its file."""
        if version is None:
            return EMPTY
        held = self._held.get(client)
        memory = held[1] if held and held[0] == version else read_memory(self._folder, client, version)
        self._hold(client, version, memory)
        return memory

    def put(self, client: int, version: str, memory: Record) -> str | None:
        """Keep a memory; nothing is written where there is nothing to keep. The checkpoint that names it has it synced."""
        if not memory:
            return None
        path = memory_file(self._folder, client, version)
        try:
            path.parent.mkdir(exist_ok=True)
            write(memory, path, _about(client, version), sync=False)
        except OSError as error:
            raise DiskError(str(error)) if error.errno in DISK else error from None
        self._hold(client, version, memory)
        return version

    def let_go(self, client: int) -> None:
        """Trust only the file from now on: a task that failed may have changed the memory it was given."""
        if held := self._held.pop(client, None):
            self._bytes -= held[1].payload_bytes

    def _hold(self, client: int, version: str, memory: Record) -> None:
        before = self._held.pop(client, None)
        self._bytes += memory.payload_bytes - (before[1].payload_bytes if before else 0)
        self._held[client] = (version, memory)
        while self._bytes > self._budget and self._held:
            _, (_, oldest) = self._held.popitem(last=False)
            self._bytes -= oldest.payload_bytes


FORGETS = sys.platform == "linux"
"""Whether a private mapping can be told to forget what was written into it."""


class Messages:
    """The message that clients here were last sent: it is mapped once, however many are sent the same.

    Every task gets it whole: what one has written into it is thrown away before the next, and one that a task has edited as a tensor is not
    used again.
    """

    def __init__(self) -> None:
        self._path, self._record = "", EMPTY
        self._mapped: mmap.mmap | None = None

    def get(self, path: str) -> Record:
        """The message in a file."""
        same = FORGETS and path == self._path and not any(each._version for each in self._record.tensors.values())
        if same and self._mapped is not None:
            self._mapped.madvise(mmap.MADV_DONTNEED)
        else:
            with Path(path).open("rb") as file:
                self._mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            self._path, self._record = path, decode(memoryview(self._mapped), NO_LIMITS, copy="none")
        return self._record


class Performer:
    """Performs jobs where the client is: in this process, whichever that is."""

    def __init__(
        self, method: Method, population: Population, memories: Memories, before: Surroundings | None = None, room: Places | None = None
    ) -> None:
        self._method = method
        self._before = before
        """What this process is put back to after every job, where it does nothing else; else it is looked at before each."""
        self._room = room or Room()
        """Where replies are laid down."""
        self._population = population
        self._memories = memories
        self._messages = Messages()
        self._stacks = Stacks(self._attempt, self._encode)
        self._cache = CleanCache(population.device)
        self._process = os.getpid()
        self.spoilt = False
        """Whether a task has left something behind that cannot be put back: no other should be performed here."""

    def perform(self, job: Job) -> Outcome:
        """Do it; whatever the client's code raises becomes an outcome that names client, task and round, and nothing of it stays."""
        if job.stack:
            return self._stacks.outcome(job)
        outcome = self._attempt(job)
        assert isinstance(outcome, Outcome)
        return outcome

    def close(self) -> None:
        """Let go of the file that the last message is mapped from."""
        self._messages = Messages()

    def _encode(self, reply: Record) -> Buffer:
        return encode(reply, self._room.take)

    def _attempt(self, job: Job, trainer: Trainer | None = None) -> Outcome | Held:
        """Perform a job to its end, or, in a stack, to a training that is to be done together with others."""
        began, before = time.perf_counter(), self._before or Surroundings()
        seed_generators(seed_of(self._population.plan.seed, job.round, job.client, job.task))
        sys.stdout = sys.stderr  # what a task prints is for people; stdout may be a program's
        try:
            outcome = self._outcome(job, trainer)
            if isinstance(outcome, Held):
                return outcome
        except PutAside as aside:
            if trainer is not None and trainer.awaits is not None and aside.request is trainer.awaits:
                return Held(trainer.awaits)
            outcome = self._failed(job, RuntimeError("it looks at weights that another task trains: a task keeps nothing but its memory"))
        except Exception as error:
            outcome = self._failed(job, error)
        finally:
            if os.getpid() != self._process:  # the task has forked: one of the two answers
                os._exit(0)
            self.spoilt |= not before.restore()
            self._cache.sweep()
        return dataclasses.replace(outcome, seconds=time.perf_counter() - began)

    def _failed(self, job: Job, error: Exception) -> Outcome:
        cause = error.__cause__ if isinstance(error, Escaped) and error.__cause__ else error
        self._memories.let_go(job.client)
        return Outcome(job.client, error=TaskError.at(job, cause), fatal=isinstance(cause, DiskError))

    def _outcome(self, job: Job, trainer: Trainer | None) -> Outcome | Held:
        site = self._population.site(job.client, job.round, self._cache, job.visit, SERVER if job.task == EVALUATE else None)
        if trainer is not None:
            site.trainer = trainer
        message = self._messages.get(job.message)
        if job.task == EVALUATE:
            with client_code():
                for model, params in self._method.models(message, site).items():
                    site.evaluate(model, params)
            return Outcome(job.client, self._encode(EMPTY), job.memory, site.observations, site.logs, site.work)
        memory = self._memories.get(job.client, job.memory)
        with client_code():
            reply, after = self.call(job.task, site, memory, message)
        if trainer is not None:
            trainer.reply = reply
        if trainer is None or trainer.awaits is None:
            return self._end(job, site, reply, None if after is memory else after)
        if not _awaits(trainer.awaits, reply) or not (after is memory or _awaits(trainer.awaits, after)):
            return Held(trainer.awaits)  # the rest may lie in the message, which is another's by then
        return Held(trainer.awaits, partial(self._finish, job, site, trainer.awaits.purpose, reply, None if after is memory else after))

    def _finish(
        self, job: Job, site: Site, purpose: str, reply: Record, after: Record | None, stack: Stack, at: int, data: Buffer | None
    ) -> Outcome:
        """What comes of a task that has ended, now that its training is done."""
        began = time.perf_counter()
        try:
            weights = stack.fitted(at).params.tensors if data is None or (after and after.tensors) else {}
            site.work.append(Work.of(purpose, stack.told(at)))
            settled = reply.settled(weights) if data is None else EMPTY
            outcome = self._end(job, site, settled, None if after is None else after.settled(weights), data)
        except Exception as error:
            outcome = self._failed(job, error)
        return dataclasses.replace(outcome, seconds=time.perf_counter() - began)

    def _end(self, job: Job, site: Site, reply: Record, after: Record | None, data: Buffer | None = None) -> Outcome:
        """What comes of a task that has replied, and keeps something else than before; `data` are sent in the place of its reply."""
        _check_size("its reply", reply, job.limit)
        _check_size("what it keeps", after or EMPTY, job.limit)
        data = self._encode(reply) if data is None else data  # before anything is written: it may not be possible
        kept = job.memory if after is None else self._memories.put(job.client, job.keep, after)
        return Outcome(job.client, data, kept, site.observations, site.logs, site.work)

    def call(self, task: str, site: Site, memory: Record, message: Record) -> tuple[Record, Record]:
        """Run one task of the method."""
        return _checked(find_task(self._method, task)(site, memory, message))


def _awaits(request: Request, record: Record) -> bool:
    """Whether all its tensors are weights that a training is yet to give."""
    return all(isinstance(value, Awaited) and value.request is request for value in record.tensors.values())


def _checked(answer: object) -> tuple[Record, Record]:
    if isinstance(answer, tuple) and len(answer) == 2 and all(isinstance(part, Record) for part in answer):
        return answer
    raise TypeError(f"a task returns (reply, memory), two Records, not {type(answer).__name__}")


def _check_size(what: str, record: Record, limit: int) -> None:
    """Refuse what is too large before it is written or sent."""
    size = record.payload_bytes + sum(len(value) for value in record.scalars.values() if isinstance(value, str))
    if size > limit:
        raise ValueError(f"{what} has {size:,} bytes, more than the {limit:,} allowed (admission.max_mb)")
