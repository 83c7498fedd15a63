"""A cluster's engine: every worker is a Ray actor, on this machine or on whichever node of a cluster has a core to spare.

An actor hosts what the engine `processes` has on one machine: a worker process that it watches, so that a client that hangs, exits or
crashes is dealt with beside it, in the same words. What clients keep lies on the driver's disk, in the run's folder, as on every other
engine: checkpoints name files there, and no node need outlive its clients. It travels with a job to an actor that does not have it
yet, and back when it is new; a client goes to the actor that served it before. A message goes into the object store once, from where
each node fetches it once.

Ray trusts everybody in its cluster: this engine is for machines of one lab, not for participants (for those: `coterie deploy`).
"""

from __future__ import annotations

import itertools
import os
import shutil
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Any, ClassVar

from coterie import durable
from coterie.engines.engine import EVALUATE, Engine, Job, Outcome, RunContext, TaskError
from coterie.engines.processes import TRIES, Processes
from coterie.engines.worker import DISK, memory_file
from coterie.errors import RunError, UserError
from coterie.population import Plan, Population

__all__ = ["Ray"]

PATIENCE = 300.0
"""Seconds in which some worker must be there."""
GRACE = 5.0
"""Seconds in which actors may clear their folders away."""
VERSIONS = 2
"""Versions of what a client keeps that an actor has at hand: a guest's, and what that began from."""


@dataclass(eq=False)
class Actor:
    """The driver's view of one worker."""

    handle: Any
    starting: Any
    """What comes true when it is ready; None once it has."""
    ticket: int | None = None
    """The job that it is doing."""
    doing: Any = None
    """What comes true when that is done."""
    due: float = inf
    """When it must have answered: its own worker is stopped before, so this is for an actor that hangs itself."""
    holds: set[tuple[int, str]] = field(default_factory=set)
    """Clients and versions of their memories that it was given, or has made."""


class Ray(Engine):
    """Workers on a Ray cluster: the experiment's `engine.workers`, or one for each core that the cluster has.

    >>> Ray(workers=2, address="auto").workers
    2
    """

    isolated: ClassVar[bool] = True
    stacks: ClassVar[bool] = False

    def __init__(self, workers: int | None = None, address: str | None = None) -> None:
        self.workers = workers
        self.address = address
        self._actors: list[Actor] = []
        self._tickets = itertools.count()
        self._began = False

    def warm(self) -> None:
        _ray()
        if self.address is not None:
            _reached(self.address)

    def open(self, context: RunContext) -> None:
        self._ray = _ray()
        self._context = context
        if not self._ray.is_initialized():
            _begin(self._ray, self.address, self.workers)
            self._began = True
        population = context.population
        self._arrays = self._ray.put((population.pool, population.partition, population.public, population.held))
        self._host = self._ray.remote(num_cpus=1, max_restarts=0, max_task_retries=0)(Host)
        self._actors = [self._start() for _ in range(self.workers or int(self._ray.cluster_resources().get("CPU", 1)))]

    def close(self) -> None:
        if self._actors and self._ray.is_initialized():
            ending = [actor.handle.close.remote() for actor in self._actors if actor.starting is None and actor.doing is None]
            self._ray.wait(ending, num_returns=max(len(ending), 1), timeout=GRACE) if ending else None
            for actor in self._actors:
                self._ray.kill(actor.handle)
        self._actors = []
        if self._began:
            self._ray.shutdown()
            self._began = False

    def deliver(self, jobs: Sequence[Job]) -> Iterator[Outcome]:
        queue = {next(self._tickets): job for job in sorted(jobs, key=lambda job: -job.cost)}
        order = {id(job): ticket for ticket, job in queue.items()}
        messages = {path: self._ray.put(Path(path).read_bytes()) for path in {job.message for job in jobs}}
        delivery = _Delivery(dict(queue), queue, messages)
        for actor in self._actors:  # of a delivery that was given up
            actor.ticket = actor.ticket if actor.ticket in delivery.jobs else None
        self._hand_out(delivery)
        return self._outcomes([order[id(job)] for job in jobs], delivery)

    def _outcomes(self, tickets: list[int], delivery: _Delivery) -> Iterator[Outcome]:
        for ticket in tickets:
            while ticket not in delivery.done:
                self._collect(delivery)
                self._hand_out(delivery)
            yield delivery.done.pop(ticket)

    def _start(self) -> Actor:
        context = self._context
        handle = self._host.remote(context.method, context.population.plan, self._arrays, context.memory_budget)
        return Actor(handle, handle.ready.remote())

    def _hand_out(self, delivery: _Delivery) -> None:
        """Give work to whoever is idle: a client that it has served before, else the longest job."""
        for actor in self._actors:
            if delivery.queue and actor.starting is None and actor.doing is None:
                warm = (t for t, job in delivery.queue.items() if job.memory and (job.client, job.memory) in actor.holds)
                ticket = next(warm, next(iter(delivery.queue)))
                self._give(actor, ticket, delivery.queue.pop(ticket), delivery)

    def _give(self, actor: Actor, ticket: int, job: Job, delivery: _Delivery) -> None:
        memory = None
        if job.memory is not None and job.task != EVALUATE and (job.client, job.memory) not in actor.holds:
            memory = memory_file(self._context.folder, job.client, job.memory).read_bytes()
            actor.holds.add((job.client, job.memory))
        actor.ticket, actor.doing = ticket, actor.handle.perform.remote(job, delivery.messages[job.message], memory)
        actor.due = inf if job.deadline is None else time.monotonic() + job.deadline + PATIENCE

    def _collect(self, delivery: _Delivery) -> None:
        """Wait until some actor is ready, answers, dies or is late."""
        waiting = {each: actor for actor in self._actors for each in (actor.starting, actor.doing) if each is not None}
        busy = any(actor.doing is not None for actor in self._actors)
        until = min(actor.due for actor in self._actors) - time.monotonic() if busy else PATIENCE
        heard, _ = self._ray.wait(list(waiting), num_returns=1, timeout=None if until == inf else max(until, 0.0))
        if not heard and not busy:
            raise RunError(f"the Ray cluster has had no core for a worker for {PATIENCE:g} s; ray status says what it has")
        for each in heard:
            self._hear(waiting[each], delivery)
        for actor in self._actors:
            if actor.due <= time.monotonic():
                self._replace(actor, delivery, "it hung")

    def _hear(self, actor: Actor, delivery: _Delivery) -> None:
        errors = self._ray.exceptions
        try:
            if actor.starting is not None:
                self._ray.get(actor.starting)
                actor.starting = None
                return
            outcome, memory = self._ray.get(actor.doing)
        except errors.RayActorError:
            self._replace(actor, delivery, "its node or its actor was lost")
            return
        except errors.RayTaskError as error:
            cause = error.cause if isinstance(error.cause, Exception) else error
            raise cause if isinstance(cause, RunError) else RunError(f"a Ray worker cannot work: {cause}") from None
        self._answered(actor, delivery, outcome, memory)

    def _answered(self, actor: Actor, delivery: _Delivery, outcome: Outcome | None, memory: bytes | None) -> None:
        ticket, actor.doing, actor.due = actor.ticket, None, inf
        if ticket is None or ticket not in delivery.jobs:
            return
        job = delivery.jobs[ticket]
        if outcome is None:  # what the client keeps was needed there and is not at hand any more
            actor.holds.discard((job.client, job.memory or ""))
            self._give(actor, ticket, job, delivery)
            return
        delivery.done[ticket] = self._kept(actor, job, outcome, memory)

    def _kept(self, actor: Actor, job: Job, outcome: Outcome, memory: bytes | None) -> Outcome:
        """The outcome, when what the client keeps is on the driver's disk."""
        if memory is None or outcome.kept is None:
            return outcome
        path = memory_file(self._context.folder, job.client, job.keep)
        try:
            path.parent.mkdir(exist_ok=True)
            durable.write(path, memory, sync=False)
        except OSError as error:
            return Outcome(job.client, error=TaskError(f"{job}: {error}"), fatal=error.errno in DISK)
        actor.holds.add((job.client, job.keep))
        return outcome

    def _replace(self, actor: Actor, delivery: _Delivery, how: str) -> None:
        """Another actor for one that is gone; its job is the next to be done, by anybody."""
        self._ray.kill(actor.handle)
        self._actors[self._actors.index(actor)] = self._start()
        if actor.ticket is None or actor.ticket not in delivery.jobs or actor.doing is None:
            return
        job = delivery.jobs[actor.ticket]
        delivery.deaths[actor.ticket] += 1
        if delivery.deaths[actor.ticket] == TRIES:
            delivery.done[actor.ticket] = job.failed(f"its worker died {TRIES} times ({how})")
        else:
            later = dict(delivery.queue)
            delivery.queue.clear()
            delivery.queue.update({actor.ticket: job} | later)


@dataclass
class _Delivery:
    """Jobs on their way."""

    jobs: dict[int, Job]
    queue: dict[int, Job]
    """Not handed out yet, by ticket."""
    messages: dict[str, Any]
    """Message files, as they lie in the object store."""
    done: dict[int, Outcome] = field(default_factory=dict)
    deaths: Counter[int] = field(default_factory=Counter)


class Host:
    """What an actor is: one watched worker process, and a folder of its own beside it, on the node where it happens to be."""

    def __init__(self, method: Any, plan: Plan, arrays: tuple[Any, ...], budget: int) -> None:
        sys.modules["__main__"].__dict__.pop("__file__", None)  # else the worker process would run Ray's own main module
        self._folder = Path(tempfile.mkdtemp(prefix="coterie-ray-"))
        self._engine = Processes(workers=1)
        self._engine.open(RunContext(method, Population(plan, *arrays), self._folder, budget))
        self._message: tuple[str, Path] = "", self._folder
        self._versions: dict[int, list[str]] = {}

    def ready(self) -> bool:
        """Whether it can be given work."""
        return True

    def perform(self, job: Job, message: bytes, memory: bytes | None) -> tuple[Outcome | None, bytes | None]:
        """What came of a job, and the file of what the client keeps, if that is new; None where its memory is needed and is not here."""
        if job.memory is not None and job.task != EVALUATE and not self._has(job, memory):
            return None, None
        local = replace(job, message=str(self._laid(job.message, message)))
        outcome = next(iter(self._engine.deliver([local])))
        if outcome.kept is None or outcome.kept == job.memory or outcome.error is not None:
            return outcome, None
        self._hold(job.client, outcome.kept)
        return outcome, memory_file(self._folder, job.client, outcome.kept).read_bytes()

    def _has(self, job: Job, memory: bytes | None) -> bool:
        assert job.memory is not None
        path = memory_file(self._folder, job.client, job.memory)
        if memory is not None:
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(memory)
            self._hold(job.client, job.memory)
        return path.exists()

    def _hold(self, client: int, version: str) -> None:
        """One more version of what a client keeps, and none that is too old."""
        held = [each for each in self._versions.get(client, []) if each != version] + [version]
        for old in held[:-VERSIONS]:
            memory_file(self._folder, client, old).unlink(missing_ok=True)
        self._versions[client] = held[-VERSIONS:]

    def _laid(self, name: str, message: bytes) -> Path:
        """The message as a file that the worker can map; the one before it goes."""
        if self._message[0] != name:
            if self._message[0]:
                self._message[1].unlink(missing_ok=True)
            path = self._folder / "live" / Path(name).name
            path.write_bytes(message)
            self._message = name, path
        return self._message[1]

    def close(self) -> None:
        """Leave nothing behind on this node."""
        self._engine.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is said to anybody about a run
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # of a cluster that is started here: its workers are what somebody waits for
    try:
        import ray
    except ImportError:
        raise UserError("engine.name = 'ray' needs Ray: pip install 'coterie[ray]'") from None
    return ray


def _begin(ray: Any, address: str | None, workers: int | None) -> None:
    """Join a cluster, or be one."""
    quiet = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": True}
    if address is None:
        ray.init("local", num_cpus=workers, include_dashboard=False, **quiet)  # unsaid, Ray would join a cluster that it finds
        return
    try:
        ray.init(address=address, **quiet)
    except (OSError, ValueError, RuntimeError) as error:
        raise _nobody(address, error) from None


def _reached(address: str) -> None:
    """Ray itself tries for minutes, and then ends the process."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if port.isdigit():
        try:
            socket.create_connection((host, int(port)), timeout=5).close()
        except OSError as error:
            raise _nobody(address, error) from None


def _nobody(address: str, error: Exception) -> UserError:
    return UserError(f"engine.address = '{address}': no Ray cluster there ({str(error).splitlines()[0]})")
