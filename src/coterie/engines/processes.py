"""The default engine: resident workers, one torch thread each, on all cores of this machine.

Workers map the pool and the messages from files and answer with JSON over sockets and safetensors in memory that the parent sees too; no
tensor is pickled.
A client goes to the worker that served it before where that costs no waiting (its memory is warm there), the longest jobs go
first, and whoever is idle takes what is left.

A worker that dies is replaced and its jobs are done again: the memory they start from is on disk, so the bits are the same. A job that
takes down its worker again and again has failed, one that is late is stopped together with its worker, and nobody else notices.
"""

from __future__ import annotations

import itertools
import math
import multiprocessing
import os
import select
import signal
import socket
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from multiprocessing.process import BaseProcess
from typing import Any, ClassVar

from coterie import forking
from coterie.engines.engine import FRAMING, Engine, Job, Outcome, RunContext, cores
from coterie.engines.places import Places, share
from coterie.engines.serving import fields_of, outcome_of, serve
from coterie.errors import RunError
from coterie.framing import Room, ends, receive, send
from coterie.wire import Buffer

__all__ = ["UNGUARDED", "Processes", "Unguarded", "leave_unguarded"]

TRIES = 3
"""How often one job may take its worker down before it has failed: it may have been somebody else's doing."""
STILLBORN = 10
"""How many workers in a row may die before they are ready."""
AHEAD = 2
"""Jobs a worker holds at once, so that it never waits for the parent."""
GRACE = 1.0
"""Seconds in which a worker that was told to end, or has hung up, may do so by itself."""
UNGUARDED = 78
"""The exit code of a worker that, on its way in, ran the user's script and met a run there."""


class Unguarded(RunError):
    """A worker met a second run in the user's script, and so there can be none."""

    def __init__(self) -> None:
        super().__init__("a worker met a second run in your script: put what the script does under `if __name__ == '__main__':`")


def leave_unguarded() -> None:
    """End this process if it is a worker that runs the user's script to know its classes, and has met a run there."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        os._exit(UNGUARDED)


@dataclass(eq=False)
class Worker:
    """The parent's view of one worker."""

    process: BaseProcess
    end: socket.socket
    places: Places | None
    doing: dict[int, Job] = field(default_factory=dict)
    """Jobs sent and not answered, by ticket, oldest first."""
    ready: bool = False
    since: float = 0.0
    """When it began the oldest of its jobs."""

    @property
    def due(self) -> float:
        """When it must have answered."""
        job = next(iter(self.doing.values()), None)
        if job is None or job.deadline is None or not self.ready:
            return inf
        return self.since + job.deadline * max(len(job.stack), 1)

    def dismiss(self) -> None:
        """See to it that it is gone."""
        self.end.close()
        self.process.kill()
        self.process.join()

    def ending(self) -> str:
        """How it came to its end, in words; one that has hung up and does not end is ended."""
        self.process.join(timeout=GRACE)
        code = self.process.exitcode
        self.dismiss()
        if code is None:
            return "it hung up"
        if code >= 0:
            return f"exit code {code}"
        return "SIGKILL; out of memory?" if code == -signal.SIGKILL else signal.Signals(-code).name


class Processes(Engine):
    """Resident worker processes: the experiment's `engine.workers`, or one for each core.

    >>> from coterie import Experiment
    >>> Experiment.load("digits-two-class", ["engine.workers=2"]).engine.build().workers
    2
    """

    isolated: ClassVar[bool] = True

    def __init__(self, workers: int | None = None) -> None:
        self.workers = workers or cores()
        self._processes: list[Worker] = []
        self._served: dict[int, Worker] = {}
        self._tickets = itertools.count()
        self._stillborn = 0
        self._room = Room()
        self._starting = multiprocessing.get_context("forkserver")

    def warm(self) -> None:
        leave_unguarded()
        forking.begin()

    @property
    def pids(self) -> list[int]:
        """The workers' process ids."""
        return [worker.process.pid or 0 for worker in self._processes]

    def open(self, context: RunContext) -> None:
        self._context = context
        context.population.save(context.live / "arrays")
        self._processes = [self._start_worker(number) for number in range(self.workers)]

    def close(self) -> None:
        for worker in self._processes:
            worker.end.close()
            if worker.doing:  # jobs that nobody waits for any more
                worker.process.kill()
        for worker in self._processes:
            worker.process.join(timeout=GRACE)
            worker.dismiss()
        self._processes = []

    def deliver(self, jobs: Sequence[Job]) -> Iterator[Outcome]:
        queue = {next(self._tickets): job for job in sorted(jobs, key=lambda job: -job.cost)}
        order = {id(job): ticket for ticket, job in queue.items()}
        self._hand_out(queue)
        return self._outcomes([order[id(job)] for job in jobs], _Delivery(queue))

    def _outcomes(self, tickets: list[int], delivery: _Delivery) -> Iterator[Outcome]:
        """Outcomes in the order of `tickets`, while workers are kept busy with the rest of the queue."""
        for ticket in tickets:
            while ticket not in delivery.done:
                self._collect(delivery)
                self._hand_out(delivery.queue)
            yield delivery.done.pop(ticket)

    def _hand_out(self, queue: dict[int, Job]) -> None:
        """Give work to whoever has too little of it: a client whose memory is warm there, else the longest job."""
        for worker in sorted(self._processes, key=lambda each: len(each.doing)):
            while queue and len(worker.doing) < AHEAD:
                warm = (t for t, job in queue.items() if job.memory and self._served.get(job.client) is worker)
                first = next(warm, next(iter(queue)))
                stack = queue[first].stack
                tickets = [each for each, job in queue.items() if job.stack == stack] if stack else [first]
                self._give(worker, {ticket: queue.pop(ticket) for ticket in tickets})

    def _give(self, worker: Worker, jobs: dict[int, Job]) -> None:
        """A job, or what is left of a stack: they differ in client and memory alone, and so they go as one message."""
        worker.since = worker.since if worker.doing else time.monotonic()
        worker.doing |= jobs
        self._served |= {job.client: worker for job in jobs.values()}
        (ticket, first), *others = jobs.items()
        with suppress(OSError):  # a dead worker is found, and replaced, by `_collect`
            send(worker.end, fields_of(ticket, first) | {"others": [(each, job.client, job.memory) for each, job in others]})

    def _collect(self, delivery: _Delivery) -> None:
        """Wait until some worker answers, dies or is late."""
        due, poll = min(worker.due for worker in self._processes), select.poll()
        for worker in self._processes:
            poll.register(worker.end, select.POLLIN)
        heard = {end for end, _ in poll.poll(None if due == inf else math.ceil(1000 * max(due - time.monotonic(), 0)))}
        now = time.monotonic()
        for worker in list(self._processes):
            if worker.end.fileno() in heard:
                self._hear(worker, delivery)
            elif worker.due <= now:
                self._stop(worker, delivery)

    def _hear(self, worker: Worker, delivery: _Delivery) -> None:
        """Something came from a worker: an answer, that it is ready, its end, or what cannot be believed."""
        try:
            self._read(worker, delivery)
        except RunError:
            raise
        except (EOFError, OSError):
            self._bury(worker, delivery, worker.ending())
        except Exception:  # whatever it is that was sent in the place of an answer
            worker.dismiss()
            self._bury(worker, delivery, "it sent something that is no answer")

    def _read(self, worker: Worker, delivery: _Delivery) -> None:
        most = max((job.limit + FRAMING for job in worker.doing.values()), default=0)
        if worker.places is not None:
            worker.places.sweep()
        fields, reply = receive(worker.end, most, self._room)
        if "unfit" in fields and not worker.ready:
            raise RunError(f"a worker cannot begin: {fields['unfit']}")
        worker.since = time.monotonic()
        if "ready" in fields and not worker.ready:
            worker.ready, self._stillborn = True, 0
            return
        *earlier, last = fields["answers"]
        for answer in earlier:
            self._take(worker, answer, b"", delivery)
        self._take(worker, last, reply, delivery)
        if last["last"]:
            self._hire(worker, delivery)

    def _take(self, worker: Worker, fields: dict[str, Any], reply: Buffer, delivery: _Delivery) -> None:
        """An answer to the job that a worker was to do next."""
        ticket, job = next(iter(worker.doing.items()), (-1, None))
        if job is None or fields["ticket"] != ticket:
            raise ValueError("an answer that nobody asked for")
        found = reply if worker.places is None or fields["place"] is None else worker.places.find(fields["place"], fields["length"])
        delivery.done[ticket] = outcome_of(job, fields, found)  # of a delivery that was given up, nobody will ask for it
        del worker.doing[ticket]

    def _stop(self, worker: Worker, delivery: _Delivery) -> None:
        """The job that a worker is doing is late."""
        ticket, job = next(iter(worker.doing.items()))
        delivery.done[ticket] = job.late(time.monotonic() - worker.since)
        del worker.doing[ticket]
        self._hire(worker, delivery)

    def _bury(self, worker: Worker, delivery: _Delivery, how: str) -> None:
        """A worker has died: the job it was doing has taken it down once more, and may have failed by that."""
        if not worker.ready:
            self._mourn(how)
        elif worker.doing:
            ticket, job = next(iter(worker.doing.items()))
            delivery.deaths[ticket] += 1
            if delivery.deaths[ticket] == TRIES:
                delivery.done[ticket] = job.failed(f"its worker died {TRIES} times ({how})")
                del worker.doing[ticket]
        self._hire(worker, delivery)

    def _mourn(self, how: str) -> None:
        """Workers die before they are ready: not a client's fault, and not to be tried for ever."""
        self._stillborn += 1
        if how == f"exit code {UNGUARDED}":
            raise Unguarded from None
        if self._stillborn == STILLBORN:
            raise RunError(f"workers die before they are ready ({how})") from None

    def _hire(self, worker: Worker, delivery: _Delivery) -> None:
        """A new worker for one that is gone, or that must go; the jobs that it had are the next to be done."""
        worker.dismiss()
        number = self._processes.index(worker)
        self._processes[number] = self._start_worker(number)
        later = dict(delivery.queue)
        delivery.queue.clear()
        delivery.queue.update(worker.doing | later)

    def _start_worker(self, number: int) -> Worker:
        ours, theirs = ends()
        places, context = share(ours), self._context
        place = (context.folder, context.memory_budget, context.device, number)
        arguments = (theirs, context.method, context.population.plan, *place)
        process = self._starting.Process(target=serve, args=arguments, daemon=True)
        process.start()
        theirs.close()
        return Worker(process, ours, places)


@dataclass
class _Delivery:
    """Jobs on their way."""

    queue: dict[int, Job]
    """Not handed out yet, by ticket."""
    done: dict[int, Outcome] = field(default_factory=dict)
    deaths: Counter[int] = field(default_factory=Counter)
    """How often the job of a ticket has taken its worker down."""
