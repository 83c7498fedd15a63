"""Several methods on the same experiment: same data, same partition, same seeds, every byte counted.

All arms are checked before the first one starts. What is in an arm's folder is reused, what was stopped there goes on, and what
`coterie run` has done already is linked. Several arms run at once, each in a process of its own with all its clients inline (all
engines give the same bits); one at a time, an arm has the experiment's own engine. One of every method goes first, then whichever
takes longest, so that none of those is left for the end, when other cores have nothing to do. A process that runs an arm holds a lock on
its folder, so that two comparisons, or one that was killed and started again at once, never write to the same run.

Arms whose first rounds are the same, whatever they then evaluate (split training's, and its FedAvg), do those once: the first of them
does, the others wait until it has, and begin from there.
"""

from __future__ import annotations

import fcntl
import json
import math
import multiprocessing
import os
import shutil
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeAlias

from coterie import forking
from coterie.durable import make_folder
from coterie.engines import Inline
from coterie.engines.engine import cores
from coterie.engines.processes import UNGUARDED, Unguarded, leave_unguarded
from coterie.errors import CoterieError, Interrupted, RunError, UserError, place_of
from coterie.ledger import Event, Listener, events
from coterie.own import look_in, places
from coterie.population import Population
from coterie.results.summary import summary_in
from coterie.running.checkpoint import CHECKPOINT, latest
from coterie.running.experiment import Experiment
from coterie.running.extending import begun_together, common_rounds
from coterie.running.rounds import LEDGER, resume, run
from coterie.studies.arms import Arm, arm

__all__ = ["Compared", "Watch", "check", "compare", "finished", "reuse"]

Watch: TypeAlias = Callable[[Arm], AbstractContextManager[Sequence[Listener]]]
"""Opens listeners for one arm while it runs."""
DECIDES_DATA = ("data", "partition", "noisy_labels", "new_clients", "seed")
"""Keys of an experiment that decide who holds what."""
PRETRAINED = "pretrained"
"""The folder, beside the arms, of the models that arms with the same pretraining start from."""
COMMON = "common-rounds"
"""The folder, beside the arms, of rounds that several of them begin with, while there are such arms left."""

WITHIN_A_ROUND = {"exchange", "log", "training", "evaluation", "classes", "rejected", "new_client"}
"""Events that the parent is told of together with the next of another kind: a pipe costs more than they do."""


@dataclass(frozen=True)
class Compared:
    """What came of a comparison."""

    arms: Sequence[Arm]
    """Those that worked, in their order."""
    summaries: Sequence[dict[str, Any]]
    """Of each of them."""
    failed: Mapping[str, str]
    """The titles of those that failed, and why."""
    reused: int
    """How many were there before."""

    def complete(self) -> Compared:
        """This, or an error that names the arms that failed."""
        if self.failed:
            sentences = "; ".join(f"{title}: {reason}" for title, reason in self.failed.items())
            runs = len(self.arms) + len(self.failed)
            raise RunError(f"{len(self.failed)} of {runs} runs failed (the same command tries them again): {sentences}")
        return self


def compare(arms: Sequence[Arm], watch: Watch, *, data: Path | None = None, jobs: int | None = None) -> Compared:
    """Run what is missing, `jobs` arms at once (by default one a core), go on with what was stopped, reuse what is there.

    An arm that cannot work is an error before any has started; one that fails does not stop the others.
    """
    missing = _missing(arms)
    check(missing, data)
    at_once = min(jobs or cores(), len(missing))
    common = _common(missing, data)
    with _above(missing):
        failed = _ArmRunner(watch, data, common, alone=at_once == 1).work(missing, at_once)
    if not failed:
        for folder in {each.folder for each in common.values()}:
            shutil.rmtree(folder, ignore_errors=True)
            with suppress(OSError):
                folder.parent.rmdir()
    worked = [(each, summary) for each in arms if (summary := summary_in(each.folder)) is not None]
    return Compared([each for each, _ in worked], [summary for _, summary in worked], failed, len(arms) - len(missing))


def check(arms: Sequence[Arm], data: Path | None = None) -> None:
    """Raise a UserError that names the first arm that cannot work with its data; those are loaded once for arms that share them."""
    alike: dict[str, list[Arm]] = {}
    for each in arms:
        table = each.experiment.resolved()
        alike.setdefault(json.dumps([table[key] for key in DECIDES_DATA], sort_keys=True), []).append(each)
    for group in alike.values():
        population: Population | None = None
        for each in group:
            try:
                if population is None:
                    population = each.experiment.population(data)
                else:
                    each.experiment.check(population)
            except UserError as error:
                raise UserError(f"{each.title}: {error}") from None


def reuse(arms: Sequence[Arm], root: Path) -> None:
    """Link arms that are not done to finished runs in and below the folders in `root` that have the same experiment, code and data."""
    missing = {each.digests: each for each in _missing(arms) if not (each.folder / LEDGER).exists()}
    ledgers = sorted(path for depth in ("*", "*/*") for path in root.glob(f"{depth}/{LEDGER}")) if missing else []
    for ledger in ledgers:
        wanted = missing.get(_digests(ledger))
        if wanted is not None and summary_in(ledger.parent) is not None and not _changed(ledger):
            with suppress(OSError):  # where there are no links, it is run again
                _link(wanted.folder, ledger.parent)
                del missing[wanted.digests]


def finished(arm: Arm) -> bool:
    """Whether an arm has nothing left to do: its summary is the last thing a run writes."""
    return summary_in(arm.folder) is not None


def _missing(arms: Sequence[Arm]) -> list[Arm]:
    """Arms that are not done; what they were linked to and is gone is forgotten."""
    missing = [each for each in arms if not finished(each)]
    for each in missing:
        if each.folder.is_symlink():
            each.folder.unlink()
    return missing


def _digests(ledger: Path) -> Any:
    """The digests in a ledger's first line, or nothing that an arm could have."""
    with suppress(CoterieError, OSError):
        first = next(events(ledger), {})
        return tuple(first.get(key) for key in ("digest", "code", "data"))
    return None


def _changed(ledger: Path) -> bool:
    """Whether a run went on with other code or data than it was begun with, or nobody can tell."""
    try:
        return any(event.get("changed_code") or event.get("changed_data") for event in events(ledger) if event["event"] == "resume")
    except CoterieError:
        return True


def _link(folder: Path, target: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.symlink_to(os.path.relpath(target.absolute(), folder.parent.absolute()), target_is_directory=True)


@dataclass(frozen=True)
class _Common:
    """Rounds that several arms begin with."""

    experiment: Experiment
    rounds: int
    folder: Path

    @property
    def done(self) -> bool:
        """Whether they are there."""
        with suppress(CoterieError):
            return (self.folder / CHECKPOINT).exists() and latest(self.folder).round == self.rounds
        return False


def _common(arms: Sequence[Arm], data: Path | None) -> dict[Path, _Common]:
    """By the folder of an arm that is not begun: the rounds that it has in common with another such."""
    found: dict[Path, _Common] = {}
    for each in arms:
        if not (each.folder / LEDGER).exists() and (shared := common_rounds(each.experiment)) is not None:
            found[each.folder] = _Common(*shared, arm(shared[0], each.folder.parent / COMMON, "", data).folder)
    counts = Counter(common.folder for common in found.values())
    return {folder: common for folder, common in found.items() if counts[common.folder] > 1}


class _ArmRunner:
    """Processes that run arms, and the parent's end of the pipes through which they tell what happens."""

    def __init__(self, watch: Watch, data: Path | None, common: Mapping[Path, _Common], *, alone: bool) -> None:
        leave_unguarded()
        self._watch, self._data, self._common, self._alone = watch, data, common, alone
        self._there = {each.folder for each in common.values() if each.done}
        """Of the rounds that arms have in common, those that are done."""
        self._context = multiprocessing.get_context("forkserver")
        forking.begin(*forking.FOR_ARMS)
        self._running: dict[Connection, _Running] = {}
        self._took: dict[str, float] = {}
        """Label -> the seconds of the last arm of it that ended; before that, as long as can be."""
        self._failed: dict[str, str] = {}

    def work(self, arms: Sequence[Arm], at_once: int) -> dict[str, str]:
        """Run arms until none is left; those that failed, and why."""
        queue = list(arms)
        try:
            while queue or self._running:
                while len(self._running) < at_once and (free := self._next(queue)):
                    queue.remove(free)
                    self._start(free)
                for pipe in wait(list(self._running)):
                    assert isinstance(pipe, Connection)
                    self._hear(pipe)
        except KeyboardInterrupt:
            done = sum(map(finished, arms))
            raise Interrupted(f"stopped; {done} of {len(arms)} runs are done. Go on with the same command") from None
        finally:
            for running in self._running.values():
                if running.process.pid is not None:  # else it was stopped while it started, and ends when it finds nobody to tell
                    running.process.kill()  # its checkpoint is whole at any moment
                    running.process.join()
                running.stack.close()
        return self._failed

    def _next(self, queue: Sequence[Arm]) -> Arm | None:
        """The first of a label that none has begun of, else the one that will take longest."""
        free = [each for each in queue if not self._waits(each)]
        return max(free, key=lambda each: (each.label not in self._took, self._took.get(each.label, 0.0)), default=None)

    def _waits(self, arm: Arm) -> bool:
        """Whether an arm would only wait for rounds that another one is doing."""
        common = self._common.get(arm.folder)
        doing = (self._common.get(running.arm.folder) for running in self._running.values())
        return common is not None and common.folder not in self._there and any(each and each.folder == common.folder for each in doing)

    def _start(self, arm: Arm) -> None:
        stack = ExitStack()
        listeners = stack.enter_context(self._watch(arm))
        ours, theirs = self._context.Pipe(duplex=False)
        common = self._common.get(arm.folder)
        begins = None if common is None else (common.experiment.resolved(), common.rounds, common.folder)
        arguments = (theirs, arm.experiment.resolved(), arm.folder, self._data, self._alone, places(), begins)
        process = self._context.Process(target=_perform, args=arguments)
        self._running[ours] = _Running(arm, process, listeners, stack)  # first: a process that nobody knows is waited for at the end
        self._took.setdefault(arm.label, math.inf)
        process.start()
        theirs.close()

    def _hear(self, pipe: Connection) -> None:
        running = self._running[pipe]
        try:
            heard: list[Event] = json.loads(pipe.recv_bytes())
        except (EOFError, OSError):
            self._end(pipe)
            return
        for event in heard:
            self._note(running, event)

    def _note(self, running: _Running, event: Event) -> None:
        if event["event"] == "failure":
            self._failed[running.arm.title] = event["reason"]
            return
        common = self._common.get(running.arm.folder)
        if common is not None and event["event"] == "round" and event["round"] >= common.rounds:
            self._there.add(common.folder)
        for listener in running.listeners:
            listener(event)

    def _end(self, pipe: Connection) -> None:
        running = self._running.pop(pipe)
        running.process.join()
        running.stack.close()
        pipe.close()
        self._took[running.arm.label] = time.perf_counter() - running.began
        if running.process.exitcode == UNGUARDED:
            raise Unguarded
        if not finished(running.arm):
            self._failed.setdefault(running.arm.title, f"its process died (exit code {running.process.exitcode}); out of memory?")


@dataclass(eq=False)
class _Running:
    arm: Arm
    process: BaseProcess
    listeners: Sequence[Listener]
    stack: ExitStack
    began: float = field(default_factory=time.perf_counter)


def _perform(
    pipe: Connection,
    table: Mapping[str, Any],
    folder: Path,
    data: Path | None,
    alone: bool,
    where: Sequence[Path],
    begins: tuple[Mapping[str, Any], int, Path] | None,
) -> None:
    """In its own process: start an arm or go on with it, and tell the parent every event, round by round."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    look_in(*where)

    held = list[Event]()

    def tell(event: Event) -> None:
        held.append(event)
        if event["event"] not in WITHIN_A_ROUND:
            pipe.send_bytes(json.dumps(held).encode())
            held.clear()

    try:
        with _locked(folder):
            if summary_in(folder) is None:
                common = None if begins is None else _Common(Experiment.parse(begins[0]), *begins[1:])
                _run_or_resume(Experiment.parse(table), folder, data, alone, tell, common)
    except BrokenPipeError:  # the parent is gone
        os._exit(1)
    except CoterieError as error:
        tell({"event": "failure", "reason": str(error)})
    except Exception as error:
        place = place_of(error)
        tell({"event": "failure", "reason": f"{type(error).__name__}: {error}{place}" if place else traceback.format_exc()})


def _run_or_resume(
    experiment: Experiment, folder: Path, data: Path | None, alone: bool, listener: Listener, common: _Common | None
) -> None:
    ledger, engine, shared = folder / LEDGER, None if alone else Inline(), folder.parent / PRETRAINED
    if not ledger.exists() or next(events(ledger), None) is None:  # killed before its first line was on disk, if ever begun
        ledger.unlink(missing_ok=True)
        if common is None:
            run(experiment, folder, data=data, callbacks=[listener], engine=engine, shared=shared)
            return
        how = {"data": data, "callbacks": [listener], "engine": engine, "shared": shared}
        with _locked(common.folder):
            begun_together(common.experiment, common.rounds, common.folder, experiment, folder, **how)  # type: ignore[arg-type]
    engine = None if alone else Inline()
    resume(folder, data=data, callbacks=[listener], engine=engine, shared=shared)


@contextmanager
def _above(arms: Sequence[Arm]) -> Iterator[None]:
    """The folders that arms lie in, made before any arm starts: what cannot be written to is said once. What stays empty is removed."""
    folders = dict.fromkeys(each.folder.parent for each in arms)
    try:
        for folder in folders:
            make_folder(folder)
        yield
    finally:
        for folder in folders:
            with suppress(OSError):
                folder.rmdir()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a run's folder alone; wait for whoever has it. A folder in which nothing came to lie is removed."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        with suppress(OSError):
            folder.rmdir()
        os.close(handle)
