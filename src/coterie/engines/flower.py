"""The engine of a deployment: every client is a participant somewhere else, and Flower's `Grid` carries the bytes.

A participant is known by its name. What it is asked it may be asked twice (it was restarted, the network was cut): it recognises what it
has done by run, round and exchange, and says again what it said. What it keeps stays on its own disk; here lies a receipt.
Nothing that arrives is believed: whatever is not an answer is a reason to drop whoever sent it.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any, ClassVar, Protocol

from coterie.engines.engine import FRAMING, Engine, Job, Outcome, RunContext, brief
from coterie.engines.serving import fields_of, outcome_of
from coterie.engines.worker import RECEIPT, Memories, Performer, memory_file
from coterie.errors import RunError
from coterie.framing import HEADER, Letter
from coterie.record import Record, write
from coterie.site import SERVER

__all__ = ["Flower", "Hello", "Post", "is_name"]

POLL = 0.2
"""Seconds between looks for answers."""
LOOK = 2.0
"""Seconds between looks for participants."""
AGAIN = 20.0
"""Seconds after which a participant that has not answered is asked again, then twice as many: it may have lost the question."""
MISSED = 3
"""Bad answers in a row after which a participant is no longer asked."""


class Post(Protocol):
    """What carries letters: Flower's Grid, or what stands for it in a test."""

    def nodes(self) -> set[int]:
        """Who is connected."""

    def send(self, node: int, letter: Letter, seconds: float | None) -> str:
        """Post a letter; the name under which its answer can be had."""

    def answers(self, names: Sequence[str], limit: int) -> dict[str, Letter | str]:
        """The answers that have come, by those names; a string says why there will be none."""


@dataclass(frozen=True)
class Hello:
    """What a participant says of itself."""

    name: str
    samples: int
    tests: int


def greeted(letter: Letter | str) -> Hello | str:
    """Who answers, or what is wrong with the answer.

    >>> greeted(Letter({"name": "north", "samples": 120, "tests": 30}))
    Hello(name='north', samples=120, tests=30)
    >>> greeted(Letter({"name": "../north"}))
    'an answer that is none'
    """
    fields = letter.fields if isinstance(letter, Letter) else {}
    name, counts = fields.get("name"), [fields.get("samples"), fields.get("tests")]
    if isinstance(name, str) and is_name(name) and all(type(each) is int and 0 <= each < 2**40 for each in counts):
        return Hello(name, *counts)  # type: ignore[arg-type]
    return brief(letter) if isinstance(letter, str) else "an answer that is none"


def is_name(name: str) -> bool:
    """Whether a participant may be called so: letters, digits, dots, dashes; nothing that leads out of a folder."""
    return 0 < len(name) <= 100 and name[0].isalnum() and all(each.isalnum() or each in "._-" for each in name) and name.isascii()


@dataclass
class _Asked:
    """A job on its way."""

    job: Job
    letter: Letter
    since: float
    names: list[str] = field(default_factory=list)
    """Under which answers may come."""
    sent: tuple[int, float] | None = None
    """To which node it was sent last, and when."""

    @property
    def due(self) -> float:
        """When it is late."""
        return inf if self.job.deadline is None else self.since + self.job.deadline


class Flower(Engine):
    """Participants, each a client by its place in `names`; what is the server's own is done here."""

    isolated: ClassVar[bool] = True
    stacks: ClassVar[bool] = False

    def __init__(
        self, post: Post, run: str, names: Sequence[str], greeting: Mapping[str, Any], say: Callable[[str], None] = lambda words: None
    ) -> None:
        self._post = post
        self._run = run
        self._names = list(names)
        self._greeting = Letter({"kind": "hello", "run": run, **greeting})
        self._say = say
        self._greeted: dict[int, str | None] = {}
        """Node -> under which name its answer to the greeting can be had; None where it has answered."""
        self._nodes: dict[str, int] = {}
        """Participant -> the node at which it is."""
        self._bad: dict[int, int] = {}
        """Client -> bad answers in a row."""
        self._looked = -inf
        self.hellos: dict[str, Hello] = {}
        """What participants have said of themselves."""

    def gather(self, needed: int, patience: float = inf) -> None:
        """Wait until so many participants are there."""
        until = time.monotonic() + patience
        while len(self._nodes) < needed:
            self._look()
            if time.monotonic() > until:
                raise RunError(f"{len(self._nodes)} of {needed} participants came: {', '.join(sorted(self._nodes)) or 'nobody'}")
            time.sleep(POLL)

    def open(self, context: RunContext) -> None:
        self._context = context
        self._own = Performer(context.method, context.population, Memories(context.folder, context.memory_budget))

    def deliver(self, jobs: Sequence[Job]) -> Iterator[Outcome]:
        asked = {at: self._asked(job) for at, job in enumerate(jobs) if job.client != SERVER}
        done: dict[int, Outcome] = {}
        self._go_on(asked, done)
        for at, job in enumerate(jobs):
            if job.client == SERVER:
                yield self._own.perform(job)
                continue
            while at not in done:
                time.sleep(POLL)
                self._go_on(asked, done)
            del asked[at]
            yield done.pop(at)

    def close(self) -> None:
        pass

    def _asked(self, job: Job) -> _Asked:
        message = Path(job.message).read_bytes()
        fields = fields_of(0, replace(job, message="")) | {"kind": "job", "run": self._run, "sha": hashlib.sha256(message).hexdigest()}
        return _Asked(job, Letter(fields, message), time.monotonic())

    def _go_on(self, asked: dict[int, _Asked], done: dict[int, Outcome]) -> None:
        """Send what can be sent, hear what has come, give up what is late."""
        self._look()
        waiting = {at: each for at, each in asked.items() if at not in done}
        for at, each in waiting.items():
            if self._bad.get(each.job.client, 0) >= MISSED:
                done[at] = each.job.failed(f"it is no longer asked, after {MISSED} bad answers in a row")
            elif each.due <= time.monotonic():
                done[at] = each.job.late(time.monotonic() - each.since)
            else:
                self._send(each)
        names = {name: at for at, each in waiting.items() if at not in done for name in each.names}
        most = max((asked[at].job.limit for at in names.values()), default=0)
        for name, letter in self._post.answers(list(names), most + FRAMING).items() if names else ():
            if names[name] not in done:
                done[names[name]] = self._heard(asked[names[name]], letter)

    def _send(self, each: _Asked) -> None:
        """To where the participant is now, if it was not sent there lately."""
        node, now = self._nodes.get(self._names[each.job.client]), time.monotonic()
        if node is None or (each.sent is not None and each.sent[0] == node and now - each.sent[1] < AGAIN * 2 ** (len(each.names) - 1)):
            return
        each.names.append(self._post.send(node, each.letter, None if each.due == inf else each.due - now))
        each.sent = node, now

    def _heard(self, each: _Asked, letter: Letter | str) -> Outcome:
        job = each.job
        try:
            if isinstance(letter, str):
                raise ValueError(letter)
            outcome = outcome_of(job, dict(letter.fields), letter.body)
            self._receipt(job, outcome, str(letter.fields.get("digest", "")))
        except Exception as error:  # whatever it is that was sent in the place of an answer
            outcome = job.failed(f"its answer cannot be used: {brief(str(error))}")
        self._bad[job.client] = 0 if outcome.error is None else self._bad.get(job.client, 0) + 1
        if outcome.error is not None:
            self._say(f"{self._names[job.client]}: {outcome.error}")
        return replace(outcome, seconds=min(outcome.seconds, time.monotonic() - each.since))

    def _receipt(self, job: Job, outcome: Outcome, digest: str) -> None:
        """In the place of what a participant keeps, so that a checkpoint has what it names."""
        if outcome.error is not None or outcome.kept is None or outcome.kept == job.memory:
            return
        if outcome.kept != job.keep or len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
            raise ValueError("what it keeps is not under the name it was given, or has no digest")
        path = memory_file(self._context.folder, job.client, job.keep)
        path.parent.mkdir(exist_ok=True)
        write(Record({RECEIPT: digest}), path, f"what client {job.client} keeps, version {job.keep}", sync=False)

    def _look(self) -> None:
        """Greet who is new, and note who has gone."""
        if time.monotonic() - self._looked < LOOK:
            return
        self._looked = time.monotonic()
        here = self._post.nodes()
        for node in here - self._greeted.keys():
            self._greeted[node] = self._post.send(node, self._greeting, None)
        for name in [name for name, node in self._nodes.items() if node not in here]:
            self._say(f"{name} has gone")
            del self._nodes[name]
        self._greeted = {node: name for node, name in self._greeted.items() if node in here}
        unheard = {name: node for node, name in self._greeted.items() if name is not None}
        for name, letter in self._post.answers(list(unheard), HEADER).items() if unheard else ():
            self._greeted[unheard[name]] = None
            self._admit(unheard[name], greeted(letter))

    def _admit(self, node: int, hello: Hello | str) -> None:
        if isinstance(hello, str):
            self._say(f"somebody is not let in: {hello}")
        elif hello.name not in self._names:
            self._say(f"'{hello.name}' is not let in: it is not one of {', '.join(self._names)}")
        elif hello.name in self._nodes:
            self._say(f"a second '{hello.name}' is not let in: the first is still there")
        else:
            self._nodes[hello.name], self.hellos[hello.name] = node, hello
            self._bad.pop(self._names.index(hello.name), None)
            self._say(f"{hello.name} is in, with {hello.samples:,} samples")
