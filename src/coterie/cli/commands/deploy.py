"""`coterie deploy`: the same experiment, on real participants through Flower."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coterie.cli.options import ExperimentFile, Set
from coterie.cli.sentences import console, say
from coterie.errors import UserError, counted

if TYPE_CHECKING:
    from coterie.deployment.server_app import Deployment
    from coterie.running.experiment import Experiment

__all__ = ["app"]

app = typer.Typer(help="The same experiment, on real participants through Flower.", no_args_is_help=True)

Insecure = Annotated[bool, typer.Option("--insecure", help="No encryption and no keys: for a trial on one machine, never for real data.")]
KeysFolder = Annotated[Path, typer.Option("--keys", help="The folder with certificates and keys, as `coterie deploy keys` makes it.")]


@app.command("keys")
def keys_command(
    folder: Annotated[Path, typer.Argument(help="Where to put them.")],
    clients: Annotated[str, typer.Option("--clients", help="Names of the participants, separated by commas.")],
    hosts: Annotated[str, typer.Option("--hosts", help="Names and addresses of the server's machine, separated by commas.")] = "",
) -> None:
    """Make an authority, the server's certificate and a key for each participant: for a trial."""
    from coterie.deployment.keys import DAYS, make_keys

    names = _names(clients)
    make_keys(folder, names, _names(hosts) if hosts else ())
    say(f"written to {folder}, good for {DAYS} days: ca.pem for everybody, server.key for the server alone,")
    say(f"{', '.join(f'{name}.key' for name in names)} each for its participant alone; ca.key signs others, keep it away")


Clients = Annotated[str, typer.Option("--clients", help="Names of the participants, separated by commas.")]
Wait = Annotated[int | None, typer.Option("--wait", min=1, help="Begin when so many are there; by default all.")]


@app.command("app")
def app_command(
    experiment: ExperimentFile,
    folder: Annotated[Path, typer.Argument(help="Where to write the app.")],
    clients: Clients,
    overrides: Set = None,
    out: Annotated[Path, typer.Option("--out", help="Where the run is to be written, on the SuperLink's machine.")] = Path("deployment"),
    wait: Wait = None,
) -> None:
    """Write the deployment as an ordinary Flower app, for `flwr run` on a SuperLink that is there already."""
    from coterie.deployment.flower import write_app

    write_app(folder, out, _planned(experiment, overrides, clients, out, wait).text(), {})
    say(f"written to {folder}; run it with: flwr run {folder} NAME, where NAME is the SuperLink's in Flower's config.toml")


def _planned(experiment: str, overrides: list[str] | None, clients: str, out: Path, wait: int | None) -> Deployment:
    """A new deployment, in no folder yet."""
    from coterie.deployment.server_app import Deployment, deployable
    from coterie.running.experiment import Experiment

    names = _names(clients)
    return Deployment.new(out, deployable(Experiment.load(experiment, overrides or ()), names), names, wait or len(names))


@app.command("server")
def server_command(
    experiment: ExperimentFile,
    clients: Clients,
    overrides: Set = None,
    out: Annotated[Path, typer.Option("--out", help="The folder of this deployment; one that is there goes on.")] = Path("deployment"),
    host: Annotated[str, typer.Option("--host", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="The port to listen on; 0 for one that is free.")] = 8000,
    wait: Wait = None,
    changed_code: Annotated[bool, typer.Option("--changed-code", help="Go on although the code has changed.")] = False,
    keys: KeysFolder = Path("keys"),
    insecure: Insecure = False,
) -> None:
    """Wait for the participants, then run the experiment with them; stopped, it goes on where it was."""
    from coterie.deployment.conducting import serve

    deployment = _planned(experiment, overrides, clients, out, wait).begun()
    if insecure:
        say("INSECURE: nothing is encrypted and anybody may take part")
    with _shown(deployment) as look:
        words = serve(deployment, host, port, None if insecure else keys, say, look, changed_code=changed_code)
    say(f"done, written to {words}")


@contextmanager
def _shown(deployment: Deployment) -> Iterator[Callable[[], None]]:
    """What is called again and again to show how a deployment stands; where there is no terminal its lines say it."""
    if not console.is_terminal:
        yield lambda: None
        return
    from rich.live import Live

    from coterie.cli.attendance import Attendance

    attendance = Attendance(deployment.folder, deployment.names)
    with Live(attendance.frame(), console=console, auto_refresh=False) as live:
        yield lambda: live.update(attendance.frame(), refresh=True)


@app.command("client")
def client_command(
    server: Annotated[str, typer.Option("--server", help="HOST:PORT of the server.")],
    name: Annotated[str, typer.Option("--name", help="What this participant is called.")],
    data: Annotated[Path | None, typer.Option("--data", help="Your images, class/*.png; without, a part of the experiment's own.")] = None,
    home: Annotated[Path | None, typer.Option("--home", help="What stays on this machine; by default ~/.coterie/NAME.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="Your own network, where the method lets clients differ.")] = None,
    never: Annotated[str, typer.Option("--never-send", help="Kinds of content that do not leave, e.g. activations,labels.")] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Take part without being asked once what will leave was shown.")] = False,
    keys: KeysFolder = Path("keys"),
    insecure: Insecure = False,
) -> None:
    """Take part: show what will leave this machine, ask, and answer until told to stop."""
    from coterie.deployment.keys import Keys
    from coterie.deployment.participant import Participant
    from coterie.deployment.resident import serve_participant
    from coterie.engines.flower import is_name
    from coterie.models import MODELS
    from coterie.running.files import toml_value

    if not is_name(name):
        raise UserError(f"--name {name!r:.60}: expected letters, digits, dots, dashes and underscores")
    if data is not None and not data.is_dir():
        raise UserError(f"--data {data}: no such folder")
    files = None
    if not insecure:
        found = Keys(keys)
        found.need(found.ca, found.participant(name))
        files = found.ca, found.participant(name)
    refused = frozenset(each for each in never.split(",") if each)
    where = home or Path.home() / ".coterie" / name
    chosen = None if model is None else MODELS.resolve(toml_value(model), "--model")
    participant = Participant(name, where, data, refused, chosen, lambda plan: _agreed(plan, refused, yes), say=_stamped)
    serve_participant(participant, server, files)


def _agreed(plan: Experiment, refused: frozenset[str], yes: bool) -> bool:
    """Show what will leave; whether that is agreed to."""
    from coterie.deployment.declaration import declared

    about = f"{plan.method.name}, {counted(plan.rounds, 'round')}, here with the model {plan.model[0].name} on {_data(plan)}"
    say(f"the server wants to run '{plan.name}': {about}")
    for sentence in declared(plan, refused):
        say(sentence)
    return yes or (sys.stdin.isatty() and console.input("Take part? [y/N] ").strip().lower() in ("y", "yes"))


def _data(plan: Experiment) -> str:
    """What is trained on, for whoever decides."""
    own = plan.data.source[0].name == "participants"
    return "your own images" if own else f"its part of {', '.join(source.name for source in plan.data.source)}"


def _stamped(words: str) -> None:
    say(f"{time.strftime('%H:%M:%S')} {words}")


def _names(text: str) -> list[str]:
    found = [name.strip() for name in text.split(",") if name.strip()]
    if not found:
        raise UserError("--clients is empty: expected names separated by commas")
    return found
