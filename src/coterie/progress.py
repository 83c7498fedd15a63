"""What a person sees while a run goes on: a bar in a terminal, plain lines elsewhere. Both are listeners of the ledger."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from coterie.ledger import Event, Listener

__all__ = ["watching"]


class Latest:
    """The last mean accuracy under each protocol, in words."""

    def __init__(self) -> None:
        self._found: dict[str, float] = {}

    def hear(self, event: Event) -> None:
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
    if quiet:
        yield []
    elif console.is_terminal:
        with _bar(console, title, rounds) as listener:
            yield [listener]
    else:
        yield [_lines(console, title, rounds)]


@contextmanager
def _bar(console: Console, title: str, rounds: int) -> Iterator[Listener]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[found]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    latest = Latest()
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task(title, total=rounds, found="")

        def hear(event: Event) -> None:
            latest.hear(event)
            if event["event"] in ("round", "resume"):
                progress.update(bar, completed=event["round"], found=str(latest))

        yield hear


def _lines(console: Console, title: str, rounds: int) -> Listener:
    latest = Latest()

    def hear(event: Event) -> None:
        latest.hear(event)
        if event["event"] == "round":
            words = [title, f"round {event['round']}/{rounds}", str(latest), f"{event['seconds']:.1f} s"]
            console.print("  ".join(word for word in words if word), highlight=False, soft_wrap=True)

    return hear
