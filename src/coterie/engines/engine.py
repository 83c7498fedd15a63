"""What every engine shares: a job, its outcome, and what a client's failure looks like from the server.

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
from typing import Any, ClassVar

from coterie.errors import RunError, place_of
from coterie.method import Method
from coterie.population import Population
from coterie.record import Scalar
from coterie.replies import Averaging
from coterie.site import Observation, Visit, Work
from coterie.wire import Buffer

__all__ = ["EVALUATE", "FRAMING", "Engine", "Job", "Outcome", "PartOfMean", "RunContext", "TaskError", "brief", "cores"]

EVALUATE = "@evaluate"
"""The one job that is not a task of the method: measure the server's models, `Method.models`, at a site."""
FRAMING = 4 * 2**20
"""Bytes by which an encoded reply may be longer than what it holds."""


def brief(text: str, most: int = 500) -> str:
    r"""What a client says, fit for a ledger and a terminal: nothing but characters that can be shown, and not too many.

    >>> brief("no such luck"), brief("\x1b[2Jhalf a \ud83d"), brief("ha" * 1000, most=4)
    ('no such luck', '\\x1b[2Jhalf a \\ud83d', 'haha... (2,000 characters)')
    >>> brief("size mismatch:\tw")
    'size mismatch: w'
    """
    shown = "".join(each if each.isprintable() or each == "\n" else ascii(each)[1:-1] for each in text[:most].replace("\t", " "))
    return shown if len(text) <= most else f"{shown}... ({len(text):,} characters)"


class TaskError(RunError):
    """A client's task failed; the sentence names client, task and round, the cause or a note has the client's traceback."""

    @classmethod
    def at(cls, job: Job, cause: BaseException) -> TaskError:
        """What `cause` looks like from the server: its kind, its words, and the user's file and line that it came from."""
        error = cls(f"{job}: {_kind(cause)}: {brief(_words(cause))}{place_of(cause)}")
        error.__cause__ = cause
        return error


def _words(cause: BaseException) -> str:
    try:
        return str(cause)
    except BaseException as error:  # even one that would end this process
        return f"its message cannot be shown ({_kind(error)})"


def _kind(cause: BaseException) -> str:
    """The name of its class; a class of its class could answer anything."""
    return str(type.__getattribute__(type(cause), "__name__"))


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
    deadline: float | None = None
    """Seconds after which it is late: an engine that can then stops it; one that cannot says how long it took."""
    limit: int = 2**40
    """Bytes that its reply, and what it keeps, may each have."""
    stack: tuple[tuple[int, str | None], ...] = ()
    """The clients (itself among them, with the versions of their memories) whose training is one computation with its own; all else is
    the same for them. Who performs one of these jobs computes all: an engine does well to give them to one worker, one after the other."""
    mean: Averaging | None = None
    """What is wanted of the replies of its stack, where nothing else is: an outcome may have a `part` then, and the last one the mean."""

    def __str__(self) -> str:
        who = "the server" if self.client < 0 else f"client {self.client}"
        return f"{who}, task '{self.task}', round {self.round}"

    def failed(self, why: str, seconds: float = 0.0) -> Outcome:
        """What comes of this job when it fails, in words.

        >>> Job(2, "train", 1, "").failed("it did not answer").error
        TaskError("client 2, task 'train', round 1: it did not answer")
        """
        return Outcome(self.client, error=TaskError(f"{self}: {why}"), seconds=seconds)

    def late(self, seconds: float = 0.0) -> Outcome:
        """What comes of this job when it takes too long."""
        return self.failed(f"late: it took more than {self.deadline:g} s (admission.deadline)", seconds)


@dataclass(frozen=True)
class PartOfMean:
    """What is told of a reply that is in the mean of its stack.

    >>> PartOfMean({"examples": 600}, length=400, norm=1.5).scalars
    {'examples': 600}
    """

    scalars: dict[str, Scalar]
    length: int
    """Bytes of the encoded reply."""
    norm: float
    """The L2 norm of its tensors, or more."""


@dataclass(frozen=True)
class Outcome:
    """What came of a job."""

    client: int
    reply: Buffer = b""
    """The encoded reply; what is not bytes is the receiver's, and is read without a copy."""
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
    fatal: bool = False
    """Whether that is no client's fault (a full disk), so that the run cannot go on without this one either."""
    part: PartOfMean | None = None
    """Where the mean of a stack is wanted: what its own reply was."""


@dataclass(frozen=True)
class RunContext:
    """All that an engine needs to know of a run."""

    method: Method
    population: Population
    folder: Path
    """The run's folder: messages lie in `live/`, memories in `memory/`."""
    memory_budget: int = 256 * 2**20
    """Bytes of client memories that each worker keeps in RAM."""
    device: str = "cpu"
    """Where networks compute, as `coterie.devices.find` takes it; a worker asks with its own number."""

    @property
    def live(self) -> Path:
        """Where what is passing through lies: messages, and the arrays that workers map."""
        return self.folder / "live"


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Engine(ABC):
    """Delivers jobs. All engines give the same bits, and whatever a client does is an outcome: nothing of it raises here.

    One of your own is named by its path (`engine.name = "package.module:Class"`); most of it is `coterie.engines.worker.Performer`, and
    `coterie.testing.check_engine` puts it through all that clients may do:

    >>> from coterie.engines import Inline
    >>> class Backwards(Inline):
    ...     def deliver(self, jobs):
    ...         done = {job.client: self._performer.perform(job) for job in reversed(jobs)}
    ...         return (done[job.client] for job in jobs)
    >>> from coterie.testing import check_engine
    >>> check_engine(Backwards, ["raises SystemExit", "turns gradients off"])
    """

    isolated: ClassVar[bool] = False
    """Whether clients run in processes of their own, so that one that hangs, exits or crashes harms only itself."""
    stacks: ClassVar[bool] = True
    """Whether who performs a client's job could perform any other's, as `training.stack` needs; False where clients are real."""

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
