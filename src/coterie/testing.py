"""The public conformance suite: any method and any engine, ours or a user's, can be run through it.

    from coterie.testing import check_engine, check_method
    check_method(MyMethod(), up=796_840, down=796_840)
    check_engine(MyEngine)

It runs the method on real data (scikit-learn's digits) in many ways that must not matter, and says in a sentence what does; it puts the
engine through all that one client can do to a run (`coterie.hostile`), and says what it does not survive.
"""

from __future__ import annotations

import dataclasses
import pickle  # to see whether a method survives it, as a worker needs; nothing that arrives is ever unpickled
import random
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch

from coterie.engines import Engine, Inline, Job, Outcome, Processes
from coterie.engines.worker import Performer
from coterie.errors import CoterieError, Interrupted
from coterie.hostile import BEHAVIOURS, Behaviour, Crowd
from coterie.ledger import LEDGER, Event, Listener, events
from coterie.method import Method
from coterie.protocols import PROTOCOLS
from coterie.record import Record
from coterie.running.admission import Admission
from coterie.running.experiment import Experiment
from coterie.running.rounds import Result, resume, run
from coterie.site import Site

__all__ = ["ConformanceError", "Trial", "check_engine", "check_method", "small_experiment", "try_engine"]

_TIMED = ("start", "resume", "round")
"""Events that differ between two runs of the same bits."""


class ConformanceError(CoterieError, AssertionError):
    """A method broke the contract; the sentence says how."""


def small_experiment(method: Method, rounds: int = 3, **changes: object) -> Experiment:
    """Digits over five unequal clients, three a round, a small network: seconds to run.

    >>> from coterie.methods.fedavg import FedAvg
    >>> small_experiment(FedAvg()).cohort
    3
    """
    table = {
        "name": "conformance",
        "rounds": rounds,
        "cohort": 3,
        "data": {"source": "digits", "train": 300, "test": 100},
        "partition": {"name": "dirichlet", "clients": 5, "alpha": 1.0, "minimum": 10},
        "model": {"name": "mlp", "hidden": [16]},
        "method": "fedavg",
        "training": {"epochs": 2, "batch": 16, "optimiser": {"name": "sgd", "lr": 0.1, "momentum": 0.5}},
    }
    return Experiment.parse(table).replace(method=method, **changes)


def check_method(
    method: Method,
    experiment: Experiment | None = None,
    *,
    up: int | None = None,
    down: int | None = None,
    same_as: Method | None = None,
    engines: Sequence[Callable[[], Engine]] = (lambda: Processes(1), lambda: Processes(2)),
) -> Result:
    """Raise a `ConformanceError` if the method breaks the contract; else give back the reference run.

    Args:
        method: the instance to check.
        experiment: what to run it on; by default `small_experiment(method)`.
        up: payload bytes that one client sends in one round, by your formula.
        down: payload bytes that one client receives in one round.
        same_as: another method whose final state must be in this one's to the bit (a term switched off); there may be more in it.
        engines: where it must give the same bits as inline.

    >>> from coterie.methods import FedAvg
    >>> check_method(FedAvg(), up=4 * (64 * 16 + 16 + 16 * 10 + 10), engines=()).summary["rounds"]
    3
    """
    check_frozen(method)
    plan = (experiment or small_experiment(method)).replace(method=method)
    seen: list[Event] = []
    reference = _run(plan, Inline(), seen.append)
    _equal(reference, _run(plan, _Careful()), "its result changes when every task gets a fresh copy of the method: state is hidden on it")
    _equal(reference, _run(_evaluated(plan), Inline()), "its result changes when its models are evaluated at clients")
    _check_bytes(seen, up, down)
    _check_missing_client(plan)
    _check_resume(plan, reference, seen)
    for build in engines:
        engine = build()
        _equal(reference, _run(plan, engine), f"its result on {type(engine).__name__} differs from inline")
    if same_as is not None:
        apart = _apart(reference.state, _run(plan.replace(method=same_as), Inline()).state)
        if apart is not None:
            raise ConformanceError(f"{method} does not reduce to {same_as}: after the last round {apart}")
    return reference


def _apart(ours: Record, theirs: Record) -> str | None:
    """What of another method's state is not the same in ours, bit for bit; ours may have more (a momentum, say)."""
    for name, value in theirs.items():
        if name not in ours:
            return f"its state has no {name}"
        if Record({name: ours[name]}) != Record({name: value}):
            both = [each.double() for each in (ours[name], value) if isinstance(each, torch.Tensor)]
            much = f" by up to {float((both[0] - both[1]).abs().max()):.3g}" if len({each.shape for each in both}) == 1 else ""
            return f"{name} in its state differs{much}"
    return None


def check_engine(build: Callable[[], Engine], behaviours: Sequence[str] = tuple(BEHAVIOURS), *, deadline: float = 10.0) -> None:
    """Raise a `ConformanceError` if an engine does not survive what one client can do to a run.

    Every misbehaving client must be dropped, and named with its reason; everybody else must be let in, and the result must have the bits
    that it has, inline, where the misbehaving clients are simply missing. All behaviours are in one run, each a client's.

    Args:
        build: makes a new engine.
        behaviours: names from `coterie.hostile.BEHAVIOURS`. Those that only a process of its own can survive are left out where the engine
            says that it has none (`Engine.isolated`).
        deadline: seconds for a task; some clients take for ever.

    >>> check_engine(Inline, ["raises SystemExit", "turns gradients off"])
    """
    trial = try_engine(build, behaviours, deadline)
    for complaint in trial.complaints():
        raise ConformanceError(complaint)


@dataclasses.dataclass(frozen=True)
class Trial:
    """What came of a run in which clients misbehave."""

    behaviours: Sequence[Behaviour]
    """Of client 0, of client 1, and so on."""
    reasons: Mapping[int, str]
    """Client -> why it was dropped."""
    same: bool
    """Whether bits and accuracies are those of a run in which the clients that should be dropped are missing."""

    def complaint(self, client: int) -> str | None:
        """What is wrong with the fate of one client, or None."""
        reason = self.reasons.get(client)
        if client >= len(self.behaviours):
            return None if reason is None else f"client {client} is honest and was dropped: {reason}"
        name, expected = self.behaviours[client].name, self.behaviours[client].reason
        if expected is None:
            return None if reason is None else f"a client that {name} harms nobody and was dropped: {reason}"
        if reason is None:
            return f"a client that {name} was let in"
        return None if re.search(expected, reason) else f"a client that {name} was dropped with '{reason}', expected '{expected}'"

    def complaints(self) -> Iterator[str]:
        """All that is wrong."""
        clients = {*range(len(self.behaviours)), *self.reasons}
        yield from filter(None, map(self.complaint, sorted(clients)))
        if not self.same:
            yield "the result is not that of a run in which the dropped clients are missing"


def try_engine(build: Callable[[], Engine], behaviours: Sequence[str] = tuple(BEHAVIOURS), deadline: float = 10.0) -> Trial:
    """See what becomes of clients that misbehave; `check_engine` has the arguments."""
    engine, seen = build(), list[Event]()
    chosen = [BEHAVIOURS[name] for name in behaviours if engine.isolated or not BEHAVIOURS[name].isolated]
    plan = _crowd(chosen, deadline)
    found = _run(plan, engine, seen.append)
    engine.close()
    dropped = {client for client, each in enumerate(chosen) if each.reason is not None}
    without = _run(plan.replace(method=Crowd()), _Missing(lambda job: job.round == 1 and job.client in dropped))
    reasons = {event["client"]: event["reason"] for event in seen if event["event"] == "rejected"}
    return Trial(chosen, reasons, all(found.summary[key] == without.summary[key] for key in ("digest", "protocols")))


def _crowd(behaviours: Sequence[Behaviour], deadline: float) -> Experiment:
    """Clients that misbehave in the first of two rounds, and some that never do."""
    method = Crowd(behaviours=tuple(each.name for each in behaviours))
    return small_experiment(method, rounds=2).replace(
        cohort=1.0,
        partition={"name": "iid", "clients": len(behaviours) + 5},
        data={"source": "digits", "train": 10 * (len(behaviours) + 5), "test": 100},
        admission=Admission(faults="drop", quorum=0.01, deadline=deadline),
    )


def _evaluated(plan: Experiment) -> Experiment:
    """The same under every protocol that the method offers and the data allow; a model that is never evaluated is an error there."""
    population = plan.population()
    domains, validation, permuted = population.partition.domain_of, population.partition.validation, population.partition.permutation
    offered = [PROTOCOLS[name] for name in plan.method.protocols]
    chosen = tuple(
        each.name
        for each in offered
        if not (each.by_domain and domains is None)
        and not (each.data == "own validation" and not len(validation))
        and not (not each.about_clients and permuted is not None)
    )
    return plan.replace(evaluation=plan.evaluation.model_copy(update={"protocols": chosen, "every": 1}))


def check_frozen(method: Method) -> None:
    """A method is a frozen dataclass that survives a pickle and can be a key."""
    name = type(method).__name__
    if not dataclasses.is_dataclass(method):
        raise ConformanceError(f"{name} is not a dataclass")
    if not type(method).__dataclass_params__.frozen:
        raise ConformanceError(f"{name} is mutable: declare it @dataclass(frozen=True)")
    try:
        if pickle.loads(pickle.dumps(method)) != method:
            raise ConformanceError(f"{name} comes back from a pickle as something else")
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConformanceError(f"{name} cannot be pickled, so no worker can have it: {error}") from None
    try:
        hash(method)
    except TypeError as error:
        raise ConformanceError(f"{name} has a mutable setting: {error}") from None


class _CarefulPerformer(Performer):
    """Gives each task a fresh copy of the method, and looks at what the task did to the world."""

    def call(self, task: str, site: Site, memory: Record, message: Record) -> tuple[Record, Record]:
        copy = type(self)(pickle.loads(pickle.dumps(self._method)), self._population, self._memories)
        before = message.digest(), memory.digest(), pickle.dumps(copy._method)
        states = _global_states()
        answer = Performer.call(copy, task, site, memory, message)
        if _global_states() != states:
            raise ConformanceError(f"task '{task}' draws from a global random generator; use site.rng(...)")
        if message.digest() != before[0]:
            raise ConformanceError(f"task '{task}' edits the message it received")
        if memory.digest() != before[1]:
            raise ConformanceError(f"task '{task}' edits its memory in place; return a new Record")
        if pickle.dumps(copy._method) != before[2]:
            raise ConformanceError(f"task '{task}' hides state on the method")
        return answer


class _Careful(Inline):
    performer = _CarefulPerformer


class _Missing(Inline):
    """Loses some jobs; unless said which, that of the last client of every cohort."""

    def __init__(self, lost: Callable[[Job], bool] | None = None) -> None:
        super().__init__()
        self._lost = lost

    def deliver(self, jobs: Sequence[Job]) -> Iterator[Outcome]:
        asked = [job for job in jobs if not job.keep.endswith("guest")]
        lost = [*filter(self._lost, jobs)] if self._lost else asked[1:][-1:]
        for job in jobs:
            yield job.failed("it did not answer") if job in lost else next(super().deliver([job]))


def _run(plan: Experiment, engine: Engine, *callbacks: Listener) -> Result:
    with tempfile.TemporaryDirectory() as folder:
        try:
            return run(plan, Path(folder) / "run", engine=engine, callbacks=callbacks)
        except CoterieError as error:
            found = _conformance(error)
            raise found or error from None


def _conformance(error: BaseException | None) -> ConformanceError | None:
    """The broken rule behind an error, if that is what it was."""
    while error is not None and not isinstance(error, ConformanceError):
        error = error.__cause__
    return error


def _equal(reference: Result, other: Result, complaint: str) -> None:
    if reference.summary["digest"] != other.summary["digest"]:
        raise ConformanceError(complaint)


def _check_bytes(seen: Sequence[Event], up: int | None, down: int | None) -> None:
    """Every client's payload in every round, setup aside, is what the formula says."""
    found: Counter[tuple[str, int, int]] = Counter()
    for event in seen:
        if event["event"] == "exchange" and event["round"] > 0:
            found[event["direction"], event["round"], event["client"]] += event["payload_bytes"]
    for (direction, round, client), payload in found.items():
        declared = up if direction == "up" else down
        if declared is not None and payload != declared:
            raise ConformanceError(
                f"client {client} moves {payload} payload bytes {direction} in round {round}, the formula says {declared}"
            )


def _check_missing_client(plan: Experiment) -> None:
    rules = dataclasses.replace(plan.admission, faults="drop", quorum=0.1)
    try:
        _run(plan.replace(admission=rules), _Missing())
    except ConformanceError:
        raise
    except Exception as error:
        raise ConformanceError(f"it does not survive a client that is missing: {type(error).__name__}: {error}") from error


def _check_resume(plan: Experiment, reference: Result, seen: Sequence[Event]) -> None:
    """A run that was stopped ends with the same bits, and with the same lines but for those that tell of time."""

    def stop(event: Event) -> None:
        if event["event"] == "round" and event["round"] == plan.rounds - 1:
            raise KeyboardInterrupt

    with tempfile.TemporaryDirectory() as folder:
        with suppress(Interrupted):
            run(plan, Path(folder) / "run", engine=Inline(), callbacks=[stop])
        _equal(reference, resume(Path(folder) / "run", engine=Inline()), "its result changes when the run is stopped and resumed")
        stopped, whole = ([e for e in found if e["event"] not in _TIMED] for found in (events(Path(folder) / "run" / LEDGER), seen))
        if stopped != whole:
            raise ConformanceError("its ledger changes when the run is stopped and resumed")


def _global_states() -> tuple[object, ...]:
    return random.getstate(), pickle.dumps(np.random.get_state()), torch.get_rng_state().numpy().tobytes()  # noqa: NPY002
