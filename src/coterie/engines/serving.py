"""A worker's side of the engine `processes`: what it is told, what it does, and what it says."""

from __future__ import annotations

import dataclasses
import json
import os
import select
import signal
import socket
import threading
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from coterie.engines.engine import Job, Outcome, TaskError, brief
from coterie.engines.frames import HEADER, FrameError, receive, send
from coterie.engines.worker import Memories, Performer
from coterie.method import Method
from coterie.population import Plan, Population
from coterie.site import Observation, Visit, Work
from coterie.training.score import Scores

__all__ = ["fields_of", "outcome_of", "serve"]

TRACE = 20_000
"""Characters of a client's traceback that are kept."""


def serve(end: socket.socket, method: Method, plan: Plan, folder: Path, budget: int) -> None:
    """A worker's life: perform jobs until the parent hangs up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    threading.Thread(target=_end_with, args=(end.fileno(),), daemon=True).start()
    os.dup2(2, 1)  # what a task prints is for people; stdout may be a program's
    torch.set_num_threads(1)
    with suppress(OSError, EOFError, FrameError):  # the parent is gone, or not itself any more
        try:
            performer = Performer(method, Population.open(plan, folder / "live" / "arrays"), Memories(folder, budget))
        except Exception as error:
            send(end, {"unfit": f"{type(error).__name__}: {error}"})
            return
        send(end, {"ready": True})
        while not performer.spoilt:
            ticket, job = _job(receive(end, limit=0)[0])
            outcome = performer.perform(job)
            send(end, _answer(job, outcome) | {"ticket": ticket, "last": performer.spoilt}, outcome.reply)


def _end_with(end: int) -> None:
    """Wait until the parent's end is closed, by whatever ends the parent, and go with it, whatever a task is doing."""
    hung_up = select.poll()
    hung_up.register(end, 0)
    hung_up.poll()
    os._exit(1)


def fields_of(ticket: int, job: Job) -> dict[str, Any]:
    """A job as plain data.

    >>> _job(fields_of(3, Job(2, "train", 1, "message"))) == (3, Job(2, "train", 1, "message"))
    True
    """
    return {"ticket": ticket, **dataclasses.asdict(job)}


def _job(fields: dict[str, Any]) -> tuple[int, Job]:
    ticket, visit = fields.pop("ticket"), fields["visit"]
    wanted = Visit(tuple(visit["protocols"]), visit["logging"], tuple(visit["span"]) if visit["span"] else None)
    return ticket, Job(**{**fields, "visit": wanted})


def _answer(job: Job, outcome: Outcome) -> dict[str, Any]:
    """All of an outcome but its reply, as plain data; where that cannot be had, that is what is wrong with it."""
    try:
        plain = _plain(outcome)
        if (size := len(json.dumps(plain))) > HEADER - 2 * TRACE:
            raise ValueError(f"what it logs has {size:,} bytes, more than the {HEADER - 2 * TRACE:,} allowed")
    except Exception as error:
        outcome = Outcome(job.client, error=TaskError.at(job, error))
        plain = _plain(outcome)
    told = {"error": None} if outcome.error is None else {"error": str(outcome.error), "trace": _trace(outcome.error)}
    return plain | told


def _plain(outcome: Outcome) -> dict[str, Any]:
    return dataclasses.asdict(dataclasses.replace(outcome, reply=b"", error=None)) | {"reply": None}


def _trace(error: TaskError) -> str:
    try:
        return brief("".join(traceback.format_exception(error.__cause__))[-TRACE:], TRACE)
    except Exception:  # an exception can be such that it cannot be shown
        return ""


def outcome_of(job: Job, fields: dict[str, Any], reply: bytes) -> Outcome:
    """What a worker said came of a job; whatever cannot be made sense of raises.

    >>> job = Job(2, "train", 1, "message")
    >>> outcome_of(job, _answer(job, Outcome(2, kept="1-1", seconds=0.5)), b"reply")
    Outcome(client=2, reply=b'reply', kept='1-1', observations=[], logs={}, work=[], seconds=0.5, error=None, fatal=False)
    """
    if fields["error"] is not None:
        error = TaskError(brief(str(fields["error"]), 2000))
        error.add_note(str(fields["trace"]))
        return Outcome(job.client, error=error, seconds=float(fields["seconds"]), fatal=bool(fields["fatal"]))
    seen = [Observation(each["protocol"], Scores(**each["scores"]), each["domain"]) for each in fields["observations"]]
    work = [Work(**each) for each in fields["work"]]
    return Outcome(job.client, reply, fields["kept"], seen, dict(fields["logs"]), work, float(fields["seconds"]))
