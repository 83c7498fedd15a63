"""The ServerApp: our `run()` over Flower's Grid. What to run is in a folder; `coterie deploy server` has put it there."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie import durable
from coterie.deployment.grid import GridPost
from coterie.errors import UserError, nearest
from coterie.ledger import LEDGER, value_of
from coterie.results.tables import amount

if TYPE_CHECKING:  # torch comes with it
    from coterie.engines.flower import Flower, Hello

__all__ = ["Deployment", "conduct", "deployable", "end_with_server", "held", "is_held", "main", "server_app"]

GRACE = 60.0
"""Seconds in which the server before this one must have ended."""
ABOUT, LOG, STATUS, PID, RUN = "deployment.json", "deployment.log", "status.json", "server.pid", "run"
STANDINGS = "participants.json"
"""Who is in, at work, late or gone, as the engine sees it: for who looks on, never read by a run."""


@dataclass(frozen=True)
class Deployment:
    """What a folder of a deployment says it is.

    >>> import tempfile
    >>> from coterie.running.experiment import Experiment
    >>> folder = Path(tempfile.mkdtemp())
    >>> made = Deployment.new(folder, Experiment.load("digits-two-class"), ["north", "south"], 2).begun()
    >>> Deployment.read(folder).names
    ('north', 'south')
    """

    folder: Path
    run: str
    experiment: dict[str, Any]
    names: tuple[str, ...]
    wait: int
    """How many participants must be there before it begins."""

    @classmethod
    def new(cls, folder: Path, experiment: Any, names: Sequence[str], wait: int) -> Deployment:
        """A new one, which is in no folder yet."""
        return cls(folder, secrets.token_hex(16), experiment.resolved(), tuple(names), wait)

    def begun(self) -> Deployment:
        """The one that its folder has, which it is itself where there was none; a UserError where that is about something else."""
        if not (self.folder / ABOUT).exists():
            durable.make_folder(self.folder)
            durable.write(self.folder / ABOUT, self.text())
        there = Deployment.read(self.folder)
        for key, value in self._settings().items():
            if (other := there._settings().get(key)) != value:
                where = f"{self.folder}: a deployment that is there has {key} = {other!s:.200}, not {value!s:.200}"
                raise UserError(f"{where}; expected the same, or another folder (--out)")
        return there

    def _settings(self) -> dict[str, Any]:
        """What must be the same to go on."""
        return {"clients": ", ".join(self.names), **self.experiment}

    @classmethod
    def read(cls, folder: Path) -> Deployment:
        """The one in a folder."""
        try:
            return cls.parse(folder, (folder / ABOUT).read_text(encoding="utf-8"))
        except OSError as error:
            raise UserError(f"{folder} holds no deployment: {error}") from None

    @classmethod
    def parse(cls, folder: Path, text: str) -> Deployment:
        """The one that `text` has put in words."""
        try:
            fields = json.loads(text)
            return cls(folder, **{**fields, "names": tuple(fields["names"])})
        except (ValueError, TypeError, KeyError) as error:
            raise UserError(f"{folder} holds no deployment: {error}") from None

    def text(self) -> str:
        """All of it but the folder."""
        return json.dumps({key: value for key, value in vars(self).items() if key != "folder"}, indent=2) + "\n"

    def say(self, words: str) -> None:
        """A line in the log."""
        with (self.folder / LOG).open("a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%H:%M:%S')} {words}\n")

    def show(self, standings: Mapping[str, Sequence[Any]]) -> None:
        """Lay down how participants stand."""
        durable.write(self.folder / STANDINGS, json.dumps(standings) + "\n", sync=False)


@contextmanager
def held(path: Path, patience: float = GRACE) -> Iterator[None]:
    """Hold a file or a folder of a deployment, as one process at a time can; it is let go with the process, however that ends.

    >>> import tempfile
    >>> with held(Path(tempfile.mkdtemp())):
    ...     pass
    """
    until = time.monotonic() + patience
    file = os.open(path, os.O_RDONLY)
    try:
        while not _lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB):
            if time.monotonic() > until:
                raise UserError(f"{path}: another server is at work on this deployment")
            time.sleep(0.1)
        yield
    finally:
        os.close(file)


def is_held(path: Path) -> bool:
    """Whether some process holds it.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with held(folder):
    ...     is_held(folder)
    True
    >>> is_held(folder)
    False
    """
    file = os.open(path, os.O_RDONLY)
    try:
        return not _lock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    finally:
        os.close(file)


def _lock(file: int, how: int) -> bool:
    try:
        fcntl.flock(file, how)
    except BlockingIOError:
        return False
    return True


def end_with_server(folder: Path) -> None:
    """See to it that this process ends when the command does that holds a deployment's folder: Flower would go on looking for it."""
    file = os.open(folder, os.O_RDONLY)
    if _lock(file, fcntl.LOCK_SH | fcntl.LOCK_NB):  # there is no such command: somebody has called `flwr run`
        os.close(file)
        return

    def wait() -> None:
        _lock(file, fcntl.LOCK_SH)
        os._exit(1)  # as if killed too: what is on the disk is whole at any time

    threading.Thread(target=wait, daemon=True).start()


def conduct(post: Any, folder: Path, nodes: Mapping[str, int] | None = None, *, changed_code: bool = False) -> Any:
    """Wait for the participants, then run the experiment, or go on with it; who has an entry in `nodes` must come from there."""
    from coterie.deployment.folders import miscount, registered
    from coterie.deployment.models import Choices
    from coterie.engines.flower import Flower
    from coterie.running.checkpoint import latest
    from coterie.running.experiment import Experiment
    from coterie.running.rounds import resume, run, started

    deployment = Deployment.read(folder)
    experiment = Experiment.parse(deployment.experiment)
    names = list(deployment.names)
    greeting, where = {"experiment": deployment.experiment, "names": names}, folder / RUN
    begun = (where / LEDGER).exists()
    choices = Choices(experiment, names, started(where) if begun else None)

    def refusal(hello: Hello) -> str | None:
        return miscount(experiment, hello.samples) or choices.refusal(hello)

    engine = Flower(post, deployment.run, names, greeting, deployment.say, deployment.show, refusal, nodes or {})
    listeners = [_lines(deployment), _objections(engine)]
    if not (begun and latest(where).over):  # what is over needs nobody
        engine.gather(deployment.wait)
    if begun:
        deployment.say("going on from the last checkpoint")
        return resume(where, engine=engine, callbacks=listeners, changed_code=changed_code)
    experiment = choices.begin()
    if experiment.data.source[0].name == "participants":
        missing = [name for name in names if name not in engine.hellos]
        if missing:
            raise UserError(f"--wait {deployment.wait}: expected {len(names)}, the samples of {', '.join(missing)} are not known yet")
        experiment = registered(experiment, {name: engine.hellos[name].samples for name in names})
    return run(experiment, where, engine=engine, callbacks=listeners)


def deployable(experiment: Any, names: Sequence[str]) -> Any:
    """The experiment as participants can run it: their faults are dropped, not a reason to stop; UserErrors where it cannot be."""
    from coterie.engines.flower import is_name

    for name in names:
        if not is_name(name):
            raise UserError(f"--clients {name!r:.60}: expected names of letters, digits, dots, dashes and underscores")
    if len(set(names)) < len(names):
        raise UserError(f"--clients {','.join(names)}: expected different names")
    if experiment.data.source[0].name == "participants":
        from coterie.protocols import PROTOCOLS

        wrong = [name for name in experiment.protocols if not PROTOCOLS[name].about_clients]
        if wrong:
            able = [name for name in experiment.method.protocols if PROTOCOLS[name].about_clients]
            raise UserError(f"evaluation.protocols = '{wrong[0]}': the server has no test data here, {nearest(wrong[0], able)}")
    return experiment.replace(admission=replace(experiment.admission, faults="drop"))


def main(grid: Any, context: Any) -> None:
    """What Flower calls."""
    settings = {key: str(context.run_config[key]) for key in ("folder", "deployment", "nodes")}
    folder = Path(settings["folder"])
    deployment = Deployment.parse(folder, settings["deployment"]).begun()
    with held(folder / ABOUT):
        end_with_server(folder)
        durable.write(folder / PID, f"{os.getpid()}\n")
        try:
            result = conduct(GridPost(grid), folder, _nodes(settings["nodes"]), changed_code=bool(context.run_config["changed_code"]))
        except Exception as error:
            deployment.say(f"failed: {type(error).__name__}: {error}")
            durable.write(folder / STATUS, json.dumps({"state": "failed", "words": str(error)}) + "\n")
            raise
        durable.write(folder / STATUS, json.dumps({"state": "done", "words": str(result.folder)}) + "\n")


def _nodes(text: str) -> dict[str, int]:
    """Names and nodes, as an app's configuration has them: `north=17,south=4`."""
    pairs = [each.partition("=") for each in filter(None, text.split(","))]
    if any(not node.strip().isdecimal() for _, _, node in pairs):
        raise UserError(f"nodes = '{text:.60}': expected name=number, separated by commas, as `flwr supernode list` has the numbers")
    return {name.strip(): int(node) for name, _, node in pairs}


def _lines(deployment: Deployment) -> Callable[[dict[str, Any]], None]:
    """A line for each round, and for each participant that was not let in."""
    moved, found = {"up": 0, "down": 0}, dict[str, float]()

    def listen(event: dict[str, Any]) -> None:
        match event["event"]:
            case "exchange":
                moved[event["direction"]] += event["payload_bytes"]
            case "evaluation" if event["client"] is None and event["metric"] == "accuracy" and "domain" not in event:
                found[event["protocol"]] = value_of(event["value"])
            case "rejected":
                deployment.say(f"round {event['round']}: {deployment.names[event['client']]} was dropped: {event['reason']}")
            case "round":
                accuracies = [f"{protocol} {100 * value:.2f}%" for protocol, value in found.items()]
                words = [f"round {event['round']} took {event['seconds']:.1f} s", *accuracies]
                deployment.say("; ".join([*words, f"so far {amount(moved['up'])} up, {amount(moved['down'])} down"]))
                found.clear()

    return listen


def _objections(engine: Flower) -> Callable[[dict[str, Any]], None]:
    """The engine knows an answer that cannot be read; one that can and is not let in it is told of."""

    def listen(event: dict[str, Any]) -> None:
        if event["event"] == "rejected":
            engine.oppose(event["client"])

    return listen


def server_app() -> Any:
    """The app, as Flower wants it."""
    from flwr.serverapp import ServerApp

    made = ServerApp()
    made.main()(main)
    return made
