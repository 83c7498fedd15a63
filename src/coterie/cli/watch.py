"""Runs in progress, seen from another terminal: their ledgers read as they grow. Nothing here needs torch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Generic, TypeVar

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from coterie.errors import RunError
from coterie.ledger import Event, parse
from coterie.results.escaping import plain
from coterie.results.gather import find_runs
from coterie.results.inventory import going_on
from coterie.results.read import LEDGER
from coterie.results.sheets import clients_text, spent
from coterie.results.summary import costs_of
from coterie.results.tables import Sheet, number
from coterie.results.tally import Tally

__all__ = ["Following", "Tail", "View", "drawn", "watch", "watch_all"]

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
        self.tally = Tally(keep_logs=False)
        self.held = True
        """Whether, when its ledger was last read, somebody was writing it."""

    def on_event(self, event: Event) -> None:
        """Take note of an event."""
        self.tally.on_event(event)

    @property
    def state(self) -> str:
        """How far it is; whoever runs it holds its ledger, so that a run that nobody holds and that has not ended was stopped."""
        if self.tally.ended:
            return "finished"
        if not self.tally.start:
            return "not begun"
        return "running" if self.held else "stopped"

    @property
    def over(self) -> bool:
        """Whether there is nothing more to wait for."""
        return self.state in ("finished", "stopped")

    @property
    def left(self) -> float | None:
        """Seconds that the rest will take, by the last rounds; None where nobody can tell."""
        recent = list(self.tally.seconds.values())[-10:]
        return (self.tally.experiment["rounds"] - self.tally.rounds) * sum(recent) / len(recent) if recent and not self.over else None

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
        """Words for a run that was stopped, or has been quiet for much longer than its rounds take."""
        if self.state == "stopped":
            return f"; go on with: coterie run --resume {plain(self.folder)}"
        usual = max(10.0, 5 * max(list(self.tally.seconds.values())[-5:], default=10.0))
        return f", but nothing was heard for {silent:.0f} s" if self.state != "finished" and silent > usual else ""

    def _spent(self) -> str:
        tally, left = self.tally, self.left
        words = [spent(costs_of(tally))]
        if left is not None:
            words.append(f"about {left:.0f} s left")
        if tally.rejected:
            words.append(f"{len(tally.rejected)} repl{'y' if len(tally.rejected) == 1 else 'ies'} rejected")
        return "; ".join(words)


V = TypeVar("V", bound=View)


class Following(Generic[V]):
    """A run's ledger, read as it grows: what there is to see of it now.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / LEDGER).write_text("")
    >>> Following(folder, View).now().state
    'not begun'
    """

    def __init__(self, folder: Path, kind: Callable[[Path], V]) -> None:
        self._folder, self._kind = folder, kind
        self._tail, self._view = Tail(folder / LEDGER), kind(folder)

    def now(self) -> V:
        """The view, with all that was written by now."""
        if self._tail.shortened:
            self._tail, self._view = Tail(self._folder / LEDGER), self._kind(self._folder)
        self._view.held = going_on(self._folder)  # first: whoever lets go of a ledger has written all of it
        for event in self._tail.new():
            self._view.on_event(event)
        return self._view


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
    """Show a run until it ends or is stopped, or as it is now."""
    following = Following(folder, View)
    view = following.now()
    if once or view.over:
        console.print(view.frame(silent=_silent(folder)))
        return view
    with Live(view.frame(), console=console, auto_refresh=False) as live:
        while not view.over:
            time.sleep(every)
            view = following.now()
            live.update(view.frame(silent=_silent(folder)), refresh=True)
    return view


def watch_all(folder: Path, console: Console, *, once: bool = False, every: float = 0.5, patience: float = 10.0) -> list[View]:
    """Show all runs below a folder, a line each, such as the arms of a comparison, until for some seconds nobody has run any."""
    seen: dict[Path, Following[View]] = {}
    views = _views(folder, seen)
    if once:
        console.print(_overview(folder, views))
        return views
    heard = time.monotonic()
    with Live(_overview(folder, views), console=console, auto_refresh=False) as live:
        while time.monotonic() - heard < patience and not all(view.state == "finished" for view in views):
            time.sleep(every)
            views = _views(folder, seen)
            live.update(_overview(folder, views), refresh=True)
            heard = time.monotonic() if any(view.state == "running" for view in views) else heard
    return views


def _views(folder: Path, seen: dict[Path, Following[View]]) -> list[View]:
    """Every run that there is by now."""
    runs = find_runs([folder])
    seen.update({run: Following(run, View) for run in runs if run not in seen})
    return [seen[run].now() for run in runs]


def _overview(folder: Path, views: list[View]) -> Sheet:
    """How far each is."""
    rows = []
    for view in views:
        planned, left = view.tally.experiment.get("rounds", 0), view.left
        last = [f"{name} {number(mean.value)}" for name in view.tally.means if (mean := view.tally.last(name)) is not None]
        state = view.state + ("" if left is None else f", {left:.0f} s left")
        rows.append((f"{view.tally.method} seed {view.tally.seed}", f"{view.tally.rounds}/{planned}", state, "  ".join(last[:1])))
    return Sheet(plain(folder.name), ["run", "rounds", "state", "accuracy"], rows)


def _silent(folder: Path) -> float:
    return time.time() - (folder / LEDGER).stat().st_mtime
