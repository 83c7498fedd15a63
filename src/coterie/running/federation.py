"""The Federation that a run hands to its method: turns asks into jobs, counts every byte, admits replies.

In a round that is evaluated, clients of the evaluation set that were not drawn take part as guests: they run the same tasks from the same
messages, so that the model they would have exists and can be measured. Nothing they say reaches the method, nothing they keep outlives
the round, no byte of theirs is counted, and their training is in the ledger as evaluation.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from coterie.engines.engine import Engine, Job, Outcome, RunContext, brief
from coterie.engines.worker import memory_file
from coterie.ledger import Ledger
from coterie.method import Federation, admit
from coterie.protocols import PROTOCOLS
from coterie.record import EMPTY, Record, encode
from coterie.replies import Replies, Reply
from coterie.running.admission import Admission, Expected, QuorumError
from coterie.running.delivery import Delivery
from coterie.running.stacks import in_stacks, together
from coterie.running.testimony import Measures, fault_of, sums_of
from coterie.running.traffic import Traffic, kinds_of
from coterie.site import SERVER, ModelCache, Observation, Visit, Work
from coterie.training.score import metric_name

__all__ = ["Coordinator"]

LEARNING_RATE = "; is training.optimiser.lr too large?"
"""What to look at first where training ends in numbers that are none."""
REASON = 1000
"""Characters of a reason in the ledger."""
COPIES = 16
"""Networks that a reply or a memory has room for: a client may keep several, and an optimiser's state for each."""


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
        population = self.context.population
        self.architectures = population.plan.architectures
        self.held: list[int] = population.partition.train.sizes.tolist()
        """Client -> how many samples it registered with."""
        metrics = frozenset(map(metric_name, population.plan.metrics))
        self._measures = Measures(population.pool.classes, metrics, frozenset(population.pool.domains))
        self.traffic = Traffic(self.ledger)
        self._cache = ModelCache(population.device)
        self._sent = 0
        self._stale: list[Path] = []
        self._passing: list[Path] = []
        self._open: Replies | None = None
        self.context.live.mkdir(parents=True, exist_ok=True)
        self.begin(0, (), (), ())

    def architecture_of(self, client: int) -> int:
        return self.context.population.architecture_of(client)

    def begin(self, round: int, cohort: Sequence[int], protocols: Sequence[str], evaluated: Sequence[int]) -> None:
        """Enter a round, after which some protocols are evaluated, those about clients at the clients named."""
        self.round, self.cohort, self.protocols = round, tuple(cohort), tuple(protocols)
        self.evaluated = frozenset(evaluated)
        in_training = any(PROTOCOLS[name].in_training for name in protocols)
        self._guests = {client: self.memories.get(client) for client in evaluated if client not in cohort} if in_training else {}
        self.present = (*self.cohort, *self._guests)
        self.server = self.context.population.site(SERVER, round, self._cache, Visit(logging=bool(protocols)))
        self.observed: dict[int, list[Observation]] = defaultdict(list)
        self._asked = 0
        self.seconds.clear()

    def finish(self) -> None:
        """Wait for replies that the method did not look at, and write down what the server did by itself."""
        if self._open is not None:
            self._open.drain()
            self._open = None
        self._write_logs(None, self.server.logs)
        self._write_work("server", "server", "training", [self.server.work])
        self.server.logs.clear()
        self.server.work.clear()

    def ask(
        self,
        task: str,
        message: Record | Mapping[int, Record] = EMPTY,
        *,
        like: Record | Mapping[int, Record] = EMPTY,
        check: Callable[[Record], str | None] = admit,
        clients: Sequence[int] | None = None,
        keep_guests: bool = False,
    ) -> Replies:
        self.finish()
        self._asked += 1
        asked = tuple(
            client for client in (self.cohort if clients is None else clients) if isinstance(message, Record) or client in message
        )
        guests = self._guests_of(message) if clients is None else ()
        files = self._save_messages(task, message, asked, guests)
        expected = self._expected(like, message, (*asked, *guests))
        jobs = [self._job(task, client, files[client], expected[client]) for client in (*asked, *guests)]
        guests_said: dict[int, Record] = {}
        delivery = Delivery(task, jobs, len(asked), expected, check, guests_said if keep_guests else None)
        self._open = delivery.replies = Replies(self._admitted(delivery, set(files.values())), guests_said)
        return self._open

    def _expected(
        self, like: Record | Mapping[int, Record], message: Record | Mapping[int, Record], clients: Sequence[int]
    ) -> dict[int, Expected]:
        """What each client's reply must match, made once for all who have the same."""
        pairs = {client: (_for(client, like), _for(client, message)) for client in clients}
        made = {(id(each), id(sent)): Expected(each, sent) for each, sent in pairs.values()}
        return {client: made[id(each), id(sent)] for client, (each, sent) in pairs.items()}

    def _guests_of(self, message: Record | Mapping[int, Record]) -> tuple[int, ...]:
        """Guests for whom there is a message; who gets none leaves."""
        if not isinstance(message, Record):
            self._guests = {client: version for client, version in self._guests.items() if client in message}
        return tuple(self._guests)

    def _job(self, task: str, client: int, message: Path, expected: Expected) -> Job:
        guest = client in self._guests
        protocols = tuple(name for name in self.protocols if PROTOCOLS[name].in_training) if client in self.evaluated else ()
        return Job(
            client=client,
            task=task,
            round=self.round,
            message=str(message),
            memory=self._guests[client] if guest else self.memories.get(client),
            keep=f"{self.round}-{self._asked}{'-guest' if guest else ''}",
            visit=Visit(protocols, logging=bool(self.protocols) and not guest),
            cost=self.held[client],
            deadline=self.admission.patience,
            limit=self.admission.limit(expected.bytes(self.held[client]) + COPIES * self._largest_network),
        )

    @cached_property
    def _largest_network(self) -> int:
        """Bytes of the largest of the clients' networks."""
        plan, pool = self.context.population.plan, self.context.population.pool
        made = [plan.method.network(each, 0) for each in dict.fromkeys(plan.architectures)]
        built = [self._cache.model(each, pool.shape, pool.classes, plan.dtype, "model") for each in made]
        return max(sum(int(value.nbytes) for value in net.state_dict().values()) for net in built)

    def _save_messages(
        self, task: str, message: Record | Mapping[int, Record], asked: Sequence[int], guests: Sequence[int]
    ) -> dict[int, Path]:
        """Encode each distinct message once, save it where clients can map it, and count it for every client that was asked."""
        everybody = (*asked, *guests)
        contents = dict.fromkeys(everybody, message) if isinstance(message, Record) else {client: message[client] for client in everybody}
        different = {id(content): content for content in contents.values()}
        saved = {at: (*self.save_message(content), kinds_of(content)) for at, content in different.items()}
        for client in asked:
            _, framed, kinds = saved[id(contents[client])]
            self.traffic.count(self.round, task, client, "down", kinds, framed)
        return {client: saved[id(content)][0] for client, content in contents.items()}

    def save_message(self, message: Record) -> tuple[Path, int]:
        """A file that clients can map, and its length."""
        data = encode(message)
        self._sent += 1
        path = self.context.live / f"message-{self._sent}.safetensors"
        path.write_bytes(data)
        return path, len(data)

    def _admitted(self, delivery: Delivery, files: set[Path]) -> Iterator[Reply]:
        try:
            yield from self._replies(delivery)
        finally:
            for path in files:
                path.unlink(missing_ok=True)
        self._write_work("clients", delivery.task, "training", delivery.work[0])
        self._write_work("clients", delivery.task, "evaluation", delivery.work[1])
        admitted, reasons = delivery.admitted, delivery.reasons
        if admitted < (needed := self.admission.needed(delivery.asked)):
            why = "; ".join(reasons[:3]) + (LEARNING_RATE if any(each.endswith("is not finite") for each in reasons) else "")
            raise QuorumError(
                f"round {self.round}, task '{delivery.task}': {admitted} of {delivery.asked} replies admitted, {needed} needed; {why}"
            )

    def _replies(self, delivery: Delivery) -> Iterator[Reply]:
        """Those that are let in, each by itself or, where nothing but a mean is wanted, the mean of a stack in their place."""
        groups = together(in_stacks(delivery.jobs, self.context.population.plan.training.stack, self.architecture_of, delivery.mean_of))
        outcomes, again = self._timed(self.engine.deliver([job for group in groups for job in group])), list[Job]()
        for group in groups:
            merged = list[tuple[Job, Outcome]]()
            for job, found in zip(group, outcomes, strict=False):
                outcome = self.judged(job, found)
                if delivery.is_guest(job):
                    self._hear_guest(delivery, job, outcome)
                elif outcome.part is None:
                    yield from self._let_in(delivery, job, outcome)
                else:
                    merged.append((job, outcome))
            mean = self._mean_of(delivery, merged) if len(merged) == len(group) else None
            if mean is not None:
                yield mean
            else:  # somebody of them failed, or must be looked at: each is asked for its own reply
                again += [replace(job, mean=None) for job, _ in merged]
        for job, found in zip(again, self._timed(self.engine.deliver(again) if again else iter(())), strict=False):
            yield from self._let_in(delivery, job, self.judged(job, found))

    def _mean_of(self, delivery: Delivery, came: Sequence[tuple[Job, Outcome]]) -> Reply | None:
        """The mean of a stack, if all its clients are let in without a look at what each of them replied."""
        last, said = came[-1]
        mean, misfit = delivery.read(last, said.reply, self.held[last.client])
        if misfit is not None or not delivery.are_plain(came, self.admission, self.held):
            return None
        kinds, examples = kinds_of(mean), 0
        for job, outcome in came:
            assert outcome.part is not None
            self._hear(delivery, job, outcome)
            self.traffic.count(self.round, delivery.task, job.client, "up", kinds, outcome.part.length)
            examples += int(outcome.part.scalars.get("examples", 0))
        delivery.admitted += len(came)
        return Reply(last.client, Record({**mean.tensors, "examples": examples}), len(came))

    def _let_in(self, delivery: Delivery, job: Job, outcome: Outcome) -> list[Reply]:
        """A client's reply, if it is let in."""
        reply, reason = self._open_reply(delivery, job, outcome)
        if reason is None:
            delivery.admitted += 1
            return [Reply(job.client, reply)]
        self.reject(delivery.task, job.client, reason)
        delivery.reasons.append(f"client {job.client}: {brief(reason).partition(chr(10))[0]}")
        return []

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

    def judged(self, job: Job, outcome: Outcome) -> Outcome:
        """An outcome as the server takes it: one that is late, or in which a client says impossible things, has failed."""
        if outcome.error is not None:
            return outcome
        if job.deadline is not None and outcome.seconds > job.deadline:
            return job.late(outcome.seconds)
        wrong = fault_of(job, outcome, self._measures)
        return outcome if wrong is None else job.failed(wrong, outcome.seconds)

    def _open_reply(self, delivery: Delivery, job: Job, outcome: Outcome) -> tuple[Record, str | None]:
        """Count what came, keep what the client kept, and say what is wrong with its reply, if anything."""
        if outcome.error is not None:
            return EMPTY, self.fault(outcome)
        self._hear(delivery, job, outcome)
        reply, misfit = delivery.read(job, outcome.reply, self.held[job.client])
        if misfit is not None:
            self.traffic.count(self.round, delivery.task, job.client, "up", {"malformed": 0}, len(outcome.reply))
            return EMPTY, misfit
        per_sample = delivery.expected[job.client].per_sample
        self.traffic.message(self.round, delivery.task, job.client, "up", reply, len(outcome.reply), per_sample)
        return reply, delivery.rejection(job, reply, self.admission, self.held[job.client])

    def _hear(self, delivery: Delivery, job: Job, outcome: Outcome) -> None:
        """Write down what a client did and said beside its reply."""
        delivery.work[0].append(outcome.work)
        self._remember(job.client, outcome.kept)
        self.observed[job.client].extend(outcome.observations)
        self._write_logs(job.client, outcome.logs)

    def _hear_guest(self, delivery: Delivery, job: Job, outcome: Outcome) -> None:
        """A guest's models were measured; what it keeps is kept until the end of the round, what it says is put aside."""
        delivery.work[1].append(outcome.work)
        if outcome.error is not None:
            self._turn_away(delivery.task, job.client, self.fault(outcome))
            return
        self.observed[job.client].extend(outcome.observations)
        if outcome.kept not in (None, self.memories.get(job.client)):
            self._passing.append(memory_file(self.context.folder, job.client, outcome.kept))
        self._guests[job.client] = outcome.kept
        if delivery.guests is not None:
            held = self.held[job.client]
            reply, wrong = delivery.read(job, outcome.reply, held)
            wrong = wrong or delivery.rejection(job, reply, self.admission, held)
            if wrong is None:
                delivery.guests[job.client] = reply
            else:
                self._turn_away(delivery.task, job.client, wrong)

    def _turn_away(self, task: str, guest: int, reason: str) -> None:
        self.reject(task, guest, reason)
        self._guests.pop(guest)

    def fault(self, outcome: Outcome) -> str:
        """A client that failed: the end of the run, or only of its part in it."""
        assert outcome.error is not None
        if self.admission.faults == "stop" or outcome.fatal or outcome.client == SERVER:
            raise outcome.error
        return str(outcome.error)

    def reject(self, task: str, client: int, reason: str) -> None:
        """Put a reply that is not used, and why, on the ledger."""
        self.ledger.write("rejected", round=self.round, task=task, client=client, reason=brief(reason, REASON))

    def _write_logs(self, client: int | None, logs: Mapping[str, Any]) -> None:
        for name, values in logs.items():
            self.ledger.write("log", round=self.round, client=client, name=name, values=values)

    def _write_work(self, site: str, task: str, purpose: str, done: Sequence[Sequence[Work]]) -> None:
        """How much was trained for a task, and, as part of the setup, how much before it."""
        for before, name in ((True, "pretrain"), (False, task)):
            work = [[each for each in one if (each.purpose == "pretrain") == before] for one in done]
            if any(work):
                self.ledger.write("training", round=0 if before else self.round, task=name, purpose=purpose, site=site, **sums_of(work))

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

    def passing(self) -> list[Path]:
        """The memories of guests since this was last asked: no checkpoint needs them, and so nobody waits for them to be on the disk."""
        passing, self._passing = self._passing, []
        return passing


def _for(client: int, given: Record | Mapping[int, Record]) -> Record:
    """What is given for all, or for this one."""
    return given if isinstance(given, Record) else given.get(client, EMPTY)
