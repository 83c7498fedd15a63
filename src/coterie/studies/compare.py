"""Several methods on the same experiment: same data, same partition, same seeds, every byte counted.

An arm is one run of a comparison. Its folder is named by the digest of its experiment and of the code, so what is there is
reused and what was stopped goes on. Several arms run at once, each in a process of its own with all its clients inline (all
engines give the same bits); one at a time, an arm has the experiment's own engine. A process that runs an arm holds a lock on
its folder, so that two comparisons, or one that was killed and started again at once, never write to the same run.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, fields
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeAlias

from coterie.engines import Inline
from coterie.engines.engine import cores
from coterie.errors import RunError, UserError
from coterie.ledger import Event, Listener, events
from coterie.method import Method
from coterie.methods import METHODS
from coterie.running.experiment import Experiment, toml_value
from coterie.running.provenance import code_digest
from coterie.running.rounds import LEDGER, SUMMARY, Interrupted, resume, run

__all__ = ["Arm", "Watch", "arm", "arms_of", "compare", "finished", "grid_of"]


@dataclass(frozen=True)
class Arm:
    """One run of a comparison."""

    experiment: Experiment
    folder: Path
    label: str
    """What is compared: the method, and what a grid changed."""

    @property
    def title(self) -> str:
        """What a person calls it."""
        return f"{self.label} seed {self.experiment.seed}"


Watch: TypeAlias = Callable[[Arm], AbstractContextManager[Sequence[Listener]]]
"""Opens listeners for one arm while it runs."""


def arm(experiment: Experiment, folder: Path, label: str) -> Arm:
    """An arm in a folder named after what runs in it: the experiment and the code."""
    name = f"{_name(experiment.method)}-s{experiment.seed}-{experiment.digest()[:8]}-{code_digest(experiment)[:8]}"
    return Arm(experiment, folder / name, label)


def arms_of(
    experiment: Experiment,
    methods: Sequence[Any],
    seeds: Sequence[int],
    folder: Path,
    grid: Mapping[str, Sequence[Any]] | None = None,
) -> list[Arm]:
    """Every method with every seed, at every point of a grid; `method.key` is for the methods that have such a key.

    >>> experiment = Experiment.load("digits-two-class")
    >>> arms = arms_of(experiment, ["local", "fedprox"], [0, 1], Path("runs"), {"method.mu": [0.1, 1.0]})
    >>> [arm.title for arm in arms][:4]
    ['local seed 0', 'local seed 1', 'fedprox mu=0.1 seed 0', 'fedprox mu=0.1 seed 1']
    """
    chosen = [METHODS.resolve(experiment.method if method == _name(experiment.method) else method) for method in methods]
    _check_grid(grid or {}, chosen)
    arms: dict[Path, Arm] = {}
    for method in chosen:
        base = _offered(experiment, method)
        for point in _points(grid or {}, method):
            label = " ".join([_name(method), *(f"{key.rpartition('.')[2]}={_plain(value)}" for key, value in point.items())])
            at_point = base.overridden(point) if point else base
            for each in (arm(at_point.replace(seed=seed), folder, label) for seed in seeds):
                arms.setdefault(each.folder, each)
    return list(arms.values())


def grid_of(axes: Sequence[str]) -> dict[str, list[Any]]:
    """Axes like `training.batch=10,all` as keys and their values.

    >>> grid_of(["method.mu=0.01,0.1", "training.batch=10,all"])
    {'method.mu': [0.01, 0.1], 'training.batch': [10, 'all']}
    """
    grid = {}
    for axis in axes:
        key, equals, text = axis.partition("=")
        if not (key.strip() and equals and text.strip()):
            raise UserError(f"--grid {axis}: expected key=value,value, such as method.mu=0.01,0.1")
        whole = toml_value(f"[{text}]")
        grid[key.strip()] = whole if isinstance(whole, list) else [toml_value(part) for part in text.split(",") if part.strip()]
    return grid


def compare(
    arms: Sequence[Arm],
    watch: Watch,
    *,
    data: Path | None = None,
    jobs: int | None = None,
) -> list[dict[str, Any]]:
    """Run what is missing, `jobs` arms at once (by default one a core), go on with what was stopped, reuse what is there.

    Returns the arms' summaries, in their order. An arm that fails does not stop the others; a mistake of the user's does.
    """
    missing = [each for each in arms if not finished(each)]
    at_once = min(jobs or cores(), len(missing))
    failed = _ArmRunner(watch, data, alone=at_once == 1).work(missing, at_once)
    if failed:
        sentences = "; ".join(f"{each.title}: {reason}" for each, reason in failed.items())
        raise RunError(f"{len(failed)} of {len(arms)} runs failed (the same command tries them again): {sentences}")
    return [_summary(each.folder) or {} for each in arms]


def finished(arm: Arm) -> bool:
    """Whether an arm has nothing left to do: its summary is the last thing a run writes."""
    return _summary(arm.folder) is not None


def _summary(folder: Path) -> dict[str, Any] | None:
    """The summary in a folder; one that does not parse (a disk that lost it) is none, and is made again."""
    try:
        found: dict[str, Any] = json.loads((folder / SUMMARY).read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    return found


def _name(method: Method) -> str:
    return method.name or type(method).__name__.lower()


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _offered(experiment: Experiment, method: Method) -> Experiment:
    """The experiment with this method, evaluated under those of its protocols that the method has a model for."""
    settings = experiment.evaluation
    protocols = tuple(protocol for protocol in settings.protocols if protocol in method.offers)
    return experiment.replace(method=method, evaluation=settings.model_copy(update={"protocols": protocols}))


def _has(method: Method, key: str) -> bool:
    """Whether a grid's key is meant for a method: any key but those of other methods."""
    section, _, rest = key.partition(".")
    return section != "method" or rest.partition(".")[0] in {field.name for field in fields(method)}  # type: ignore[arg-type]


def _check_grid(grid: Mapping[str, Sequence[Any]], methods: Sequence[Method]) -> None:
    for key in grid:
        if key in ("method", "seed"):
            raise UserError(f"--grid {key}=...: a comparison has --{key}s for that")
        if not any(_has(method, key) for method in methods):
            raise UserError(f"--grid {key}=...: none of {', '.join(_name(method) for method in methods)} has such a key")


def _points(grid: Mapping[str, Sequence[Any]], method: Method) -> Iterator[dict[str, Any]]:
    axes = {key: values for key, values in grid.items() if _has(method, key)}
    return (dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values()))


class _ArmRunner:
    """Processes that run arms, and the parent's end of the pipes through which they tell what happens."""

    def __init__(self, watch: Watch, data: Path | None, *, alone: bool) -> None:
        self._watch, self._data, self._alone = watch, data, alone
        self._context = multiprocessing.get_context("forkserver")
        # What every arm would import for itself: torch's optimisers want _dynamo, data sources want scikit-learn.
        self._context.set_forkserver_preload(["torch._dynamo", "sklearn.datasets", "coterie.studies.compare"])
        self._running: dict[Connection, _Running] = {}
        self._failed: dict[Arm, str] = {}

    def work(self, arms: Sequence[Arm], at_once: int) -> dict[Arm, str]:
        """Run arms until none is left; those that failed, and why."""
        queue = list(arms)
        try:
            while queue or self._running:
                while queue and len(self._running) < at_once:
                    self._start(queue.pop(0))
                for pipe in wait(list(self._running)):
                    assert isinstance(pipe, Connection)
                    self._hear(pipe)
        except KeyboardInterrupt:
            done = sum(map(finished, arms))
            raise Interrupted(f"stopped; {done} of {len(arms)} runs are done. Go on with the same command") from None
        finally:
            for running in self._running.values():
                running.process.kill()  # its checkpoint is whole at any moment
                running.process.join()
                running.stack.close()
        return self._failed

    def _start(self, arm: Arm) -> None:
        stack = ExitStack()
        listeners = stack.enter_context(self._watch(arm))
        ours, theirs = self._context.Pipe(duplex=False)
        arguments = (theirs, arm.experiment.resolved(), arm.folder, self._data, self._alone)
        process = self._context.Process(target=_perform, args=arguments)
        process.start()
        theirs.close()
        self._running[ours] = _Running(arm, process, listeners, stack)

    def _hear(self, pipe: Connection) -> None:
        running = self._running[pipe]
        try:
            event: Event = json.loads(pipe.recv_bytes())
        except (EOFError, OSError):
            self._end(pipe)
            return
        match event["event"]:
            case "mistake":
                raise UserError(event["reason"])
            case "failure":
                self._failed[running.arm] = event["reason"]
            case _:
                for listener in running.listeners:
                    listener(event)

    def _end(self, pipe: Connection) -> None:
        running = self._running.pop(pipe)
        running.process.join()
        running.stack.close()
        pipe.close()
        if not finished(running.arm):
            self._failed.setdefault(running.arm, f"its process died (exit code {running.process.exitcode}); out of memory?")


@dataclass(eq=False)
class _Running:
    arm: Arm
    process: BaseProcess
    listeners: Sequence[Listener]
    stack: ExitStack


def _perform(pipe: Connection, table: Mapping[str, Any], folder: Path, data: Path | None, alone: bool) -> None:
    """In its own process: start an arm or go on with it, and tell the parent every event."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle

    def tell(event: Event) -> None:
        pipe.send_bytes(json.dumps(event).encode())

    try:
        with _locked(folder):
            if _summary(folder) is None:
                _run_or_resume(Experiment.parse(table), folder, data, alone, tell)
    except BrokenPipeError:  # the parent is gone
        os._exit(1)
    except UserError as error:
        tell({"event": "mistake", "reason": str(error)})
    except RunError as error:
        tell({"event": "failure", "reason": str(error)})
    except Exception:
        tell({"event": "failure", "reason": traceback.format_exc()})


def _run_or_resume(experiment: Experiment, folder: Path, data: Path | None, alone: bool, listener: Listener) -> None:
    ledger, engine = folder / LEDGER, None if alone else Inline()
    if ledger.exists() and next(events(ledger), None) is not None:
        resume(folder, data=data, callbacks=[listener], engine=engine)
    else:  # killed before its first line was on disk, if ever begun
        ledger.unlink(missing_ok=True)
        run(experiment, folder, data=data, callbacks=[listener], engine=engine)


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
