"""What a person sees while a run goes on: a bar in a terminal, plain lines elsewhere. Both are listeners of the ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from coterie.ledger import Event, Listener
from coterie.results.escaping import plain

__all__ = ["Show", "board", "watching"]

Show: TypeAlias = Callable[[str, int], list[Listener]]
"""Given a title and a number of rounds, the listeners that show such a run."""


class Latest:
    """The last mean accuracy under each protocol, in words."""

    def __init__(self) -> None:
        self._found: dict[str, float] = {}

    def on_event(self, event: Event) -> None:
        """Take note of an evaluation."""
        if event["event"] == "evaluation" and event["client"] is None and event["metric"] == "accuracy":
            self._found[event["protocol"]] = event["value"]

    def __str__(self) -> str:
        return "  ".join(f"{protocol} {100 * value:.2f}%" for protocol, value in self._found.items())


@contextmanager
def watching(console: Console, title: str, rounds: int, *, quiet: bool = False) -> Iterator[list[Listener]]:
    """Listeners that show a run of so many rounds.

    >>> with watching(Console(force_terminal=False), "demo", 2) as listeners:
    ...     for listener in listeners:
    ...         listener({"event": "round", "round": 1, "seconds": 0.25})
    demo  round 1/2  0.2 s
    """
    with board(console, quiet=quiet) as show:
        yield show(title, rounds)


@contextmanager
def board(console: Console, *, runs: int | None = None, quiet: bool = False) -> Iterator[Show]:
    """A place for several runs at once: what it yields gives the listeners that show one more of them.

    With `runs`, how many there will be, a bar counts those that ended, and they leave the terminal.
    """
    if quiet:
        yield lambda title, rounds: []
    elif console.is_terminal:
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[found]}", markup=False), TimeElapsedColumn())
        remaining = (TextColumn("left"), TimeRemainingColumn())
        with Progress(TextColumn("{task.description}", markup=False), *columns, *remaining, console=console) as progress:
            whole = None if runs is None else progress.add_task("runs", total=runs, found="")
            yield lambda title, rounds: [_bar(progress, title, rounds, whole)]
    else:
        yield lambda title, rounds: [_lines(console, title, rounds)]


def _bar(progress: Progress, title: str, rounds: int, whole: TaskID | None) -> Listener:
    latest = Latest()
    bar = progress.add_task(plain(title), total=rounds, found="")

    def on_event(event: Event) -> None:
        latest.on_event(event)
        if event["event"] in ("round", "resume"):
            progress.update(bar, completed=event["round"], found=str(latest))
        elif event["event"] == "end" and whole is not None:
            progress.remove_task(bar)
            progress.advance(whole)

    return on_event


def _lines(console: Console, title: str, rounds: int) -> Listener:
    latest = Latest()

    def on_event(event: Event) -> None:
        latest.on_event(event)
        if event["event"] == "round":
            words = [title, f"round {event['round']}/{rounds}", str(latest), f"{event['seconds']:.1f} s"]
            console.print(plain("  ".join(word for word in words if word)), markup=False, highlight=False, soft_wrap=True)

    return on_event
