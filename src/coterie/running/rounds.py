"""The one round loop: rounds, evaluation, ledger, an atomic checkpoint every round, and the way back into a run that stopped."""

from __future__ import annotations

import itertools
import shutil
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from coterie import durable
from coterie.devices import find
from coterie.engines import Inline
from coterie.engines.engine import Engine, RunContext
from coterie.engines.processes import Unguarded
from coterie.errors import Interrupted, RunError, UserError, without_ours
from coterie.ledger import LEDGER, Ledger, Listener, to_json
from coterie.method import Method
from coterie.own import no_file
from coterie.population import Population
from coterie.protocols import PROTOCOLS
from coterie.record import Record
from coterie.results.summary import SUMMARY, summarise
from coterie.results.tally import Tally
from coterie.running.checkpoint import PREVIOUS, Checkpoints, Latest, digest, latest
from coterie.running.evaluation import evaluate
from coterie.running.experiment import Experiment
from coterie.running.federation import Coordinator
from coterie.running.provenance import continued, origin, pretraining_digest, processor, versions
from coterie.running.result import Result, started

__all__ = ["LEDGER", "Result", "check_folder", "new_folder", "resume", "run", "started"]

LABEL_BYTES = 8
PLATEAU = 0.005
"""A new client has arrived when its accuracy is this close to its plateau."""


@without_ours
def run(
    experiment: Experiment,
    folder: Path | str | None = None,
    *,
    data: Path | None = None,
    callbacks: Sequence[Listener] = (),
    engine: Engine | None = None,
    shared: Path | None = None,
    until: int | None = None,
) -> Result:
    """Run an experiment from its beginning.

    Args:
        experiment: what to run.
        folder: where to write; by default a new one under `runs/`.
        data: the data folder, else `$COTERIE_DATA`, else the user's cache.
        callbacks: functions that are given every event of the ledger as it happens.
        engine: where clients run, else what the experiment says.
        shared: a folder in which several runs of a comparison keep the pretrained models that they start from, each done once.
        until: stop after this round, if it is not the last; `resume` goes on.

    >>> import tempfile
    >>> experiment = Experiment.load("digits-two-class", ["rounds=2", "engine.name=inline"])
    >>> result = run(experiment, tempfile.mkdtemp())
    >>> sorted(path.name for path in result.folder.iterdir())
    ['checkpoint.previous.safetensors', 'checkpoint.safetensors', 'ledger.jsonl', 'summary.json']
    """
    chosen = _ready(experiment, engine)
    if folder is not None:
        check_folder(Path(folder))
    population = _sharing(experiment, experiment.population(data), shared, data)
    where = new_folder(experiment) if folder is None else Path(folder)
    durable.make_folder(where)
    with _begun(where), Ledger(where / LEDGER, callbacks) as ledger:
        _check_first(where)
        ledger.write(
            "start",
            experiment=experiment.resolved(),
            seed=experiment.seed,
            **origin(experiment, data),
            versions=versions(),
            processor=processor(),
        )
        ledger.commit()
        return _go(experiment, population, where, ledger, chosen, Latest(), until)


@without_ours
def resume(
    folder: Path | str,
    *,
    data: Path | None = None,
    callbacks: Sequence[Listener] = (),
    engine: Engine | None = None,
    shared: Path | None = None,
    changed_code: bool = False,
    changed_data: bool = False,
    until: int | None = None,
) -> Result:
    """Go on with a run that was stopped, from its last checkpoint; the result has the same bits as if it had not been.

    Code or data that are not as they were when the run was begun are a reason to refuse, unless `changed_code` or `changed_data` says
    that this is meant; the ledger then says so too. With `until` it stops again after that round, if it is not the last.

    >>> import tempfile
    >>> experiment = Experiment.load("digits-two-class", ["rounds=2", "engine.name=inline"])
    >>> first = run(experiment, tempfile.mkdtemp())
    >>> resume(first.folder).summary == first.summary
    True
    """
    where = Path(folder)
    experiment = started(where)
    with Ledger(where / LEDGER, callbacks) as ledger:
        found = latest(where)
        meant = {"changed_code": changed_code, "changed_data": changed_data}
        said = {} if found.over else continued(where / LEDGER, found.length, experiment, data, **meant)
        chosen = Inline() if found.over else _ready(experiment, engine)  # of a run that is over, nothing is run
        population = _sharing(experiment, experiment.population(data), shared, data)
        dropped = ledger.cut(found.length)
        if not found.over:
            said |= {"damaged": found.damage} if found.damage else {}
            ledger.write("resume", round=found.round, dropped_bytes=dropped, **said, versions=versions(), processor=processor())
        return _go(experiment, population, where, ledger, chosen, found, until)


def _ready(experiment: Experiment, engine: Engine | None) -> Engine:
    """The engine that clients run on, if it can be had and can do what is asked: known before anything is written."""
    chosen = engine or _engine(experiment)
    if experiment.training.stack is not None and not chosen.stacks:
        raise UserError(f"training.stack = {experiment.training.stack}: clients are apart on this engine, expected no such key")
    find(experiment.engine.device)
    chosen.warm()
    return chosen


@contextmanager
def _begun(folder: Path) -> Iterator[None]:
    """A run of which nothing can come, however often it is resumed, leaves its new folder to the next."""
    try:
        yield
    except Unguarded:
        if not (folder / PREVIOUS).exists():  # else a round was done, and the script was changed since
            shutil.rmtree(folder, ignore_errors=True)
        raise


def _engine(experiment: Experiment) -> Engine:
    """The experiment's engine; a method from a notebook's cell runs where it is, for no other process could import it."""
    chosen, home = experiment.engine.build(), type(experiment.method).__module__
    if not chosen.isolated or home != "__main__" or hasattr(sys.modules[home], "__file__"):
        return chosen
    name = type(experiment.method).__name__
    warnings.warn(f"{name} is in no file that workers could import: clients run in this process, one after another", stacklevel=3)
    return Inline()


def _sharing(experiment: Experiment, population: Population, shared: Path | None, data: Path | None) -> Population:
    """The same population, whose clients find their pretrained models in a folder, if several runs share one."""
    if shared is None or not experiment.pretraining:
        return population
    where = shared / pretraining_digest(experiment, data)
    return replace(population, plan=replace(population.plan, shared=where))


def _go(
    experiment: Experiment, population: Population, folder: Path, ledger: Ledger, engine: Engine, found: Latest, until: int | None
) -> Result:
    """From the beginning or from a checkpoint to the summary, which a run that is stopped before has none of."""
    settings = experiment.engine
    population = replace(population, device=find(settings.device))
    context = RunContext(experiment.method, population, folder, settings.memory_mb * 2**20, settings.device)
    clients = tuple(range(experiment.clients_in_training(population.partition)))
    fed = Coordinator(context, engine, ledger, experiment.admission, clients)
    try:
        with _single_thread():
            if not found.over:
                engine.open(context)
            state, over = _rounds(experiment, fed, Checkpoints(folder, experiment.engine.durable), found, until or experiment.rounds)
    except KeyboardInterrupt:
        raise Interrupted(f"stopped; what was done is in {folder}. Go on with: coterie run --resume {folder}") from None
    finally:
        engine.close()
        shutil.rmtree(context.live, ignore_errors=True)
    if not over:
        return Result(folder, {}, state)
    summary = summarise(Tally.read(folder / LEDGER)) | {"digest": digest(folder, state, fed.memories)}
    durable.write(folder / SUMMARY, to_json(summary, indent=2) + "\n", sync=experiment.engine.durable)
    return Result(folder, summary, state)


def _rounds(experiment: Experiment, fed: Coordinator, checkpoints: Checkpoints, found: Latest, until: int) -> tuple[Record, bool]:
    """Every round that is left, then the new clients; the server's state, and whether that was all."""
    method, checkpoint = experiment.method, found.record
    checkpoints.adopt(found)
    if checkpoint is None:
        fed.ledger.write("partition", **fed.context.population.describe())
        _count_setup(experiment, fed)
        state, last = _state(method, "start", method.start(fed)), 0
        fed.finish()
        checkpoints.save(fed, state, 0, done=False)
    else:
        state, last = checkpoint.group("state"), found.round
        fed.memories.update(found.memories)
        if found.over:
            return state, True
    reached = bool(checkpoint and checkpoint["reached"])
    while last < min(until, experiment.rounds) and not reached:
        last += 1
        state, reached = _one_round(experiment, fed, state, last)
        over = reached or last == experiment.rounds
        checkpoints.save(fed, state, last, done=over and experiment.new_clients is None, reached=reached)
    if last < experiment.rounds and not reached:
        return state, False
    if experiment.new_clients is not None:
        _join(experiment, fed, state, last)
        checkpoints.save(fed, state, last, done=True, reached=reached)
    return state, True


def _one_round(experiment: Experiment, fed: Coordinator, state: Record, round: int) -> tuple[Record, bool]:
    """One round and its evaluation; whether the accuracy to stop at is reached."""
    began = time.perf_counter()
    settings, final = experiment.evaluation, round == experiment.rounds
    protocols = experiment.protocols if round % settings.every == 0 or final else ()
    fixed = experiment.evaluated(len(fed.clients))
    fed.begin(round, experiment.cohort_of(round, len(fed.clients)), protocols, experiment.evaluated(len(fed.clients), final=final))
    state = _state(experiment.method, "round", experiment.method.round(state, fed))
    fed.finish()
    found = evaluate(fed, state, fixed, final=final) if protocols else {}
    fed.ledger.write("round", round=round, seconds=time.perf_counter() - began, where=dict(sorted(fed.seconds.items())))
    if missing := [name for name in protocols if name not in found]:
        raise RunError(f"round {round}: nothing was measured under {', '.join(missing)}; {_why_nothing(experiment, missing[0])}")
    reached = settings.stop_at is not None and bool(protocols) and found[protocols[0]] >= settings.stop_at
    return state, reached


def _state(method: Method, function: str, given: object) -> Record:
    """What a method says is the server's state, if it can be one."""
    if not isinstance(given, Record):
        raise RunError(f"method '{method.name}': {function} returned {type(given).__name__}, expected the server's state, a Record")
    return given


def _why_nothing(experiment: Experiment, protocol: str) -> str:
    model = PROTOCOLS[protocol].model
    called = f"site.evaluate('{model}', ...) was not called, or who is measured has no data for it"
    return f"method '{experiment.method.name}' says that it evaluates its '{model}' model: {called}"


def _count_setup(experiment: Experiment, fed: Coordinator) -> None:
    """Count what is handed out or gathered before the first round: public data (as sent or as already there), and centralised data."""
    population = fed.context.population
    for client in fed.clients:
        if population.public is not None and experiment.data.public is not None and population.has_public(client):
            fed.traffic.setup(client, "down", "public data", population.public.x.nbytes if experiment.data.public.sent else 0)
        if experiment.method.gathers_data:
            held = int(population.partition.train.sizes[client])
            fed.traffic.setup(client, "up", "data", held * (population.pool.x[:1].nbytes + LABEL_BYTES))


def _no_curve(reply: Record, epochs: int) -> str | None:
    """What is wrong with what a new client says of its accuracy, epoch by epoch; None if nothing."""
    curve = reply.tensors.get("curve")
    if curve is None or curve.dim() != 1 or len(curve) != epochs + 1:
        return f"curve is missing, the {epochs + 1} accuracies before and after each epoch"
    return None if all(0 <= value <= 1 for value in curve.tolist()) else "curve is not made of accuracies, from 0 to 1"


def _join(experiment: Experiment, fed: Coordinator, state: Record, round: int) -> None:
    """Clients held out of training join: each adapts by itself from what the method gives new clients."""
    assert experiment.new_clients is not None
    population = fed.context.population
    kinds = {client: population.architecture_of(client) for client in population.new_clients if population.measurable(client)}
    epochs = experiment.new_clients.epochs
    messages = {kind: experiment.method.for_new_client(state, kind) | Record(epochs=epochs) for kind in sorted(set(kinds.values()))}
    fed.begin(round + 1, tuple(kinds), (), ())
    for reply in fed.ask("adapt", {client: messages[kind] for client, kind in kinds.items()}, check=lambda said: _no_curve(said, epochs)):
        curve = [float(value) for value in reply.record.tensors["curve"]]
        tail = curve[-max(1, len(curve) // 5) :]
        plateau = sum(tail) / len(tail)
        arrived = next(epoch for epoch, value in enumerate(curve) if value >= plateau - PLATEAU)
        fed.ledger.write("new_client", client=reply.client, accuracy=curve, plateau=plateau, epochs_to_plateau=arrived)
        for epoch, value in enumerate(curve):
            found = {"protocol": "new_client", "client": reply.client, "metric": "accuracy", "value": value, "epoch": epoch}
            fed.ledger.write("evaluation", round=round + 1, **found)


def check_folder(folder: Path) -> None:
    """Raise a UserError where no run can be begun in a folder: there is a file in its place or above it, or something in it.

    >>> check_folder(Path("no/such/folder"))
    """
    no_file(folder, "a folder that is empty or not there yet")
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"the folder {folder} is not empty: resume what is in it (--resume {folder}), or choose another")


def _check_first(folder: Path) -> None:
    """Nobody else can write to the ledger now, but somebody may have since the folder was looked at."""
    if (folder / LEDGER).stat().st_size:
        raise UserError(f"the folder {folder} is not empty: another run was begun in it meanwhile")


def new_folder(experiment: Experiment, root: Path = Path("runs")) -> Path:
    """A new folder for a run, made at once so that nobody else gets it: name, method, seed, and a number where that is taken."""
    stem = f"{experiment.name}-{experiment.method.name or type(experiment.method).__name__.lower()}-s{experiment.seed}"
    names = (stem if number == 1 else f"{stem}-{number}" for number in itertools.count(1))
    return next(root / name for name in names if _made(root / name))


def _made(folder: Path) -> bool:
    """Whether a folder could be made that was not there."""
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        return False
    return True


@contextmanager
def _single_thread() -> Iterator[None]:
    """One torch thread, as every worker has: how sums are split over threads changes bits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
