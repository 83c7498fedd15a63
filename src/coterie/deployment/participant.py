"""A participant: its data, what it keeps, and what it has said, all on its own disk.

    home/RUN/agreed.json  what it has agreed to take part in
    home/RUN/memory/      what it keeps, as safetensors, by version; written whole or not at all
    home/RUN/answers/     its last answers: asked again, it says the same again, and trains nothing
    home/sent.jsonl       what has left this machine, a line for each answer
    home/token            by which the server knows it again

A job names the version of the memory to start from, so a message that comes twice, late or out of order changes nothing that a later
one builds on: the same bits are computed, under the same name.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from coterie import durable
from coterie.deployment.folders import population_of
from coterie.deployment.models import Choices
from coterie.engines import Engine, Job, Processes, RunContext, TaskError
from coterie.engines.engine import EVALUATE
from coterie.engines.flower import mark_of
from coterie.engines.serving import answer_of, job_of
from coterie.engines.worker import memory_file, read_memory
from coterie.errors import UserError, nearest
from coterie.framing import Letter
from coterie.models import MODELS, Architecture
from coterie.population import Population
from coterie.record import Limits, decode
from coterie.running.experiment import Experiment
from coterie.running.files import toml_value
from coterie.running.traffic import kinds_of
from coterie.wire import Buffer

__all__ = ["Consent", "Participant"]

RUN = re.compile(r"[0-9a-f]{16,64}")
VERSION = re.compile(r"\d{1,9}-\d{1,9}(-guest)?")
ANSWER = re.compile(rf"({VERSION.pattern}|0)-[0-9a-f]{{8}}\.json")
MEMORY = re.compile(rf"\d{{1,9}}\.{VERSION.pattern}\.safetensors")
"""Names of files: of what was answered, and of what is kept."""
KEPT = 4
"""Versions of its memory that a participant has at hand, beside those that a server may go back to."""
ANSWERS = 12
AGREED = "agreed.json"
"""What a participant has agreed to."""
TOKEN = "token"
"""A secret by which the server knows it again."""
Consent = Callable[[Experiment], bool]
"""Whether to take part in an experiment; asked once for each."""


@dataclass(eq=False)
class Participant:
    """One participant of any number of runs.

    >>> import tempfile
    >>> north = Participant("north", Path(tempfile.mkdtemp()))
    >>> north.answer(Letter({"kind": "dance"})).fields["error"]
    "participant 'north': a letter of kind 'dance', expected hello or job"
    """

    name: str
    home: Path
    data: Path | None = None
    """A folder of its own images, by class; None to play its part of the experiment's own data."""
    never: frozenset[str] = frozenset()
    """Kinds of content that do not leave this machine, whatever is asked."""
    model: Architecture | None = None
    """The model of its own choice; None for the experiment's."""
    consent: Consent = lambda experiment: True
    engine: Callable[[], Engine] = lambda: Processes(workers=1)
    say: Callable[[str], None] = lambda words: None
    _open: dict[str, _Run] = field(default_factory=dict)
    _refused: set[str] = field(default_factory=set)
    """Runs that it does not take part in: nobody is asked twice."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(cls, node: Mapping[str, Any]) -> Participant:
        """From the configuration of a SuperNode that somebody else has started."""
        data, never = node.get("data"), str(node.get("never-send", ""))
        home = Path(str(node.get("home", Path.home() / ".coterie" / str(node["name"]))))
        model = MODELS.resolve(toml_value(str(node["model"])), "model") if "model" in node else None
        return cls(str(node["name"]), home, Path(str(data)) if data else None, frozenset(filter(None, never.split(","))), model)

    def answer(self, letter: Letter) -> Letter:
        """What it says to a letter; nothing that is in one raises."""
        with self._lock:
            try:
                return self._answered(letter)
            except Exception as error:  # whatever the letter was; no answer at all would have it sent again
                self.say(f"refused: {error}")
                return _refusal(f"participant '{self.name}': {error}")

    def close(self) -> None:
        """Let go of workers."""
        for run in self._open.values():
            run.engine.close()
        self._open.clear()

    def _answered(self, letter: Letter) -> Letter:
        match letter.fields.get("kind"):
            case "hello":
                return self._hello(letter)
            case "job":
                return self._job(letter)
            case other:
                raise ValueError(f"a letter of kind {other!r:.40}, expected hello or job")

    def _hello(self, letter: Letter) -> Letter:
        run = _matching(RUN, letter.fields["run"], "run")
        agreed = self.home / run / AGREED
        if run not in self._open:
            experiment, names = Experiment.parse(letter.fields["experiment"]), list(letter.fields["names"])
            population, client = self._part(experiment, names)
            if run in self._refused or not (agreed.exists() or self.consent(_as_here(experiment, population, client))):
                self._refused.add(run)
                raise UserError("it does not take part")
            self._open[run] = self._opened(run, experiment, population, client)
            durable.write(agreed, json.dumps(dict(letter.fields)) + "\n")
        here, model = self._open[run], None if self.model is None else MODELS.dump(self.model)
        return Letter({"name": self.name, "samples": here.samples, "tests": here.tests, "token": self._token(), "model": model})

    def _token(self) -> str:
        """The same whenever it is started from this home."""
        path = self.home / TOKEN
        if not path.exists():
            durable.write(path, secrets.token_hex(16))
        return path.read_text(encoding="utf-8")

    def _part(self, experiment: Experiment, names: Sequence[str]) -> tuple[Population, int]:
        """The population as it is here, with the model of its own choice, and which client of it this is."""
        if self.name not in names:
            raise UserError(f"--name {self.name}: {nearest(self.name, names)}")
        client = list(names).index(self.name)
        population = experiment.population() if self.data is None else population_of(experiment, self.data, names, client)
        if self.model is None:
            return population, client
        choices = Choices(experiment, names)
        choices.choose(client, MODELS.dump(self.model))
        chosen = choices.begin()
        return replace(population, plan=replace(population.plan, architectures=chosen.model, models_by=chosen.models_by)), client

    def _opened(self, run: str, experiment: Experiment, population: Population, client: int) -> _Run:
        folder = self.home / run
        durable.make_folder(folder / "live")
        engine = self.engine()
        engine.open(RunContext(experiment.method, population, folder, experiment.engine.memory_mb * 2**20))
        return _Run(folder, client, engine, population)

    def _job(self, letter: Letter) -> Letter:
        run = _matching(RUN, letter.fields["run"], "run")
        if run not in self._open:  # it was started anew since it agreed to take part
            if not (self.home / run / AGREED).exists():
                raise ValueError("a run that it does not take part in")
            self._hello(Letter(json.loads((self.home / run / AGREED).read_text(encoding="utf-8"))))
        here = self._open[run]
        job = here.job(letter)
        mark = mark_of(job, letter.fields["sha"])
        past = here.said(job, mark)
        if past is None or self.never & _kinds(past.body).keys():  # it may have been said before that was refused
            here.take_back(job)
            past = self._performed(here, job, letter, mark)
        elif past.body or not past.fields.get("error"):
            self.say(f"round {job.round}, {job.task}: asked again, said again")
        return past

    def _performed(self, here: _Run, job: Job, letter: Letter, mark: str) -> Letter:
        path = here.folder / "live" / f"message-{hashlib.sha256(letter.body).hexdigest()}.safetensors"  # a worker knows messages by name
        path.write_bytes(letter.body)
        outcome = next(iter(here.engine.deliver([replace(job, message=str(path))])))
        path.unlink()
        kinds = _kinds(outcome.reply) if outcome.error is None else {}
        if refused := sorted(self.never & kinds.keys()):
            outcome = job.failed(f"'{self.name}' does not send {', '.join(refused)} (--never-send)")
        text = json.loads(answer_of(job, outcome, ticket=0, last=False, asked=mark)) | here.keep(job, outcome.kept)
        said = Letter(text, b"" if outcome.error else bytes(outcome.reply))
        self._write_down(here, job, kinds if outcome.error is None else {}, said)
        here.remember(job, said)  # what is remembered may be said again at any time, so it is written down before
        return said

    def _write_down(self, here: _Run, job: Job, kinds: Mapping[str, int], said: Letter) -> None:
        """What leaves, for whoever has to answer for it; where it cannot be written nothing leaves."""
        about = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "run": here.folder.name, "round": job.round, "task": job.task}
        line = {**about, "exchange": job.keep, "kinds": dict(kinds), "bytes": len(said.body), "error": said.fields.get("error")}
        path = self.home / "sent.jsonl"
        with durable.naming(path), path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        durable.sync_file(path)
        words = ", ".join(f"{kind} {size:,} bytes" for kind, size in kinds.items()) or said.fields.get("error")
        self.say(f"round {job.round}, {job.task}: {words}")


@dataclass(eq=False)
class _Run:
    """A participant's part in one run."""

    folder: Path
    client: int
    engine: Engine
    population: Population

    @property
    def samples(self) -> int:
        """How many it trains on."""
        return int(self.population.partition.train.sizes[self.client])

    @property
    def tests(self) -> int:
        """How many it tests on."""
        partition = self.population.partition
        return len(partition.tests[int(partition.test_of[self.client])])

    def job(self, letter: Letter) -> Job:
        """The job in a letter, if it is one, and for this participant."""
        fields = {key: value for key, value in letter.fields.items() if key not in ("kind", "run", "sha")}
        if hashlib.sha256(letter.body).hexdigest() != letter.fields["sha"]:
            raise ValueError("a message that is not what was sent")
        _, job = job_of(dict(fields))
        if job.client != self.client:
            raise ValueError(f"a job for client {job.client!r:.20}, this is client {self.client}")
        for version in filter(None, (job.memory, job.keep if job.keep != "0" else None)):
            _matching(VERSION, version, "version")
        return job

    def _answer_file(self, job: Job) -> Path:
        return self.folder / "answers" / f"{job.keep}-{hashlib.sha256(job.task.encode()).hexdigest()[:8]}.json"

    def said(self, job: Job, mark: str) -> Letter | None:
        """What was said to the same question before; None where it was never asked, failed, or what it kept then is gone."""
        path = self._answer_file(job)
        try:
            head, _, body = path.read_bytes().partition(b"\n")
            past = json.loads(head)
        except (FileNotFoundError, ValueError):
            return None
        if not isinstance(past, dict):
            return None
        same = past.get("asked") == mark and past.pop("sha") == hashlib.sha256(body).hexdigest()
        there = past.get("kept") is None or memory_file(self.folder, self.client, past["kept"]).exists()
        return Letter(past, body) if same and there and past.get("error") is None else None

    def take_back(self, job: Job) -> None:
        """Forget what was said after this job, or to it: it was said from a memory that this job may write with other bits."""
        for path in _ours(self.folder / "answers", ANSWER) if job.task != EVALUATE else ():
            if _place(_exchange(path)) >= _place(job.keep):
                path.unlink()

    def remember(self, job: Job, said: Letter) -> None:
        """Keep an answer until it is certain that nobody asks again."""
        path = self._answer_file(job)
        durable.make_folder(path.parent)
        durable.write(path, json.dumps({**said.fields, "sha": hashlib.sha256(said.body).hexdigest()}).encode() + b"\n", said.body)
        for old in sorted(_ours(path.parent, ANSWER), key=lambda each: _place(_exchange(each)))[:-ANSWERS]:
            if old != path:
                old.unlink(missing_ok=True)

    def _forget(self, job: Job, version: str) -> None:
        """Old versions go, but for what this job started from and left, and what the server's last two checkpoints name."""
        files = sorted(_ours(self.folder / "memory", MEMORY), key=lambda path: _place(_version(path)))
        guests = [path for path in files if path.name.endswith("-guest.safetensors")]  # they are for one round only
        lasting = [path for path in files if path not in guests]
        needed = {memory_file(self.folder, self.client, each) for each in (job.memory, version) if each is not None}
        for round in (job.round - 1, job.round - 2):
            needed |= set([path for path in lasting if _place(_version(path))[0] <= round][-1:])
        for old in (*guests[:-KEPT], *lasting[:-KEPT]):
            if old not in needed:
                old.unlink(missing_ok=True)

    def keep(self, job: Job, version: str | None) -> dict[str, str]:
        """See that what it keeps is on the disk; its digest, for the server's receipt."""
        if version is None or version == job.memory:
            return {}
        path = memory_file(self.folder, self.client, version)
        durable.sync_file(path)
        durable.sync_folder(path.parent)
        self._forget(job, version)
        return {"digest": read_memory(self.folder, self.client, version).digest()}


def _as_here(experiment: Experiment, population: Population, client: int) -> Experiment:
    """The experiment if everybody had the model that this participant has: what would leave it is found by that."""
    own = population.plan.architectures[population.architecture_of(client)]
    return experiment if set(experiment.model) == {own} else experiment.replace(model=(own,), models_by="turn")


def _kinds(reply: Buffer) -> dict[str, int]:
    """Kinds of content in one of its own replies, and their bytes."""
    return kinds_of(decode(reply, Limits(bytes=2**40, header=2**30, entries=2**30)))


def _place(version: str) -> tuple[int, ...]:
    """Round and exchange of a version; what keeps nothing has none, and is before all others."""
    return tuple(map(int, version.split("-")[:2]))


def _exchange(path: Path) -> str:
    """Of an answer's file."""
    return path.name.rpartition("-")[0]


def _version(path: Path) -> str:
    """Of a memory's file."""
    return path.name.split(".")[1]


def _matching(pattern: re.Pattern[str], value: object, what: str) -> str:
    if isinstance(value, str) and pattern.fullmatch(value):
        return value
    raise ValueError(f"a {what} called {value!r:.60}")


def _refusal(why: str) -> Letter:
    error = TaskError(why)
    return Letter({"error": str(error), "trace": "", "seconds": 0.0, "fatal": False})


def _ours(folder: Path, pattern: re.Pattern[str]) -> list[Path]:
    """The files of a folder that we have written; what else lies there is nobody's business."""
    return [path for path in sorted(folder.iterdir()) if pattern.fullmatch(path.name)] if folder.is_dir() else []
