"""A run in progress, seen from another terminal: its ledger read as it grows. Nothing here needs torch."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from coterie.errors import RunError, UserError
from coterie.ledger import Event, parse
from coterie.results.escaping import plain
from coterie.results.tables import amount, simple

__all__ = ["Tail", "View", "watch"]

LEDGER = "ledger.jsonl"
BLOCKS = "▁▂▃▄▅▆▇█"
WIDTH = 40
"""Columns of the curve."""


class Tail:
    """The events of a ledger that grows, each once.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "ledger.jsonl"
    >>> tail = Tail(path)
    >>> _ = path.write_text('{"event":"start"}\\n{"event":"rou')
    >>> [event["event"] for event in tail.new()], list(tail.new())
    (['start'], [])
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0

    @property
    def shortened(self) -> bool:
        """Whether the file is shorter than what was read: a run that goes on drops its unfinished round."""
        return self._path.stat().st_size < self._at

    def new(self) -> Iterator[Event]:
        """What was written since the last time; a line that is only half written waits."""
        with self._path.open("rb") as file:
            file.seek(self._at)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._at += len(line)
                event = parse(line)
                if event is None:
                    raise RunError(f"{self._path} is damaged: what ends at byte {self._at:,} is not an event")
                yield event


class View:
    """What there is to see of a run, event by event.

    >>> view = View(Path("runs/demo"))
    >>> view.state
    'not begun'
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = "not begun"
        self._title, self._rounds, self._round = folder.name, 0, 0
        self._curves: dict[str, list[float]] = {}
        self._bytes = {"up": 0, "down": 0}
        self._seconds: list[float] = []
        self._rejected = 0

    def on_event(self, event: Event) -> None:
        """Take note of an event."""
        match event["event"]:
            case "start":
                experiment = event["experiment"]
                self._title = f"{experiment['name']} {experiment['method']['name']} seed {event['seed']}"
                self._rounds, self.state = experiment["rounds"], "running"
            case "round":
                self._round = event["round"]
                self._seconds.append(event["seconds"])
            case "evaluation" if event["client"] is None and event["metric"] == "accuracy" and "domain" not in event:
                self._curves.setdefault(event["protocol"], []).append(event["value"])
            case "exchange":
                self._bytes[event["direction"]] += event["payload_bytes"]
            case "rejected":
                self._rejected += 1
            case "end":
                self.state = "finished"

    def frame(self, silent: float = 0.0) -> Group:
        """One image of it; `silent` is for how many seconds nothing was heard."""
        bar = Table.grid(padding=(0, 1))
        bar.add_row(ProgressBar(total=max(1, self._rounds), completed=self._round, width=WIDTH), f"round {self._round}/{self._rounds}")
        rows = [(name, f"{100 * curve[-1]:.2f}%", f"{100 * max(curve):.2f}%", drawn(curve)) for name, curve in self._curves.items()]
        table = simple("", ["protocol", "last", "best", "every evaluation"], rows)
        return Group(Text(f"{plain(self._title)}: {self.state}{self._hint(silent)}", style="bold"), bar, table, Text(self._spent()))

    def _hint(self, silent: float) -> str:
        """Words for a run that has been quiet for much longer than its rounds take."""
        usual = max(10.0, 5 * max(self._seconds[-5:], default=10.0))
        return f", but nothing was heard for {silent:.0f} s" if self.state != "finished" and silent > usual else ""

    def _spent(self) -> str:
        recent = self._seconds[-10:]
        words = [f"sent up {amount(self._bytes['up'])}, down {amount(self._bytes['down'])}", f"{sum(self._seconds):.1f} s"]
        if recent and self.state == "running":
            words.append(f"about {(self._rounds - self._round) * sum(recent) / len(recent):.0f} s left")
        if self._rejected:
            words.append(f"{self._rejected} replies rejected")
        return "; ".join(words)


def drawn(curve: list[float]) -> str:
    """A curve in one line, from its lowest to its highest value, thinned to fit.

    >>> drawn([0.1, 0.5, 0.9])
    '▁▅█'
    """
    step = max(1, -(-len(curve) // WIDTH))
    values = curve[::-1][::step][::-1]
    low, high = min(values), max(values)
    return "".join(BLOCKS[round((value - low) / ((high - low) or 1.0) * (len(BLOCKS) - 1))] for value in values)


def watch(folder: Path, console: Console, *, once: bool = False, every: float = 0.5) -> View:
    """Show a run until it ends, or as it is now."""
    path = folder / LEDGER
    if not path.is_file():
        raise UserError(f"there is no run to watch in {folder}: expected a file {LEDGER}")
    tail, view = Tail(path), View(folder)
    _catch_up(tail, view)
    if once or view.state == "finished":
        console.print(view.frame(silent=time.time() - path.stat().st_mtime))
        return view
    with Live(view.frame(), console=console, auto_refresh=False) as live:
        while view.state != "finished":
            time.sleep(every)
            if tail.shortened:
                tail, view = Tail(path), View(folder)
            _catch_up(tail, view)
            live.update(view.frame(silent=time.time() - path.stat().st_mtime), refresh=True)
    return view


def _catch_up(tail: Tail, view: View) -> None:
    for event in tail.new():
        view.on_event(event)
