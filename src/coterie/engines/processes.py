"""The default engine: resident workers, one torch thread each, on all cores of this machine.

Workers map the pool and the messages from files and answer over pipes with JSON and safetensors; no tensor is pickled.
A client goes to the worker that served it before where that costs no waiting (its memory is warm there), the longest jobs go
first, and whoever is idle takes what is left. A worker that dies is replaced and its jobs are done again: the memory they
start from is on disk, so the bits are the same.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import multiprocessing
import signal
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from coterie.engines.engine import Engine, Job, Outcome, RunContext, TaskError, cores
from coterie.engines.worker import Memories, Performer
from coterie.errors import RunError
from coterie.method import Method
from coterie.population import Plan, Population
from coterie.site import Observation, Visit, Work
from coterie.training.score import Scores

__all__ = ["Processes"]

DEATHS_ALLOWED = 3
"""How often one job may take its worker down before the run gives up on it."""
AHEAD = 2
"""Jobs a worker holds at once, so that it never waits for the parent."""


def serve(pipe: Connection, method: Method, plan: Plan, folder: Path, budget: int) -> None:
    """A worker's life: perform jobs until the pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    torch.set_num_threads(1)
    performer = Performer(method, Population.open(plan, folder / "live" / "arrays"), Memories(folder, budget))
    while True:
        try:
            ticket, job = _job(pipe.recv_bytes())
        except (EOFError, OSError):
            return
        outcome = performer.perform(job)
        try:
            pipe.send_bytes(_header(ticket, outcome))
            pipe.send_bytes(outcome.reply)
        except OSError:  # the parent is gone
            return


def _job(data: bytes) -> tuple[int, Job]:
    fields = json.loads(data)
    ticket, visit = fields.pop("ticket"), fields["visit"]
    wanted = Visit(tuple(visit["protocols"]), visit["logging"], tuple(visit["span"]) if visit["span"] else None)
    return ticket, Job(**{**fields, "visit": wanted})


def _header(ticket: int, outcome: Outcome) -> bytes:
    fields = dataclasses.asdict(dataclasses.replace(outcome, reply=b"", error=None)) | {"ticket": ticket, "reply": None}
    if outcome.error is not None:
        fields |= {"error": str(outcome.error), "trace": "".join(traceback.format_exception(outcome.error.__cause__))}
    return json.dumps(fields).encode()


def _outcome(header: bytes, reply: bytes) -> tuple[int, Outcome]:
    fields = json.loads(header)
    ticket, trace = fields.pop("ticket"), fields.pop("trace", "")
    if fields["error"] is not None:
        fields["error"] = TaskError(fields["error"])
        fields["error"].add_note(trace)
    seen = [Observation(each["protocol"], Scores(**each["scores"]), each["domain"]) for each in fields["observations"]]
    return ticket, Outcome(**{**fields, "reply": reply, "observations": seen, "work": [Work(**each) for each in fields["work"]]})


@dataclasses.dataclass(eq=False)
class Worker:
    """The parent's view of one worker."""

    process: BaseProcess
    pipe: Connection
    doing: dict[int, Job] = dataclasses.field(default_factory=dict)
    """Jobs sent and not answered, by ticket, oldest first."""


class Processes(Engine):
    """Resident worker processes: the experiment's `engine.workers`, or one for each core.

    >>> from coterie import Experiment
    >>> Experiment.load("digits-two-class", ["engine.workers=2"]).engine.build().workers
    2
    """

    def __init__(self, workers: int | None = None) -> None:
        self.workers = workers or cores()
        self._processes: list[Worker] = []
        self._served: dict[int, Worker] = {}
        self._tickets = itertools.count()
        self._starting = multiprocessing.get_context("forkserver")
        # Workers are forked from a server that has imported everything; torch's optimisers would import _dynamo, for seconds.
        self._starting.set_forkserver_preload(["torch._dynamo", "coterie.engines.processes"])

    def warm(self) -> None:
        forkserver.ensure_running()

    @property
    def pids(self) -> list[int]:
        """The workers' process ids."""
        return [worker.process.pid or 0 for worker in self._processes]

    def open(self, context: RunContext) -> None:
        self._context = context
        context.population.save(context.live / "arrays")
        self._processes = [self._start_worker() for _ in range(self.workers)]

    def close(self) -> None:
        for worker in self._processes:
            worker.pipe.close()
        for worker in self._processes:
            worker.process.join(timeout=0.5)
            worker.process.kill()  # busy with a job that nobody waits for any more
            worker.process.join()
        self._processes = []

    def deliver(self, jobs: Sequence[Job]) -> Iterator[Outcome]:
        queue = {next(self._tickets): job for job in sorted(jobs, key=lambda job: -job.cost)}
        order = {id(job): ticket for ticket, job in queue.items()}
        self._hand_out(queue)
        return self._outcomes([order[id(job)] for job in jobs], queue)

    def _outcomes(self, tickets: list[int], queue: dict[int, Job]) -> Iterator[Outcome]:
        """Outcomes in the order of `tickets`, while workers are kept busy with the rest of the queue."""
        done: dict[int, Outcome] = {}
        deaths: Counter[int] = Counter()
        for ticket in tickets:
            while ticket not in done:
                self._collect(queue, done, deaths)
                self._hand_out(queue)
            yield done.pop(ticket)

    def _hand_out(self, queue: dict[int, Job]) -> None:
        """Give work to whoever has too little of it: a client whose memory is warm there, else the longest job."""
        for worker in sorted(self._processes, key=lambda each: len(each.doing)):
            while queue and len(worker.doing) < AHEAD:
                warm = (t for t, job in queue.items() if job.memory and self._served.get(job.client) is worker)
                ticket = next(warm, next(iter(queue)))
                job = worker.doing[ticket] = queue.pop(ticket)
                self._served[job.client] = worker
                with suppress(OSError):  # a dead worker is found, and replaced, by `_collect`
                    worker.pipe.send_bytes(json.dumps({"ticket": ticket, **dataclasses.asdict(job)}).encode())

    def _collect(self, queue: dict[int, Job], done: dict[int, Outcome], deaths: Counter[int]) -> None:
        """Wait until some worker answers or dies."""
        ready = wait([worker.pipe for worker in self._processes])
        for worker in [each for each in self._processes if each.pipe in ready]:
            try:
                ticket, outcome = _outcome(worker.pipe.recv_bytes(), worker.pipe.recv_bytes())
            except (EOFError, OSError):
                self._replace(worker, queue, deaths)
            else:
                worker.doing.pop(ticket)
                done[ticket] = outcome  # of a delivery that was given up, nobody will ask for it

    def _replace(self, worker: Worker, queue: dict[int, Job], deaths: Counter[int]) -> None:
        """Hire a new worker for a dead one, and put its jobs back at the head of the queue."""
        worker.pipe.close()
        worker.process.join()
        unfinished = dict(worker.doing)
        for ticket, job in list(unfinished.items())[:1]:
            deaths[ticket] += 1
            if deaths[ticket] >= DEATHS_ALLOWED:
                raise RunError(f"{job}: its worker died {DEATHS_ALLOWED} times (exit code {worker.process.exitcode}); out of memory?")
        self._processes[self._processes.index(worker)] = self._start_worker()
        later = dict(queue)
        queue.clear()
        queue.update(unfinished | later)

    def _start_worker(self) -> Worker:
        ours, theirs = self._starting.Pipe()
        context = self._context
        arguments = (theirs, context.method, context.population.plan, context.folder, context.memory_budget)
        process = self._starting.Process(target=serve, args=arguments, daemon=True)
        process.start()
        theirs.close()
        return Worker(process, ours)
