"""What a person sees while a run goes on: a bar in a terminal, plain lines elsewhere. Both are listeners of the ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.table import Column
from rich.text import Text

from coterie.errors import counted
from coterie.ledger import Event, Listener
from coterie.results.escaping import plain
from coterie.results.tally import Tally

__all__ = ["Show", "Times", "board", "clock", "latest", "watching"]

Show: TypeAlias = Callable[[str, int], list[Listener]]
"""Given a title and a number of rounds, the listeners that show such a run."""


BAR = 10
OTHERS = 38
"""Columns of a terminal that a bar takes beside its title and what was found: the bar, counts and times."""


def latest(tally: Tally, room: int | None = None) -> str:
    """The last accuracy under each protocol, in words: under all of them, or under those for which there is room.

    >>> seen = {"event": "evaluation", "round": 1, "protocol": "global", "client": None, "metric": "accuracy", "value": 0.5}
    >>> tally = Tally.of([seen, {**seen, "metric": "loss"}, {**seen, "protocol": "local_post"}])
    >>> latest(tally), latest(tally, room=20)
    ('global 50.00%  local_post 50.00%', 'global 50.00%')
    """
    found = {protocol: tally.last(protocol) for protocol in tally.means}
    words = [f"{plain(protocol)} {100 * last.value:.2f}%" for protocol, last in found.items() if last is not None]
    while len(words) > 1 and room is not None and len("  ".join(words)) > room:
        words.pop()
    return "  ".join(words)


def clock(seconds: float) -> str:
    """A duration as a clock shows it.

    >>> clock(41), clock(3725)
    ('0:41', '1:02:05')
    """
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


class Times(ProgressColumn):
    """How long something has taken, and by the share of it that is done, how long the rest will."""

    def render(self, task: Task) -> Text:
        """In words that are never cut off."""
        gone, done = task.elapsed or 0.0, task.fields["done"]
        left = f"  left {clock(gone * (1 - done) / done)}" if done else ""
        return Text(clock(gone) + left, style="progress.elapsed")


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
def board(console: Console, *, runs: int | None = None, quiet: bool = False, brief: bool = False) -> Iterator[Show]:
    """A place for several runs at once: what it yields gives the listeners that show one more of them.

    With `runs`, how many there will be, a bar counts those that ended, and they leave the terminal. Where there is no terminal every
    round is a line, or, to be brief, every run.
    """
    if quiet:
        yield lambda title, rounds: []
    elif console.is_terminal:
        found = TextColumn("{task.fields[found]}", markup=False, table_column=Column(ratio=1, no_wrap=True))
        columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=BAR), MofNCompleteColumn(), Times(), found)
        with Progress(*columns, console=console, expand=True) as progress:
            whole = None if runs is None else progress.add_task("runs", total=runs, found="", done=0.0)
            yield lambda title, rounds: [_bar(progress, title, rounds, whole)]
    else:
        yield lambda title, rounds: [_lines(console, title, rounds, brief)]


def _bar(progress: Progress, title: str, rounds: int, whole: TaskID | None) -> Listener:
    tally = Tally(keep_logs=False)
    bar = progress.add_task(plain(title), total=rounds, found="", done=0.0)
    before = 0

    def on_event(event: Event) -> None:
        nonlocal before
        tally.on_event(event)
        match event["event"]:
            case "resume":
                before = event["round"]
                progress.update(bar, completed=before)
            case "round":
                done = (event["round"] - before) / max(1, rounds - before)
                room = progress.console.width - OTHERS - max(len(task.description) for task in progress.tasks)
                progress.update(bar, completed=event["round"], found=latest(tally, room), done=done)
                _move(progress, whole, 1 / rounds)
            case "end" if whole is not None:
                _move(progress, whole, (rounds - event["round"]) / rounds)  # it reached its target early
                progress.remove_task(bar)
                progress.advance(whole)

    return on_event


def _move(progress: Progress, whole: TaskID | None, share: float) -> None:
    """Some rounds of one run are some part of all runs: what is left is told by rounds, not by the few runs that ended."""
    if whole is not None:
        task = progress.tasks[progress.task_ids.index(whole)]
        progress.update(whole, done=min(1.0, task.fields["done"] + share / (task.total or 1)))


def _lines(console: Console, title: str, rounds: int, brief: bool) -> Listener:
    tally = Tally(keep_logs=False)

    def on_event(event: Event) -> None:
        tally.on_event(event)
        if event["event"] == ("end" if brief else "round"):
            how_long = sum(tally.seconds.values()) if brief else event["seconds"]
            words = [
                plain(title),
                counted(rounds, "round") if brief else f"round {event['round']}/{rounds}",
                latest(tally),
                f"{how_long:.1f} s",
            ]
            console.print("  ".join(word for word in words if word), markup=False, highlight=False, soft_wrap=True)

    return on_event
