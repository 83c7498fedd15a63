"""One ask on its way: what was asked of whom, what their replies must match, and what has come of it so far."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from coterie.engines.engine import FRAMING, Job, Outcome
from coterie.method import admit
from coterie.record import EMPTY, Record, RecordError, decode
from coterie.replies import Averaging, Replies
from coterie.running.admission import Admission, Expected, is_plain, rejection
from coterie.site import Work
from coterie.wire import Buffer

__all__ = ["Delivery"]


@dataclass
class Delivery:
    """One ask on its way."""

    task: str
    jobs: Sequence[Job]
    asked: int
    """How many of the jobs, the first ones, are of clients that were asked; the others are guests'."""
    expected: Mapping[int, Expected]
    """Client -> what its reply must match."""
    check: Callable[[Record], str | None]
    guests: dict[int, Record] | None
    """Where what guests answer is put; None where nobody wants it."""
    replies: Replies = field(init=False)
    """What the method was given: it says what it needs of them."""
    admitted: int = 0
    """How many were let in."""
    reasons: list[str] = field(default_factory=list)
    """Why others were not."""
    work: tuple[list[list[Work]], list[list[Work]]] = field(default_factory=lambda: ([], []))
    """Of those who were asked, and of guests."""

    def __post_init__(self) -> None:
        self._guests = {job.client for job in self.jobs[self.asked :]}

    def is_guest(self, job: Job) -> bool:
        """Whether a job is one of a client that takes part only to be evaluated."""
        return job.client in self._guests

    def mean_of(self, clients: Sequence[int]) -> Averaging | None:
        """What is wanted of the replies of a stack if nothing else is: that all of them are let in can be told without looking at each."""
        expected, mean = self.expected[clients[0]], self.replies.mean
        plain = self.check is admit and not expected.per_sample and all(self.expected[client] is expected for client in clients)
        if mean is None or not plain or not expected.tensors or clients[0] in self._guests:
            return None
        return mean if mean.holds(expected.tensors) else None

    def read(self, job: Job, data: Buffer, held: int) -> tuple[Record, str | None]:
        """A reply, or what is wrong with its form; whatever the bytes are, nothing is raised.

        One that lies in shared memory stays there: it is given back as a whole, so that copying the small tensors would free nothing.
        """
        expected = self.expected[job.client]
        try:
            reply = decode(data, expected.limits(job.limit + FRAMING), copy="none" if isinstance(data, memoryview) else None)
            return reply, expected.misfit(reply, held)
        except RecordError as error:
            return EMPTY, str(error)
        except Exception as error:
            return EMPTY, f"it cannot be read: {type(error).__name__}: {error}"

    def rejection(self, job: Job, reply: Record, rules: Admission, held: int) -> str | None:
        """Why a reply of the right form is not let in, or None; a method's own check that cannot cope with it is a reason too."""
        try:
            return rejection(reply, self.expected[job.client], rules, self.replies.needed, held) or self.check(reply)
        except Exception as error:
            return f"it cannot be checked: {type(error).__name__}: {error}"

    def are_plain(self, came: Sequence[tuple[Job, Outcome]], rules: Admission, held: Sequence[int]) -> bool:
        """Whether each of some replies, of the form of their mean, would be let in by itself."""
        return all(
            is_plain(outcome.part, self.expected[job.client], rules, self.replies.needed, held[job.client])
            for job, outcome in came
            if outcome.part is not None
        )
