"""A worker's side of the engine `processes`: what it is told, what it does, and what it says."""

from __future__ import annotations

import fcntl
import json
import math
import multiprocessing
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch

from coterie.devices import find
from coterie.engines.engine import Job, Outcome, PartOfMean, TaskError, brief
from coterie.engines.places import shared
from coterie.engines.surroundings import Surroundings
from coterie.engines.worker import Memories, Performer
from coterie.framing import HEADER, FrameError, receive, send
from coterie.method import Method
from coterie.population import Plan, Population
from coterie.replies import Averaging
from coterie.site import Observation, Visit, Work
from coterie.training.score import Scores
from coterie.wire import Buffer

__all__ = ["answer_of", "fields_of", "job_of", "outcome_of", "serve"]

TRACE = 20_000
"""Characters of a client's traceback that are kept."""
BRIEF = 4096
"""Bytes of an answer that may wait for the next of its stack."""


def serve(end: socket.socket, method: Method, plan: Plan, folder: Path, budget: int, device: str, number: int) -> None:
    """A worker's life: perform jobs until the parent hangs up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    _end_with_parent()
    _let_go_of_helpers()
    os.dup2(2, 1)  # what a task prints is for people; stdout may be a program's
    torch.set_num_threads(1)
    with suppress(OSError, EOFError, FrameError):  # the parent is gone, or not itself any more
        try:
            population = Population.open(plan, folder / "live" / "arrays", find(device, number))
            places = shared(end)
            performer = Performer(method, population, Memories(folder, budget), Surroundings(), places)
        except Exception as error:
            send(end, {"unfit": f"{type(error).__name__}: {error}"})
            return
        send(end, {"ready": True})
        while not performer.spoilt:
            answers = list[bytes]()
            for ticket, job in _jobs_of(receive(end, limit=0)[0]):
                outcome = performer.perform(job)
                place = places.name(outcome.reply) if places else None
                about = {"ticket": ticket, "last": performer.spoilt, "place": place, "length": len(outcome.reply)}
                answers.append(answer_of(job, outcome, **about))
                if outcome.part is None or outcome.reply or performer.spoilt or len(answers[-1]) > BRIEF:  # else the next is there already
                    send(end, _letter(answers), outcome.reply if place is None else b"")
                    answers.clear()
                if performer.spoilt:
                    break
            if answers:
                send(end, _letter(answers))


def _letter(answers: Sequence[bytes]) -> bytes:
    """Some answers as one: what else is sent belongs to the last."""
    return b'{"answers":[' + b",".join(answers) + b"]}"


def _end_with_parent() -> None:
    """See to it that this process ends when its parent does, however that ends and whatever a task is doing here."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    if sys.platform == "linux":  # the kernel kills this process when the pipe from its parent breaks, even if it is stopped
        fcntl.fcntl(parent.sentinel, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(parent.sentinel, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(parent.sentinel, fcntl.F_SETFL, fcntl.fcntl(parent.sentinel, fcntl.F_GETFL) | os.O_ASYNC)
    else:
        threading.Thread(target=lambda: (wait([parent.sentinel]), os._exit(1)), daemon=True).start()
    if wait([parent.sentinel], 0):  # it was quicker
        os._exit(1)


def _let_go_of_helpers() -> None:
    """Close what leads to the processes that multiprocessing keeps for everybody: a task that writes into it would end them."""
    helpers: tuple[tuple[Any, str], ...] = (
        (forkserver._forkserver, "_forkserver_alive_fd"),
        (resource_tracker._resource_tracker, "_fd"),
    )
    for helper, name in helpers:
        if (descriptor := getattr(helper, name, None)) is not None:
            os.close(descriptor)
            setattr(helper, name, None)  # who needs one in a task gets one of its own


def fields_of(ticket: int, job: Job) -> dict[str, Any]:
    """A job as plain data.

    >>> job_of(fields_of(3, Job(2, "train", 1, "message"))) == (3, Job(2, "train", 1, "message"))
    True
    """
    return {"ticket": ticket, **vars(job), "visit": vars(job.visit), "mean": job.mean and vars(job.mean)}


def job_of(fields: dict[str, Any]) -> tuple[int, Job]:
    """The ticket and the job that `fields_of` wrote down."""
    ticket, visit, mean = fields.pop("ticket"), fields["visit"], fields["mean"]
    made = {
        "visit": Visit(tuple(visit["protocols"]), visit["logging"], tuple(visit["span"]) if visit["span"] else None),
        "stack": tuple(map(tuple, fields["stack"])),
        "mean": mean and Averaging(tuple(mean["groups"]), mean["weighting"]),
    }
    return ticket, Job(**{**fields, **made})


def _jobs_of(fields: dict[str, Any]) -> Iterator[tuple[int, Job]]:
    """What a worker is given at once: a job, and of those that it is stacked with all but ticket, client and memory are the same."""
    others = fields.pop("others")
    ticket, job = job_of(fields)
    yield ticket, job
    for other, client, memory in others:
        yield other, replace(job, client=client, memory=memory)


def answer_of(job: Job, outcome: Outcome, **about: Any) -> bytes:
    """All of an outcome but its reply, as JSON; where the parent could not make sense of it, that is what is wrong with it."""
    try:
        text = _written(outcome, about)
        outcome_of(job, json.loads(text), b"")
        if len(text) > HEADER:
            raise ValueError(f"what it logs has {len(text):,} bytes, more than the {HEADER:,} allowed")
    except Exception as error:
        return _written(Outcome(job.client, error=TaskError.at(job, error)), about)
    return text


def _written(outcome: Outcome, about: dict[str, Any]) -> bytes:
    told = {"error": None} if outcome.error is None else {"error": str(outcome.error), "trace": _trace(outcome.error)}
    return json.dumps({**vars(outcome), "reply": None, **told, **about}, default=_fields).encode()


def _fields(value: object) -> dict[str, Any]:
    """How JSON writes what is not plain."""
    if isinstance(value, Observation | PartOfMean | Scores | Work):
        return vars(value)
    raise TypeError(f"what it logs or measures holds a {type(value).__name__}, expected numbers")


def _trace(error: TaskError) -> str:
    try:
        return brief("".join(traceback.format_exception(error.__cause__))[-TRACE:], TRACE)
    except Exception:  # an exception can be such that it cannot be shown
        return ""


def outcome_of(job: Job, fields: dict[str, Any], reply: Buffer) -> Outcome:
    """What a worker said came of a job; whatever cannot be made sense of raises.

    >>> job = Job(2, "train", 1, "message")
    >>> outcome_of(job, json.loads(answer_of(job, Outcome(2, kept="1-1", seconds=0.5))), b"reply")
    Outcome(client=2, reply=b'reply', kept='1-1', observations=[], logs={}, work=[], seconds=0.5, error=None, fatal=False, part=None)
    """
    if fields["error"] is not None:
        error = TaskError(brief(str(fields["error"]), 2000))
        error.add_note(str(fields["trace"]))
        return Outcome(job.client, error=error, seconds=_seconds(fields), fatal=bool(fields["fatal"]))
    seen = [Observation(each["protocol"], Scores(**each["scores"]), each["domain"]) for each in fields["observations"]]
    work, part = [Work(**each) for each in fields["work"]], fields["part"] and PartOfMean(**fields["part"])
    return Outcome(job.client, reply, fields["kept"], seen, dict(fields["logs"]), work, _seconds(fields), part=part)


def _seconds(fields: dict[str, Any]) -> float:
    seconds = float(fields["seconds"])
    if not 0 <= seconds < math.inf:
        raise ValueError(f"it took {seconds} seconds, expected a number from 0")
    return seconds
