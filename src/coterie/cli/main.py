"""The command line. Exit code 0 for what worked, 2 for a user's mistake, 1 for a run that failed, 130 for one that was stopped."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

import coterie
from coterie.cli import stopping
from coterie.cli.commands.begin import new, show
from coterie.cli.commands.compare import compare
from coterie.cli.commands.demo import demo
from coterie.cli.commands.deploy import app as deploy_app
from coterie.cli.commands.keep import clean, export, runs
from coterie.cli.commands.list import list_command
from coterie.cli.commands.look import report, watch
from coterie.cli.commands.reproduce import reproduce
from coterie.cli.commands.run import run
from coterie.cli.commands.tune import tune
from coterie.cli.data import app as data_app
from coterie.cli.sentences import complain, ending, say
from coterie.own import look_in

__all__ = ["COMMANDS", "app", "main"]

COMMANDS: dict[str, Callable[..., None]] = {
    "demo": demo,
    "run": run,
    "compare": compare,
    "tune": tune,
    "reproduce": reproduce,
    "watch": watch,
    "report": report,
    "export": export,
    "runs": runs,
    "clean": clean,
    "list": list_command,
    "show": show,
    "new": new,
}
"""Every command, in the order in which help shows them; one more is one more line."""

app = typer.Typer(
    help="Federated learning for clients that differ: in their data, in their models, in what they want.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def about(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Which version this is.", is_eager=True)] = False,
) -> None:
    """Federated learning for clients that differ: in their data, in their models, in what they want."""
    if version:
        say(f"coterie {coterie.__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        sys.stdout.write(context.get_help() + "\n")


for _name, _command in COMMANDS.items():
    app.command(_name)(_command)
app.add_typer(data_app, name="data")
app.add_typer(deploy_app, name="deploy")


def main() -> None:
    """Every error is a sentence and an exit code."""
    stopping.listen()
    look_in(Path.cwd())
    try:
        code = app(standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        code = stopping.CODE
    except Exception as error:
        code, sentence = ending(error)
        complain(sentence)
        sys.exit(code)
    if code == stopping.CODE:  # typer makes one of a KeyboardInterrupt, in what it calls the return value
        complain("stopped")
    if code:
        sys.exit(code)
