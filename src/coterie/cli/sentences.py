"""What the command line says: sentences on standard output; notes, and how a command ended, on standard error.

Names in them are text: nothing that a user, a file or a stranger's ledger calls something is markup or an escape of the terminal's.
"""

from __future__ import annotations

import errno
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rich.console import Console
from rich.text import Text

from coterie.errors import CoterieError, Interrupted, RunError, place_of
from coterie.ledger import LEDGER
from coterie.results.escaping import plain

__all__ = ["complain", "console", "ending", "kept", "note", "program", "say"]

console = Console()
OF_SEVERAL = ("--method", "--methods", "--seed", "--seeds", "--grid")
"""Options that people give to a run and mean a comparison by."""


def say(sentence: str) -> None:
    """On standard output, for people.

    >>> say("written to runs/[bold]")
    written to runs/[bold]
    """
    console.print(plain(sentence), markup=False, highlight=False, soft_wrap=True)


def note(sentence: str) -> None:
    """On standard error, beside what was asked for."""
    Console(stderr=True).print(f"note: {plain(sentence)}", markup=False, highlight=False, soft_wrap=True)


def complain(sentence: str) -> None:
    """On standard error: an error."""
    Console(stderr=True).print(Text("error: ", "bold red").append(plain(sentence), "default"), soft_wrap=True)


def ending(error: Exception) -> tuple[int, str]:
    """The exit code and the sentence of an error that people make or machines have; any other is a bug, and raised.

    >>> ending(RunError("too few replies")), ending(OSError(28, "No space left on device", "ledger.jsonl"))
    ((1, 'too few replies'), (1, 'ledger.jsonl: No space left on device'))
    """
    if isinstance(error, CoterieError):
        return error.exit_code, str(error)
    if hasattr(error, "format_message"):  # a mistake on the command line, in typer's own words
        return 2, f"{error.format_message()}{_several(error)}"
    if isinstance(error, OSError):  # a full disk, a folder that cannot be written or is gone
        return 1, f"{error.filename}: {error.strerror}" if error.filename else str(error)
    if isinstance(error, MemoryError) or "allocate memory" in str(error):  # numpy's words, and torch's
        return 1, f"out of memory: {str(error).splitlines()[0] if str(error) else 'nothing more could be had'}"
    if place := place_of(error):  # in code of the user's that runs on the server
        return 1, f"{type(error).__name__}: {error}{place}"
    raise error


def _several(error: Exception) -> str:
    """What to do instead, after an option that only a comparison has was given to a run."""
    command = getattr(getattr(error, "ctx", None), "info_name", "")
    if command != "run" or getattr(error, "option_name", "") not in OF_SEVERAL:
        return ""
    return " One run is --set method=fedprox --set seed=1, several are: coterie compare EXPERIMENT --methods fedavg,fedprox --seeds 0-2"


@contextmanager
def kept(folder: Path) -> Iterator[None]:
    """What stops a run, a signal or the disk, is said together with where it is and how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(f"stopped; {_where(folder)}") from None
    except OSError as error:
        if error.errno == errno.EPIPE:  # whoever read our output is gone
            raise
        raise RunError(f"{ending(error)[1]}; {_where(folder)}") from None
    finally:
        with suppress(OSError):
            folder.rmdir()  # in which nothing came to lie


def _where(folder: Path) -> str:
    begun = (folder / LEDGER).exists()
    return f"what was done is in {folder}. Go on with: coterie run --resume {folder}" if begun else "nothing was begun"


def program() -> str:
    """How this program was called, so that it can be called again: by its name alone where the shell finds it."""
    if Path(sys.argv[0]).name == "__main__.py":
        return "python -m coterie"
    return "coterie" if shutil.which("coterie") == sys.argv[0] else sys.argv[0]
