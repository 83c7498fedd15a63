"""What every engine shares: a job, its outcome, a client's memory on disk, and how a job is performed where the client is.

A job is plain data (numbers, names, file names), so that it fits through any pipe. A message is encoded once, lies in a file,
and is mapped by whoever performs a job; a memory is written under a new version and the old one stays until the round's
checkpoint no longer needs it. So any worker can do any job, twice if need be, and get the same bits.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coterie.errors import RunError
from coterie.method import Method, find_task
from coterie.record import EMPTY, Record, encode, read, write
from coterie.site import Bench, Observation, Population, Site

__all__ = ["MEASURE", "Engine", "Job", "Memories", "Outcome", "Performer", "Stage", "TaskError", "cores", "memory_file"]

MEASURE = "@measure"
"""The one job that is not a task of the method: measure what `Method.models` offers at a site."""


class TaskError(RunError):
    """A client's task raised; the sentence names client, task and round, the cause or a note has the client's traceback."""

    @classmethod
    def at(cls, job: Job, cause: Exception) -> TaskError:
        """What `cause` looks like from the server."""
        error = cls(f"{job}: {type(cause).__name__}: {cause}")
        error.__cause__ = cause
        return error


@dataclass(frozen=True)
class Job:
    """One thing to do at one site."""

    client: int
    task: str
    round: int
    message: str
    """The file that holds the encoded message."""
    memory: str | None = None
    """The version of the client's memory to start from; None where it keeps nothing."""
    keep: str = "0"
    """The version under which to write what it keeps."""
    wanted: tuple[str, ...] = ()
    """Protocols to observe on this visit."""
    span: tuple[int, int] | None = None
    """Of a long test set, the examples to measure."""
    exhibiting: bool = False
    """Whether the task may put arrays on show."""
    cost: int = 1
    """How long it may take, relative to others: longest jobs go first."""

    def __str__(self) -> str:
        who = "the server" if self.client < 0 else f"client {self.client}"
        return f"{who}, task '{self.task}', round {self.round}"


@dataclass(frozen=True)
class Outcome:
    """What came of a job."""

    client: int
    reply: bytes = b""
    """The encoded reply."""
    kept: str | None = None
    """The version of the memory it left; None where it keeps nothing."""
    observations: list[Observation] = field(default_factory=list)
    shown: dict[str, Any] = field(default_factory=dict)
    """What the task put on show, by exhibit."""
    seconds: float = 0.0
    error: TaskError | None = None
    """What went wrong, where something did."""


@dataclass(frozen=True)
class Stage:
    """All that an engine needs to know of a run."""

    method: Method
    population: Population
    folder: Path
    """The run's folder: messages lie in `live/`, memories in `memory/`."""
    memory_budget: int = 256 * 2**20
    """Bytes of client memories that each worker keeps in RAM."""

    @property
    def live(self) -> Path:
        """Where what is passing through lies: messages, and the arrays that workers map."""
        return self.folder / "live"


def memory_file(folder: Path, client: int, version: str) -> Path:
    """Where one version of what a client keeps lies in a run's folder."""
    return folder / "memory" / f"{client}.{version}.safetensors"


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
        memory = held[1] if held and held[0] == version else read(memory_file(self._folder, client, version))
        self._hold(client, version, memory)
        return memory

    def put(self, client: int, version: str, memory: Record) -> str | None:
        """Keep a memory; nothing is written where there is nothing to keep."""
        if not memory:
            return None
        path = memory_file(self._folder, client, version)
        path.parent.mkdir(exist_ok=True)
        write(memory, path)
        self._hold(client, version, memory)
        return version

    def _hold(self, client: int, version: str, memory: Record) -> None:
        before = self._held.pop(client, None)
        self._bytes += memory.payload_bytes - (before[1].payload_bytes if before else 0)
        self._held[client] = (version, memory)
        while self._bytes > self._budget and self._held:
            _, (_, oldest) = self._held.popitem(last=False)
            self._bytes -= oldest.payload_bytes


class Performer:
    """Performs jobs where the client is: in this process, whichever that is."""

    def __init__(self, method: Method, population: Population, memories: Memories) -> None:
        self._method = method
        self._population = population
        self._memories = memories
        self._bench = Bench()

    def perform(self, job: Job) -> Outcome:
        """Do it; an exception of the client's code becomes an outcome that names client, task and round."""
        began = time.perf_counter()
        site = self._population.site(job.client, job.round, self._bench, frozenset(job.wanted), job.exhibiting)
        site.architecture = self._method.network(site.architecture, job.client)
        message = read(Path(job.message))
        try:
            memory = self._memories.get(job.client, job.memory)
            if job.task == MEASURE:
                for protocol, params in self._method.models(message, memory, site).items():
                    site.observe(protocol, params, job.span)
                reply, kept = EMPTY, job.memory
            else:
                reply, after = self.call(job.task, site, memory, message)
                kept = job.memory if after is memory else self._memories.put(job.client, job.keep, after)
        except Exception as error:
            return Outcome(job.client, error=TaskError.at(job, error), seconds=time.perf_counter() - began)
        return Outcome(job.client, encode(reply), kept, site.observations, site.shown, time.perf_counter() - began)

    def call(self, task: str, site: Site, memory: Record, message: Record) -> tuple[Record, Record]:
        """Run one task of the method."""
        return _checked(find_task(self._method, task)(site, memory, message))


def _checked(answer: object) -> tuple[Record, Record]:
    if isinstance(answer, tuple) and len(answer) == 2 and all(isinstance(part, Record) for part in answer):
        return answer
    raise TypeError(f"a task returns (reply, memory), two Records, not {type(answer).__name__}")


def cores() -> int:
    """How many cores this process may use.

    >>> cores() >= 1
    True
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Engine(ABC):
    """Delivers jobs. All engines give the same bits."""

    def warm(self) -> None:  # noqa: B027 (most engines have nothing to begin)
        """Begin what takes long and needs no stage, while the caller loads data."""

    @abstractmethod
    def open(self, stage: Stage) -> None:
        """Get ready for a run."""

    @abstractmethod
    def deliver(self, jobs: Sequence[Job]) -> Iterator[Outcome]:
        """Perform jobs, one per client; outcomes come in the order of `jobs`, each as soon as it and those before it are there."""

    @abstractmethod
    def close(self) -> None:
        """Let go of everything; may be called twice."""
