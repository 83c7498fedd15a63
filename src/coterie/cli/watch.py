"""A run in progress, seen from another terminal: its ledger read as it grows. Nothing here needs torch."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from coterie.errors import UserError
from coterie.ledger import Event
from coterie.results.escaping import plain
from coterie.results.read import LEDGER
from coterie.results.sheets import clients_text, spent
from coterie.results.summary import costs_of
from coterie.results.tables import Sheet, number
from coterie.results.tally import Tally

__all__ = ["Tail", "View", "drawn", "watch"]

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
                yield json.loads(line)


class View:
    """What there is to see of a run, event by event.

    >>> view = View(Path("runs/demo"))
    >>> view.state
    'not begun'
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tally = Tally(keep_logs=False)

    def on_event(self, event: Event) -> None:
        """Take note of an event."""
        self.tally.on_event(event)

    @property
    def state(self) -> str:
        """How far it is."""
        if self.tally.ended:
            return "finished"
        return "running" if self.tally.start else "not begun"

    def frame(self, silent: float = 0.0) -> Group:
        """One image of it; `silent` is for how many seconds nothing was heard."""
        tally, planned = self.tally, self.tally.experiment.get("rounds", 0)
        bar = Table.grid(padding=(0, 1))
        bar.add_row(ProgressBar(total=max(1, planned), completed=tally.rounds, width=WIDTH), f"round {tally.rounds}/{planned}")
        title = f"{tally.experiment['name']} {tally.method} seed {tally.seed}" if tally.start else self.folder.name
        return Group(Text(f"{plain(title)}: {self.state}{self._hint(silent)}", style="bold"), bar, self._accuracies(), Text(self._spent()))

    def _accuracies(self) -> Sheet:
        rows = []
        for protocol in self.tally.means:
            curve, last = list(self.tally.curve(protocol).values()), self.tally.last(protocol)
            if last is not None:
                text = number(last.value) + (f" ({clients_text(last.clients)})" if last.clients else "")
                rows.append((protocol, text, number(max(curve)), drawn(curve)))
        return Sheet("", ["protocol", "last", "best", "every evaluation"], rows)

    def _hint(self, silent: float) -> str:
        """Words for a run that has been quiet for much longer than its rounds take."""
        usual = max(10.0, 5 * max(list(self.tally.seconds.values())[-5:], default=10.0))
        return f", but nothing was heard for {silent:.0f} s" if self.state != "finished" and silent > usual else ""

    def _spent(self) -> str:
        tally, recent = self.tally, list(self.tally.seconds.values())[-10:]
        words = [spent(costs_of(tally))]
        if recent and self.state == "running":
            words.append(f"about {(tally.experiment['rounds'] - tally.rounds) * sum(recent) / len(recent):.0f} s left")
        if tally.rejected:
            words.append(f"{len(tally.rejected)} repl{'y' if len(tally.rejected) == 1 else 'ies'} rejected")
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
