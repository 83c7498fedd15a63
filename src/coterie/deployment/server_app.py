"""The ServerApp: our `run()` over Flower's Grid. What to run is in a folder; `coterie deploy server` has put it there."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from coterie import durable
from coterie.deployment.grid import GridPost
from coterie.errors import UserError, nearest
from coterie.ledger import LEDGER

__all__ = ["Deployment", "conduct", "deployable", "end_with_server", "held", "main", "server_app"]

GRACE = 60.0
"""Seconds in which the server before this one must have ended."""
ABOUT, LOG, STATUS, PID, RUN = "deployment.json", "deployment.log", "status.json", "server.pid", "run"


@dataclass(frozen=True)
class Deployment:
    """What a folder of a deployment says it is.

    >>> import tempfile
    >>> from coterie.running.experiment import Experiment
    >>> folder = Path(tempfile.mkdtemp())
    >>> made = Deployment.begin(folder, Experiment.load("digits-two-class"), ["north", "south"], 2)
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
    def begin(cls, folder: Path, experiment: Any, names: Sequence[str], wait: int) -> Deployment:
        """A new one, or the one that is there."""
        if (folder / ABOUT).exists():
            return cls.read(folder)
        made = cls(folder, secrets.token_hex(16), experiment.resolved(), tuple(names), wait)
        durable.make_folder(folder)
        fields = {key: value for key, value in vars(made).items() if key != "folder"}
        durable.write(folder / ABOUT, json.dumps(fields, indent=2) + "\n")
        return made

    @classmethod
    def read(cls, folder: Path) -> Deployment:
        """The one in a folder."""
        try:
            fields = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
            return cls(folder, **{**fields, "names": tuple(fields["names"])})
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise UserError(f"{folder} holds no deployment: {error}") from None

    def say(self, words: str) -> None:
        """A line in the log."""
        with (self.folder / LOG).open("a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%H:%M:%S')} {words}\n")


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


def conduct(post: Any, folder: Path) -> Any:
    """Wait for the participants, then run the experiment, or go on with it."""
    from coterie.deployment.folders import registered
    from coterie.engines.flower import Flower
    from coterie.running.experiment import Experiment
    from coterie.running.rounds import resume, run

    deployment = Deployment.read(folder)
    experiment = Experiment.parse(deployment.experiment)
    names = list(deployment.names)
    engine = Flower(post, deployment.run, names, {"experiment": deployment.experiment, "names": names}, deployment.say)
    engine.gather(deployment.wait)
    where = folder / RUN
    if (where / LEDGER).exists():
        deployment.say("going on from the last checkpoint")
        return resume(where, engine=engine, callbacks=[_lines(deployment)])
    if experiment.data.source[0].name == "participants":
        missing = [name for name in names if name not in engine.hellos]
        if missing:
            raise UserError(f"--wait {deployment.wait}: expected {len(names)}, the samples of {', '.join(missing)} are not known yet")
        experiment = registered(experiment, {name: engine.hellos[name].samples for name in names})
    return run(experiment, where, engine=engine, callbacks=[_lines(deployment)])


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
    folder = Path(str(context.run_config["folder"]))
    deployment = Deployment.read(folder)
    with held(folder / ABOUT):
        end_with_server(folder)
        durable.write(folder / PID, f"{os.getpid()}\n")
        try:
            result = conduct(GridPost(grid), folder)
        except Exception as error:
            deployment.say(f"failed: {type(error).__name__}: {error}")
            durable.write(folder / STATUS, json.dumps({"state": "failed", "words": str(error)}) + "\n")
            raise
        durable.write(folder / STATUS, json.dumps({"state": "done", "words": str(result.folder)}) + "\n")


def _lines(deployment: Deployment) -> Callable[[dict[str, Any]], None]:
    """A line for each round, and for each participant that was not let in."""
    moved = {"up": 0, "down": 0}

    def listen(event: dict[str, Any]) -> None:
        match event["event"]:
            case "exchange":
                moved[event["direction"]] += event["payload_bytes"]
            case "evaluation" if event["client"] is None and event["metric"] == "accuracy" and "domain" not in event:
                deployment.say(f"round {event['round']}: {event['protocol']} {100 * event['value']:.2f}%")
            case "rejected":
                deployment.say(f"round {event['round']}: {deployment.names[event['client']]} was dropped: {event['reason']}")
            case "round":
                up, down = (f"{moved[way] / 1e6:.2f} MB {way}" for way in ("up", "down"))
                deployment.say(f"round {event['round']} took {event['seconds']:.1f} s; so far {up}, {down}")

    return listen


def server_app() -> Any:
    """The app, as Flower wants it."""
    from flwr.serverapp import ServerApp

    made = ServerApp()
    made.main()(main)
    return made
