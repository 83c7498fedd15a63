"""What every engine shares: a job, its outcome, a client's memory on disk, and how a job is performed where the client is.

A job is plain data (numbers, names, file names), so that it fits through any pipe. A message is encoded once, lies in a file,
and is mapped by whoever performs a job; a memory is written under a new version and the old one stays until the round's
checkpoint no longer needs it. So any worker can do any job, twice if need be, and get the same bits.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coterie.errors import RunError
from coterie.method import Method
from coterie.population import Population
from coterie.site import Observation, Visit, Work

__all__ = ["EVALUATE", "Engine", "Job", "Outcome", "RunContext", "TaskError", "cores"]

EVALUATE = "@evaluate"
"""The one job that is not a task of the method: measure the server's models, `Method.models`, at a site."""


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
    """One thing to do at one site.

    >>> str(Job(client=3, task="train", round=2, message="live/message-1.safetensors"))
    "client 3, task 'train', round 2"
    """

    client: int
    task: str
    round: int
    message: str
    """The file that holds the encoded message."""
    memory: str | None = None
    """The version of the client's memory to start from; None where it keeps nothing."""
    keep: str = "0"
    """The version under which to write what it keeps."""
    visit: Visit = field(default_factory=Visit)
    """What to measure and to log beside the task."""
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
    logs: dict[str, Any] = field(default_factory=dict)
    """What the task logged, by name."""
    work: list[Work] = field(default_factory=list)
    """How much it trained."""
    seconds: float = 0.0
    error: TaskError | None = None
    """What went wrong, where something did."""


@dataclass(frozen=True)
class RunContext:
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


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Engine(ABC):
    """Delivers jobs. All engines give the same bits.

    One of your own is named by its path (`engine.name = "package.module:Class"`); most of it is `coterie.engines.worker.Performer`:

    >>> from coterie.engines import Inline
    >>> class Backwards(Inline):
    ...     def deliver(self, jobs):
    ...         done = {job.client: self._performer.perform(job) for job in reversed(jobs)}
    ...         return (done[job.client] for job in jobs)
    >>> from coterie.testing import check_method
    >>> from coterie.methods.fedavg import FedAvg
    >>> check_method(FedAvg(), engines=[Backwards]).summary["rounds"]
    3
    """

    def warm(self) -> None:  # noqa: B027 (most engines have nothing to begin)
        """Begin what takes long and needs no stage, while the caller loads data."""

    @abstractmethod
    def open(self, context: RunContext) -> None:
        """Get ready for a run."""

    @abstractmethod
    def deliver(self, jobs: Sequence[Job]) -> Iterator[Outcome]:
        """Perform jobs, one per client; outcomes come in the order of `jobs`, each as soon as it and those before it are there."""

    @abstractmethod
    def close(self) -> None:
        """Let go of everything; may be called twice."""
