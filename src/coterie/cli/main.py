"""The command line. Exit code 0 for what worked, 2 for a user's mistake, 1 for a run that failed, 130 for one that was stopped."""

from __future__ import annotations

import sys
from collections.abc import Callable

import typer

from coterie.cli import stopping
from coterie.cli.commands.compare import compare
from coterie.cli.commands.list import list_command
from coterie.cli.commands.look import report, watch
from coterie.cli.commands.reproduce import reproduce
from coterie.cli.commands.run import run
from coterie.cli.data import app as data_app
from coterie.cli.sentences import complain, ending

__all__ = ["COMMANDS", "app", "main"]

COMMANDS: dict[str, Callable[..., None]] = {
    "run": run,
    "compare": compare,
    "reproduce": reproduce,
    "watch": watch,
    "report": report,
    "list": list_command,
}
"""Every command, in the order in which help shows them; one more is one more line."""

app = typer.Typer(
    help="Federated learning for clients that differ: in their data, in their models, in what they want.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
for _name, _command in COMMANDS.items():
    app.command(_name)(_command)
app.add_typer(data_app, name="data")


def main() -> None:
    """Every error is a sentence and an exit code."""
    stopping.listen()
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
