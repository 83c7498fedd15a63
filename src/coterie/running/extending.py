"""A run that begins where another one is: with more rounds than a finished one, or with the rounds that it shares with others done.

Nothing but the last round's evaluation depends on how many rounds there are, so that a run with more of them has the bits of one that was
meant to be so long from the beginning; and rounds in which nothing is evaluated may be the same for methods that differ in what they do
for an evaluation (`Method.unevaluated`). The run that it begins from stays as it is.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from coterie import durable
from coterie.engines import Engine
from coterie.engines.worker import memory_file
from coterie.errors import UserError
from coterie.ledger import LEDGER, Event, Ledger, Listener, events
from coterie.record import Record, write
from coterie.running.checkpoint import CHECKPOINT, Latest, latest
from coterie.running.experiment import Experiment
from coterie.running.provenance import continued, origin
from coterie.running.result import unfinished
from coterie.running.rounds import check_folder, new_folder, resume, run, started
from coterie.running.sections import Evaluation

__all__ = ["begun_together", "common_rounds", "extended"]


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
    start = {"experiment": longer.resolved(), **now, "digest": longer.digest(), "extends": {"rounds": experiment.rounds}}
    _copied(folder, found, where, start, lambda event: {} if _of_the_end(event) else event)
    return where


def common_rounds(experiment: Experiment) -> tuple[Experiment, int] | None:
    """An experiment whose first rounds are this one's, whatever is evaluated after them, and how many; None where there is none.

    >>> split = {"name": "split-metadata", "upload": "evaluated"}
    >>> plan = Experiment.load("digits-two-class", ["model=cnn", "evaluation.every=10"])
    >>> common = common_rounds(plan.replace(method=split))
    >>> common == common_rounds(plan.replace(method={**split, "budget": 3})), common[0].method.name, common[1]
    (True, 'fedavg', 9)
    """
    method, rounds = experiment.method.unevaluated(), min(experiment.evaluation.every, experiment.rounds) - 1
    if method is None or rounds < 1:
        return None
    return experiment.replace(method=method, evaluation=Evaluation(every=experiment.evaluation.every)), rounds


def begun_together(
    common: Experiment,
    rounds: int,
    folder: Path,
    experiment: Experiment,
    out: Path,
    *,
    data: Path | None = None,
    callbacks: Sequence[Listener] = (),
    engine: Engine | None = None,
    shared: Path | None = None,
) -> None:
    """Make a folder in which an experiment is ready to be resumed after the rounds that it has in common with others.

    Args:
        common: what they have in common (`common_rounds`).
        rounds: how many.
        folder: where those rounds are, or will be when this is done.
        experiment: what is to begin.
        out: where.
        data, callbacks, engine, shared: as `run` takes them.
    """
    begun = (folder / LEDGER).exists() and next(events(folder / LEDGER), None) is not None
    done = begun and latest(folder).round == rounds
    if begun and not done:
        resume(folder, data=data, callbacks=callbacks, engine=engine, shared=shared, until=rounds)
    elif not begun:  # or killed before its first line was on disk
        (folder / LEDGER).unlink(missing_ok=True)
        run(common, folder, data=data, callbacks=callbacks, engine=engine, shared=shared, until=rounds)
    start = {"experiment": experiment.resolved(), **origin(experiment, data), "shares": {"rounds": rounds}}
    _copied(folder, latest(folder), out, start, _elsewhere if done else lambda event: event if event["event"] != "resume" else {})


def _copied(folder: Path, found: Latest, where: Path, start: Event, change: Callable[[Event], Event]) -> None:
    """A run's state, memories and ledger in the folder of another, with a start of its own; an event changed to nothing is left out."""
    durable.make_folder(where)
    for client, version in found.memories.items():
        copy = memory_file(where, client, version)
        copy.parent.mkdir(exist_ok=True)
        shutil.copy2(memory_file(folder, client, version), copy)
    assert found.record is not None
    with Ledger(where / LEDGER) as ledger:
        for event in events(folder / LEDGER):
            if told := change(event | start if event["event"] == "start" else event):
                ledger.write(**told)
        marks = [ledger.commit()]
    write(found.record | Record(ledger=json.dumps(marks), done=False), where / CHECKPOINT, "a checkpoint")


def _elsewhere(event: Event) -> Event:
    """A round that was done for another run has taken no time in this one."""
    if event["event"] == "resume":
        return {}
    return event | {"seconds": 0.0, "where": {}} if event["event"] == "round" else event


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
