"""More rounds for a finished run: a new run with more of them, that begins where the finished one ended.

Nothing but the last round's evaluation depends on how many rounds there are, so that the new run has the bits of one that was meant to
be so long from the beginning. The finished run stays as it is.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from coterie import durable
from coterie.engines.worker import memory_file
from coterie.errors import UserError
from coterie.ledger import LEDGER, Event, Ledger, events
from coterie.record import Record, write
from coterie.running.checkpoint import CHECKPOINT, Latest, latest
from coterie.running.experiment import Experiment
from coterie.running.provenance import continued
from coterie.running.result import unfinished
from coterie.running.rounds import check_folder, new_folder, started

__all__ = ["extended"]


def extended(folder: Path, rounds: int, out: Path | None = None, *, data: Path | None = None) -> Path:
    """A folder in which a finished run's experiment, with more rounds, is ready to be resumed.

    Args:
        folder: of the finished run.
        rounds: how many there are to be, those that are done included.
        out: the folder to make; by default a new one beside the finished run.
        data: the data folder.

    >>> import tempfile
    >>> from coterie import resume, run
    >>> short = run(Experiment.load("digits-two-class", ["rounds=2", "engine.name=inline"]), tempfile.mkdtemp())
    >>> resume(extended(short.folder, 3, Path(tempfile.mkdtemp()) / "longer")).summary["rounds"]
    3
    """
    experiment, found = started(folder), latest(folder)
    _check(experiment, found, folder, rounds)
    now = continued(folder / LEDGER, found.length, experiment, data)
    longer = experiment.replace(rounds=rounds)
    where = out or new_folder(longer, folder.parent)
    check_folder(where)
    durable.make_folder(where)
    for client, version in found.memories.items():
        copy = memory_file(where, client, version)
        copy.parent.mkdir(exist_ok=True)
        shutil.copy2(memory_file(folder, client, version), copy)
    assert found.record is not None
    with Ledger(where / LEDGER) as ledger:
        for event in events(folder / LEDGER):
            if event["event"] == "start":
                event |= {"experiment": longer.resolved(), **now, "digest": longer.digest(), "extends": {"rounds": experiment.rounds}}
            if not _of_the_end(event):
                ledger.write(**event)
        marks = [ledger.commit()]
    write(found.record | Record(ledger=json.dumps(marks), done=False), where / CHECKPOINT, "a checkpoint")
    return where


def _check(experiment: Experiment, found: Latest, folder: Path, rounds: int) -> None:
    if not found.over:
        raise UserError(f"{unfinished(found, folder)}, then ask for more rounds")
    if found.record is not None and found.record["reached"]:
        raise UserError(f"the run in {folder} reached its target (evaluation.stop_at) and stopped: more rounds would not be run")
    if experiment.new_clients is not None:
        raise UserError(f"the run in {folder} ended with new clients joining: run it again with more rounds, in another folder")
    if rounds <= experiment.rounds:
        raise UserError(f"--rounds {rounds}: the run in {folder} has {experiment.rounds} rounds already, expected more")


def _of_the_end(event: Event) -> bool:
    """Whether an event is there only because a round was the last."""
    return event["event"] == "end" or bool(event.get("final"))
