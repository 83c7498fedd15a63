"""The live Federation: it turns a method's asks into jobs, counts every byte, admits replies, and measures models."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from coterie.engines.engine import MEASURE, Engine, Job, Outcome, RunContext, TaskError
from coterie.engines.worker import memory_file
from coterie.ledger import Ledger
from coterie.method import Federation, Reply
from coterie.record import EMPTY, Record, RecordError, decode, encode
from coterie.running.admission import Admission, QuorumError, rejection
from coterie.seeds import generator
from coterie.site import SERVER, SERVER_PROTOCOLS, ModelCache, Observation
from coterie.training.score import Scores

__all__ = ["Coordinator", "Replies", "draw_cohort"]

Objector = Callable[[int, Record], str | None]


SPAN = 2000
"""Examples of the server's test set in one job; fixed, so that sums do not depend on the number of workers."""


def draw_cohort(seed: int, round: int, clients: int, size: int) -> tuple[int, ...]:
    """The clients of a round, in a seeded order that no engine influences.

    >>> draw_cohort(0, 1, clients=5, size=5) == tuple(range(5)), len(set(draw_cohort(0, 1, clients=100, size=10)))
    (True, 10)
    """
    if size == clients:
        return tuple(range(clients))
    return tuple(torch.randperm(clients, generator=generator(seed, round, "cohort"))[:size].tolist())


class Replies(Iterator[Reply]):
    """Admitted replies in the clients' order, each handed over as soon as it and those before it are there."""

    def __init__(self, source: Iterator[Reply]) -> None:
        self._source = source
        self._waiting: list[Reply] = []

    def __next__(self) -> Reply:
        return self._waiting.pop(0) if self._waiting else next(self._source)

    def drain(self) -> None:
        """Wait for whatever is still out."""
        self._waiting.extend(self._source)


@dataclass(eq=False)
class Coordinator(Federation):
    """The Federation that a run hands to its method."""

    context: RunContext
    engine: Engine
    ledger: Ledger
    admission: Admission
    clients: Sequence[int]
    memories: dict[int, str] = field(default_factory=dict)
    """Client -> the version of what it keeps."""
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Where the time of this round went."""

    def __post_init__(self) -> None:
        self.population = self.context.population
        self._bench = ModelCache()
        self._sent = 0
        self._stale: list[Path] = []
        self._open: Replies | None = None
        self._observed: dict[int, list[Observation]] = {}
        self.context.live.mkdir(parents=True, exist_ok=True)
        self.begin(0, (), ())

    def begin(self, round: int, cohort: Sequence[int], wanted: Sequence[str]) -> None:
        """Enter a round."""
        self.round, self.cohort, self.wanted = round, cohort, tuple(wanted)
        self.server = self.population.site(SERVER, round, self._bench, exhibiting=bool(wanted))
        self.server.architecture = self.context.method.network(self.server.architecture, SERVER)
        self._asked = 0
        self._observed = {}
        self.seconds.clear()

    def finish(self) -> None:
        """Wait for replies that the method did not look at."""
        if self._open is not None:
            self._open.drain()
            self._open = None
        self._exhibit(None, self.server.shown)
        self.server.shown.clear()

    def ask(
        self,
        task: str,
        message: Record | Mapping[int, Record] = EMPTY,
        *,
        like: Record | Mapping[int, Record] = EMPTY,
        check: Callable[[Record], str | None] = lambda reply: None,
        clients: Sequence[int] | None = None,
    ) -> Replies:
        self.finish()
        asked = tuple(self.cohort if clients is None else clients)
        messages = self._post(task, message, asked)
        self._asked += 1
        observed = tuple(set(self.wanted) & set(self.context.method.observes))
        sizes = self.population.partition.train.sizes
        jobs = [
            Job(
                client=client,
                task=task,
                round=self.round,
                message=str(messages[client]),
                memory=self.memories.get(client),
                keep=f"{self.round}-{self._asked}",
                wanted=observed,
                exhibiting=bool(self.wanted),
                cost=int(sizes[client]),
            )
            for client in asked
        ]

        def object_to(client: int, reply: Record) -> str | None:
            return rejection(reply, like if isinstance(like, Record) else like[client], self.admission) or check(reply)

        self._open = Replies(self._admitted(task, jobs, object_to, set(messages.values())))
        return self._open

    def charge(self, client: int, direction: Literal["up", "down"], kind: str, payload: int) -> None:
        self._book("setup", client, direction, {kind: payload}, payload)

    def _post(self, task: str, message: Record | Mapping[int, Record], clients: Sequence[int]) -> dict[int, Path]:
        """Encode each distinct message once, lay it where clients can map it, and book it for every receiver."""
        if isinstance(message, Record):
            path, framed = self._lay(message)
            messages = dict.fromkeys(clients, (path, framed, message))
        else:
            distinct = {id(message[client]): message[client] for client in clients}
            laid = {key: self._lay(content) for key, content in distinct.items()}
            messages = {client: (*laid[id(message[client])], message[client]) for client in clients}
        for client, (_, framed, content) in messages.items():
            self._book(task, client, "down", self._kinds(content), framed, self._samples(content))
        return {client: path for client, (path, _, _) in messages.items()}

    def _lay(self, message: Record) -> tuple[Path, int]:
        data = encode(message)
        self._sent += 1
        path = self.context.live / f"message-{self._sent}.safetensors"
        path.write_bytes(data)
        return path, len(data)

    def _admitted(self, task: str, jobs: Sequence[Job], object_to: Objector, messages: set[Path]) -> Iterator[Reply]:
        admitted, objections = 0, []
        try:
            for outcome in self._timed(self.engine.deliver(jobs)):
                reply, problem = self._open_reply(task, outcome, object_to)
                if problem is None:
                    admitted += 1
                    yield Reply(outcome.client, reply)
                else:
                    self._reject(task, outcome.client, problem)
                    objections.append(f"client {outcome.client}: {problem.splitlines()[0]}")
        finally:
            for path in messages:
                path.unlink(missing_ok=True)
        if admitted < (needed := self.admission.needed(len(jobs))):
            why = "; ".join(objections[:3])
            raise QuorumError(f"round {self.round}, task '{task}': {admitted} of {len(jobs)} replies admitted, {needed} needed; {why}")

    def _timed(self, outcomes: Iterator[Outcome]) -> Iterator[Outcome]:
        """The same outcomes, with the wait for each on the clock."""
        while True:
            began = time.perf_counter()
            outcome = next(outcomes, None)
            self.seconds["clients"] += time.perf_counter() - began
            if outcome is None:
                return
            self.seconds["work"] += outcome.seconds
            yield outcome

    def _open_reply(self, task: str, outcome: Outcome, object_to: Objector) -> tuple[Record, str | None]:
        """Book what came, keep what the client kept, and say what is wrong with its reply, if anything."""
        if outcome.error is not None:
            return EMPTY, self._fault(outcome.error)
        self._remember(outcome.client, outcome.kept)
        self._observed.setdefault(outcome.client, []).extend(outcome.observations)
        self._exhibit(outcome.client, outcome.shown)
        try:
            reply = decode(outcome.reply)
        except RecordError as error:
            self._book(task, outcome.client, "up", {"malformed": 0}, len(outcome.reply))
            return EMPTY, str(error)
        self._book(task, outcome.client, "up", self._kinds(reply), len(outcome.reply), self._samples(reply))
        return reply, object_to(outcome.client, reply)

    def _exhibit(self, client: int | None, shown: Mapping[str, Any]) -> None:
        for name, values in shown.items():
            how = asdict(self.context.method.exhibits[name])
            self.ledger.write("exhibit", round=self.round, client=client, name=name, **how, values=values)

    def _fault(self, error: TaskError) -> str:
        """A client that failed: the end of the run, or only of its part in it."""
        if self.admission.faults == "stop":
            raise error
        return str(error)

    def _reject(self, task: str, client: int, reason: str) -> None:
        self.ledger.write("rejected", round=self.round, task=task, client=client, reason=reason)

    def _remember(self, client: int, version: str | None) -> None:
        before = self.memories.pop(client, None)
        if before not in (None, version):
            self._stale.append(memory_file(self.context.folder, client, before))
        if version is not None:
            self.memories[client] = version

    def replaced(self) -> list[Path]:
        """The memories that newer ones have replaced since this was last asked: the last checkpoint may still need them."""
        stale, self._stale = self._stale, []
        return stale

    def _kinds(self, record: Record) -> dict[str, int]:
        """Payload bytes by kind of content; a message without tensors still is one of kind 'control'."""
        names = self.context.method.kinds
        sizes: dict[str, int] = {}
        for group in record.groups:
            weight = Record({group: record[group]}).payload_bytes
            if weight:
                kind = names.get(group, group)
                sizes[kind] = sizes.get(kind, 0) + weight
        return sizes or {"control": 0}

    def _samples(self, record: Record) -> dict[str, int]:
        """By kind of content, how many samples it tells of, where the method says that it has a row for each."""
        method = self.context.method
        rows = {group: [*Record({group: record[group]}).tensors.values()] for group in method.per_sample if group in record}
        return {method.kinds.get(group, group): max(len(each) for each in tensors) for group, tensors in rows.items() if tensors}

    def _book(
        self, task: str, client: int, direction: str, kinds: Mapping[str, int], framed: int, samples: Mapping[str, int] | None = None
    ) -> None:
        """One line for each kind of content; the framing is on the first."""
        overhead = framed - sum(kinds.values())
        for kind, payload in kinds.items():
            sizes = {"payload_bytes": payload, "framed_bytes": payload + overhead}
            sizes |= {"samples": samples[kind]} if samples and kind in samples else {}
            self.ledger.write("exchange", round=self.round, task=task, client=client, direction=direction, kind=kind, **sizes)
            overhead = 0

    def measure(self, state: Record, clients: Sequence[int]) -> dict[str, float]:
        """Evaluate under every protocol wanted this round, write it down, and give the mean accuracies."""
        began = time.perf_counter()
        observed = dict(self._observed)
        at_server = tuple(p for p in self.wanted if p in SERVER_PROTOCOLS)
        at_clients = tuple(p for p in self.wanted if p not in SERVER_PROTOCOLS and p not in self.context.method.observes)
        path, _ = self._lay(state)
        if at_server:
            length = len(self.server.test)
            spans = [(start, min(start + SPAN, length)) for start in range(0, length, SPAN)]
            self._visit([self._look(SERVER, path, at_server, span) for span in spans], observed)
        if at_clients:
            self._visit([self._look(client, path, at_clients) for client in clients], observed)
        path.unlink()
        headline = {protocol: self._write_down(protocol, observed) for protocol in self.wanted}
        self.seconds["evaluation"] += time.perf_counter() - began
        return {protocol: value for protocol, value in headline.items() if value is not None}

    def _look(self, client: int, message: Path, wanted: tuple[str, ...], span: tuple[int, int] | None = None) -> Job:
        return Job(client, MEASURE, self.round, str(message), self.memories.get(client), wanted=wanted, span=span)

    def _visit(self, jobs: Sequence[Job], observed: dict[int, list[Observation]]) -> None:
        for outcome in self.engine.deliver(jobs):
            if outcome.error is None:
                observed.setdefault(outcome.client, []).extend(outcome.observations)
            else:
                self._reject(MEASURE, outcome.client, self._fault(outcome.error))

    def _write_down(self, protocol: str, observed: Mapping[int, Sequence[Observation]]) -> float | None:
        """One line a client and metric, then the mean over clients; the server's own model has no client."""
        per_client: dict[int, dict[str, float]] = {}
        for client in sorted(observed):
            by_domain: dict[str | None, Scores] = {}
            for seen in observed[client]:
                if seen.protocol == protocol:
                    by_domain[seen.domain] = by_domain.get(seen.domain, Scores()) + seen.scores
            if by_domain:
                per_client[client] = self._write_client(protocol, client, by_domain)
        if not per_client:
            return None
        if SERVER in per_client:
            return per_client[SERVER]["accuracy"]
        means = _mean_of(list(per_client.values()))
        self._write_metrics(protocol, None, means)
        return means["accuracy"]

    def _write_client(self, protocol: str, client: int, by_domain: Mapping[str | None, Scores]) -> dict[str, float]:
        who = None if client == SERVER else client
        if protocol in ("intra", "inter"):
            for domain, scores in by_domain.items():
                self._write_metrics("domain", who, scores.values(), domain=domain)
        values = _mean_of([scores.values() for scores in by_domain.values()])
        self._write_metrics(protocol, who, values)
        return values

    def _write_metrics(self, protocol: str, client: int | None, values: Mapping[str, float], **more: str | None) -> None:
        for metric, value in values.items():
            self.ledger.write("evaluation", round=self.round, protocol=protocol, client=client, metric=metric, value=value, **more)


def _mean_of(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {metric: sum(row[metric] for row in rows) / len(rows) for metric in rows[0]}
