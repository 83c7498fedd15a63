"""The engine of a deployment: every client is a participant somewhere else, and Flower's `Grid` carries the bytes.

A participant is known by its name. What it is asked it may be asked twice (it was restarted, the network was cut): it recognises what it
has done by run, round and exchange, and says again what it said. What it keeps stays on its own disk; here lies a receipt.
Nothing that arrives is believed: whatever is not an answer is a reason to drop whoever sent it.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

from coterie.engines.engine import FRAMING, Engine, Job, Outcome, RunContext, brief
from coterie.engines.serving import fields_of, outcome_of
from coterie.engines.worker import RECEIPT, Memories, Performer, memory_file
from coterie.errors import RunError
from coterie.framing import HEADER, Letter
from coterie.record import Record, write
from coterie.site import SERVER

__all__ = ["Flower", "Hello", "Lost", "Post", "Presence", "is_name", "mark_of"]

POLL = 0.2
"""Seconds between looks for answers."""
LOOK = 2.0
"""Seconds between looks for participants."""
AGAIN = 20.0
"""Seconds after which a participant that has not answered is asked again, then twice as many: it may have lost the question."""
MISSED = 3
"""Bad answers in a row after which a participant is no longer asked."""


@dataclass(frozen=True)
class Lost:
    """In the place of an answer: nobody has heard the question to its end, through no fault of whoever was asked. It may be asked again."""

    why: str


Answer = Letter | Lost | str
"""What comes back; a string says what is wrong with it."""


class Post(Protocol):
    """What carries letters: Flower's Grid, or what stands for it in a test."""

    def nodes(self) -> set[int]:
        """Who is connected."""

    def send(self, node: int, letter: Letter, seconds: float | None) -> str:
        """Post a letter; the name under which its answer can be had."""

    def answers(self, names: Sequence[str], limit: int) -> dict[str, Answer]:
        """What has come, by those names."""


@dataclass(frozen=True)
class Hello:
    """What a participant says of itself."""

    name: str
    samples: int
    tests: int
    token: str
    """A secret of its own, by which one that was started again is told from another of its name."""
    model: Mapping[str, Any] | None = None
    """The model that it has chosen itself; None for the experiment's."""


class Presence(NamedTuple):
    """How a participant stands, for whoever looks on.

    >>> Presence("in", 1700000000.0, 120).state
    'in'
    """

    state: str
    """`in`, `at work`, `late`, `gone` or `no longer asked`."""
    since: float
    """In seconds, by this machine's clock."""
    samples: int


def greeted(letter: Letter | str) -> Hello | str:
    """Who answers, or what is wrong with the answer.

    >>> greeted(Letter({"name": "north", "samples": 120, "tests": 30, "token": "5f3c"}))
    Hello(name='north', samples=120, tests=30, token='5f3c', model=None)
    >>> greeted(Letter({"name": "../north"}))
    'an answer that is none'
    >>> greeted(Letter({"error": "participant 'north': it does not take part"}))
    "participant 'north': it does not take part"
    """
    fields = letter.fields if isinstance(letter, Letter) else {}
    name, samples, tests, token, model = (fields.get(key) for key in ("name", "samples", "tests", "token", "model"))
    named = all(isinstance(each, str) and is_name(each) for each in (name, token)) and (model is None or isinstance(model, dict))
    if named and all(_is_count(each) for each in (samples, tests)):
        return Hello(name, samples, tests, token, model)  # type: ignore[arg-type]
    said = letter if isinstance(letter, str) else fields.get("error")
    return brief(said) if isinstance(said, str) else "an answer that is none"


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**40


def is_name(name: str) -> bool:
    """Whether a participant may be called so: letters, digits, dots, dashes; nothing that leads out of a folder."""
    return 0 < len(name) <= 100 and name[0].isalnum() and all(each.isalnum() or each in "._-" for each in name) and name.isascii()


def mark_of(job: Job, sha: str) -> str:
    """What tells a question from all others; an answer names it. `sha` is the message's.

    >>> mark_of(Job(2, "train", 1, ""), "0" * 64) == mark_of(Job(3, "train", 1, ""), "0" * 64)
    False
    """
    about = f"{job.client} {job.round} {job.task} {job.memory} {job.keep} {job.visit} {sha}"
    return hashlib.sha256(about.encode()).hexdigest()


@dataclass(frozen=True)
class _Place:
    """Where a participant is."""

    node: int
    since: float = -inf
    """When it was let in there: one that comes back to the same node is asked again at once."""


@dataclass
class _Question:
    """A letter on its way, which may have to be sent more than once."""

    letter: Letter
    names: list[str] = field(default_factory=list)
    """Under which answers may come."""
    place: _Place | None = None
    """Where it was sent last, when, and how often it was sent there."""
    at: float = -inf
    times: int = 0

    def send(self, post: Post, place: _Place, seconds: float | None) -> None:
        """Send it, if it was not sent there lately."""
        now = time.monotonic()
        times = self.times if place == self.place else 0
        if times and now - self.at < AGAIN * 2 ** (times - 1):
            return
        self.names.append(post.send(place.node, self.letter, seconds))
        self.place, self.at, self.times = place, now, times + 1


@dataclass
class _Asked:
    """A job on its way."""

    job: Job
    question: _Question
    since: float

    @property
    def due(self) -> float:
        """When it is late."""
        return inf if self.job.deadline is None else self.since + self.job.deadline


class Flower(Engine):
    """Participants, each a client by its place in `names`; what is the server's own is done here."""

    isolated: ClassVar[bool] = True
    stacks: ClassVar[bool] = False

    def __init__(
        self,
        post: Post,
        run: str,
        names: Sequence[str],
        greeting: Mapping[str, Any],
        say: Callable[[str], None] = lambda words: None,
        show: Callable[[Mapping[str, Presence]], None] = lambda standings: None,
        refusal: Callable[[Hello], str | None] = lambda hello: None,
        nodes: Mapping[str, int] | None = None,
    ) -> None:
        self._post = post
        self._run = run
        self._names = list(names)
        self._greeting = Letter({"kind": "hello", "run": run, **greeting})
        self._say = say
        self._show = show
        self._refusal = refusal
        """Why somebody who says so of itself cannot take part."""
        self._nodes = nodes or {}
        """Participant -> the node that its key is; with keys Flower sees to it that nobody else is that node."""
        self._standings: dict[str, Presence] = {}
        """Participant -> how it stands; whoever was never in has no entry."""
        self._greetings: dict[int, _Question] = {}
        """Node -> what it was asked, to know who it is."""
        self._who: dict[int, Hello] = {}
        """Node -> who answers there; who could not be let in is asked again now and then, for it may have been started otherwise."""
        self._places: dict[str, _Place] = {}
        """Participant -> where it is."""
        self._bad: Counter[int] = Counter()
        """Client -> bad answers in a row."""
        self._unopposed: set[int] = set()
        """Clients whose last answer nobody has objected to; once the next exchange begins nobody will."""
        self._looked = -inf
        self.hellos: dict[str, Hello] = {}
        """What participants have said of themselves."""

    def gather(self, needed: int, patience: float = inf) -> None:
        """Wait until so many participants are there."""
        until = time.monotonic() + patience
        while len(self._places) < needed:
            self._look()
            if time.monotonic() > until:
                raise RunError(f"{len(self._places)} of {needed} participants came: {', '.join(sorted(self._places)) or 'nobody'}")
            time.sleep(POLL)

    def open(self, context: RunContext) -> None:
        self._context = context
        self._own = Performer(context.method, context.population, Memories(context.folder, context.memory_budget))

    def deliver(self, jobs: Sequence[Job]) -> Iterator[Outcome]:
        for client in self._unopposed:
            del self._bad[client]
        self._unopposed.clear()
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

    def oppose(self, client: int) -> None:
        """An answer that could be read was not let in: it was a bad one too."""
        if client in self._unopposed:
            self._unopposed.remove(client)
            self._count_bad(client)

    def _asked(self, job: Job) -> _Asked:
        message = Path(job.message).read_bytes()
        fields = fields_of(0, replace(job, message="")) | {"kind": "job", "run": self._run, "sha": hashlib.sha256(message).hexdigest()}
        return _Asked(job, _Question(Letter(fields, message)), time.monotonic())

    def _go_on(self, asked: dict[int, _Asked], done: dict[int, Outcome]) -> None:
        """Send what can be sent, hear what has come, give up what is late."""
        self._look()
        waiting = {at: each for at, each in asked.items() if at not in done}
        for at, each in waiting.items():
            if self._bad[each.job.client] >= MISSED:
                done[at] = each.job.failed(f"it is no longer asked, after {MISSED} bad answers in a row")
            elif each.due <= time.monotonic():
                done[at] = each.job.late(time.monotonic() - each.since)
                self._stands(self._names[each.job.client], "late")
            elif (place := self._places.get(self._names[each.job.client])) is not None:
                self._stands(self._names[each.job.client], "at work")
                each.question.send(self._post, place, None if each.due == inf else each.due - time.monotonic())
        self._hear({at: each for at, each in waiting.items() if at not in done}, done)

    def _hear(self, waiting: Mapping[int, _Asked], done: dict[int, Outcome]) -> None:
        names = {name: at for at, each in waiting.items() for name in each.question.names}
        most = max((each.job.limit for each in waiting.values()), default=0)
        for name, answer in self._post.answers(list(names), most + FRAMING).items() if names else ():
            at, each = names[name], waiting[names[name]]
            if at in done:
                continue
            if isinstance(answer, Lost):
                each.question.names.remove(name)
                self._say(f"{self._names[each.job.client]}: {each.job}: {brief(answer.why)}; it will be asked again")
            else:
                done[at] = self._heard(each, answer)

    def _heard(self, each: _Asked, letter: Letter | str) -> Outcome:
        job = each.job
        try:
            if isinstance(letter, str):
                raise ValueError(letter)
            if letter.fields.get("error") is None and letter.fields.get("asked") != mark_of(job, each.question.letter.fields["sha"]):
                raise ValueError("it is one to another question")
            outcome = replace(outcome_of(job, dict(letter.fields), letter.body), fatal=False)  # its own disk may be full, ours is not
            self._receipt(job, outcome, str(letter.fields.get("digest", "")))
        except Exception as error:  # whatever it is that was sent in the place of an answer
            outcome = job.failed(f"its answer cannot be used: {brief(str(error))}")
        if outcome.error is None:
            self._unopposed.add(job.client)
            self._stands(self._names[job.client], "in")
        else:
            self._count_bad(job.client)
            self._say(f"{self._names[job.client]}: {outcome.error}")
        return replace(outcome, seconds=min(outcome.seconds, time.monotonic() - each.since))

    def _count_bad(self, client: int) -> None:
        self._bad[client] += 1
        self._stands(self._names[client], "in" if self._bad[client] < MISSED else "no longer asked")

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
        """Greet who is new, note who has gone, and let in whom there is a place for."""
        if time.monotonic() - self._looked < LOOK:
            return
        self._looked = time.monotonic()
        here = self._post.nodes()
        for name in [name for name, place in self._places.items() if place.node not in here]:
            self._say(f"{name} has gone")
            self._stands(name, "gone")
            del self._places[name]
        self._who = {node: who for node, who in self._who.items() if node in here}
        self._greetings = {node: self._greetings.get(node) or _Question(self._greeting) for node in here}
        self._greet({node: each for node, each in self._greetings.items() if node not in self._who})
        for node, who in self._who.items():
            if who.name not in self._places:
                self._let_in(node, who)

    def _greet(self, silent: Mapping[int, _Question]) -> None:
        """Ask those who have not said yet who they are."""
        for node, each in silent.items():
            each.send(self._post, _Place(node), None)
        names = {name: node for node, each in silent.items() for name in each.names}
        for name, answer in self._post.answers(list(names), HEADER).items() if names else ():
            if isinstance(answer, Lost):
                silent[names[name]].names.remove(name)
                self._say(f"somebody is not in yet: {brief(answer.why)}")
            elif (who := self._welcomed(names[name], greeted(answer))) is not None:
                self._who[names[name]] = who

    def _welcomed(self, node: int, hello: Hello | str) -> Hello | None:
        """Who is let in, now or when its place is free."""
        if isinstance(hello, str):
            self._say(f"somebody is not let in: {hello}")
        elif hello.name not in self._names:
            self._say(f"'{hello.name}' is not let in: it is not one of {', '.join(self._names)}")
        elif self._nodes.get(hello.name, node) != node:
            self._say(f"'{hello.name}' is not let in: it came with another participant's key (node {node})")
        elif hello.name in self._places and self.hellos[hello.name].token != hello.token:
            self._say(f"a second '{hello.name}' is not let in: the first is still there")
            return hello
        elif (why := self._objection(hello)) is not None:
            self._say(f"'{hello.name}' is not let in: {brief(why)}")
        else:
            self._let_in(node, hello)
            return hello
        return None

    def _objection(self, hello: Hello) -> str | None:
        """Why it cannot take part; whatever goes wrong in finding that out is why."""
        try:
            return self._refusal(hello)
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    def _let_in(self, node: int, hello: Hello) -> None:
        self._places[hello.name], self.hellos[hello.name] = _Place(node, time.monotonic()), hello
        self._bad.pop(self._names.index(hello.name), None)
        self._say(f"{hello.name} is in, with {hello.samples:,} samples")
        self._stands(hello.name, "in")

    def _stands(self, name: str, state: str) -> None:
        """Note how a participant stands, and show it where that is new."""
        known = self._standings.get(name)
        if (known is None and name in self.hellos) or (known is not None and known.state != state):
            self._standings[name] = Presence(state, time.time(), self.hellos[name].samples)
            self._show(self._standings)
