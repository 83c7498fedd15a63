"""The command line. Exit code 0 for what worked, 2 for a user's mistake, 1 for a run that failed, 130 for one that was stopped."""

from __future__ import annotations

import json
import signal
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from coterie.data_cli import DataFolder, Json
from coterie.data_cli import app as data_app
from coterie.errors import CoterieError, UserError

if TYPE_CHECKING:
    from coterie.named import Registry

__all__ = ["main"]

app = typer.Typer(
    help="Federated learning for clients that differ: in their data, in their models, in what they want.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.add_typer(data_app, name="data")
console = Console()

File = Annotated[str, typer.Argument(help="An experiment file, or the name of one that comes with Coterie.")]
Set = Annotated[list[str] | None, typer.Option("--set", help="Override any key, e.g. method.mu=0.01. Repeatable.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
Out = Annotated[Path | None, typer.Option("--out", help="The folder to write; by default a new one under runs/.")]


class Kind(StrEnum):
    """What can be listed."""

    methods = "methods"
    models = "models"
    datasets = "datasets"
    partitions = "partitions"
    experiments = "experiments"


@app.command("run")
def run_command(
    experiment: Annotated[str | None, typer.Argument(help="An experiment file, or the name of one that comes with Coterie.")] = None,
    overrides: Set = None,
    out: Out = None,
    resume: Annotated[Path | None, typer.Option("--resume", help="Go on with the run in this folder.")] = None,
    data: DataFolder = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run one experiment, or go on with one that was stopped."""
    from coterie.experiment import Experiment
    from coterie.progress import watching
    from coterie.rounds import resume as resume_run
    from coterie.rounds import run as run_new
    from coterie.rounds import started
    from coterie.tables import amount, outcome

    if (experiment is None) == (resume is None):
        raise UserError("coterie run takes either an experiment or --resume FOLDER")
    if resume is not None and (overrides or out):
        raise UserError("--resume goes on with the experiment as it was: --set and --out do not go with it")
    plan = started(resume) if resume is not None else Experiment.load(str(experiment), overrides or ())
    with watching(console, f"{plan.name} {plan.method.name}", plan.rounds, quiet=quiet or as_json) as callbacks:
        if resume is not None:
            result = resume_run(resume, data=data, callbacks=callbacks)
        else:
            result = run_new(plan, out, data=data, callbacks=callbacks)
    if as_json:
        sys.stdout.write(json.dumps({"folder": str(result.folder), **result.summary}) + "\n")
        return
    traffic = result.summary["bytes"]
    setup = traffic["setup_up"] + traffic["setup_down"]
    console.print(outcome(f"{plan.name}: {plan.method.name}, {result.summary['rounds']} rounds", result.summary))
    console.print(
        f"sent up {amount(traffic['up'])}, down {amount(traffic['down'])}, setup {amount(setup)}; {result.summary['seconds']:.1f} s"
    )
    console.print(f"written to {result.folder}", soft_wrap=True)


@app.command("compare")
def compare_command(
    experiment: File,
    methods: Annotated[str, typer.Option("--methods", help="Names, separated by commas.")],
    seeds: Annotated[str, typer.Option("--seeds", help="Numbers, separated by commas.")] = "0",
    overrides: Set = None,
    out: Out = None,
    data: DataFolder = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run several methods on the same experiment and put them in one table. What was run before is reused."""
    from coterie.compare import arms_of, compare
    from coterie.experiment import Experiment
    from coterie.progress import watching
    from coterie.tables import comparison

    plan = Experiment.load(experiment, overrides or ())
    folder = out or Path("runs") / plan.name
    arms = arms_of(plan, _words(methods, "--methods"), [_whole(seed) for seed in _words(seeds, "--seeds")], folder)
    shown = [
        (arm.experiment.method.name, result.summary)
        for arm, result in compare(arms, lambda title, rounds: watching(console, title, rounds, quiet=quiet or as_json), data=data)
    ]
    if as_json:
        rows = [{"method": name, "seed": arm.experiment.seed, **summary} for arm, (name, summary) in zip(arms, shown, strict=True)]
        sys.stdout.write(json.dumps(rows) + "\n")
        return
    console.print(comparison(f"{plan.name}, {plan.rounds} rounds: last accuracy", shown))
    console.print(f"written to {folder}", soft_wrap=True)


@app.command("list")
def list_command(kind: Kind, as_json: Json = False) -> None:
    """What can be named in an experiment."""
    from coterie.tables import simple

    rows = [{"name": name, "what": what} for name, what in _listed(kind).items()]
    if as_json:
        sys.stdout.write(json.dumps(rows) + "\n")
    else:
        console.print(simple(kind.value, ["name", "what it is"], [tuple(row.values()) for row in rows]))


def _listed(kind: Kind) -> dict[str, str]:
    """Names of one kind, with a sentence each."""
    if kind is Kind.experiments:
        from coterie.experiment import embedded

        return {name: path.read_text(encoding="utf-8").splitlines()[0].lstrip("# ") for name, path in embedded().items()}
    from coterie.data.partitions import PARTITIONS
    from coterie.data.sources import SOURCES
    from coterie.methods import METHODS
    from coterie.models import MODELS

    registries: dict[Kind, Registry[Any]] = {
        Kind.methods: METHODS,
        Kind.models: MODELS,
        Kind.datasets: SOURCES,
        Kind.partitions: PARTITIONS,
    }
    registry = registries[kind]
    return {name: (registry.find(name).__doc__ or "").strip().split("\n")[0] for name in registry}


def _words(text: str, option: str) -> list[str]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise UserError(f"{option} is empty: expected names separated by commas")
    return words


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise UserError(f"--seeds = '{text}': expected whole numbers separated by commas")
    return int(text)


def main() -> None:
    """The entry point: every error is a sentence and an exit code."""
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        app(standalone_mode=False)
    except typer.Exit as error:
        sys.exit(error.exit_code)
    except typer.Abort:
        sys.exit(130)
    except CoterieError as error:
        Console(stderr=True).print(f"[bold red]error:[/bold red] {_escape(str(error))}", soft_wrap=True, highlight=False)
        sys.exit(_exit_code(error))
    except Exception as error:
        if hasattr(error, "format_message"):  # a mistake on the command line, in typer's own words
            sys.stderr.write(f"error: {error.format_message()}\n")
            sys.exit(2)
        raise


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def _exit_code(error: CoterieError) -> int:
    if isinstance(error, UserError):
        return 2
    return 130 if type(error).__name__ == "Interrupted" else 1
