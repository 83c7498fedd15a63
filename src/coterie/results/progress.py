"""Progress in a script or a notebook: one line a run, written over as rounds go by. The command line has bars (`coterie.cli.progress`)."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from typing import TextIO

from coterie.ledger import Event
from coterie.results.tally import Tally

__all__ = ["Progress"]


class Progress:
    """A listener that shows a run in one line: `coterie.run(experiment, callbacks=[coterie.Progress()])`; and so with `coterie.compare`.

    >>> import io
    >>> said = io.StringIO()
    >>> shown = Progress(said)
    >>> shown({"event": "start", "seed": 0, "experiment": {"name": "demo", "rounds": 2, "method": {"name": "fedavg"}}})
    >>> shown({"event": "round", "round": 1, "seconds": 0.5})
    >>> said.getvalue().strip().startswith("demo fedavg: round 1/2, 0 s")
    True
    """

    def __init__(self, file: TextIO | None = None) -> None:
        """Where to write; by default standard error."""
        self._file = file
        self._runs: dict[str, _Shown] = {}
        self._width = 0

    def __call__(self, event: Event) -> None:
        title = event.get("run", "")  # which of a comparison's
        run = self._runs.setdefault(title, _Shown(title))
        run.tally.on_event(event)
        if event["event"] == "resume":
            run.before = event["round"]
        elif event["event"] == "round":
            self._write(run.line(event["round"]))
        elif event["event"] == "end":
            self._write(run.line(event["round"]))  # another run's may stand there
            print(file=self._file or sys.stderr, flush=True)
            del self._runs[title]

    def _write(self, line: str) -> None:
        self._width = max(self._width, len(line))
        print(f"\r{line:<{self._width}}", end="", file=self._file or sys.stderr, flush=True)


@dataclass
class _Shown:
    """A run that goes on."""

    title: str
    tally: Tally = field(default_factory=lambda: Tally(keep_logs=False))
    began: float = field(default_factory=time.monotonic)
    before: int = 0
    """The round after which it went on."""

    def line(self, round: int) -> str:
        planned, gone = self.tally.experiment.get("rounds", round), time.monotonic() - self.began
        left = gone / max(1, round - self.before) * (planned - round)
        found = {name: self.tally.last(name) for name in self.tally.means}
        words = [f"round {round}/{planned}", *(f"{name} {100 * last.value:.2f}%" for name, last in found.items() if last), f"{gone:.0f} s"]
        words += [f"about {left:.0f} s left"] if round < planned else []
        title = self.title or f"{self.tally.experiment.get('name', '')} {self.tally.method}"
        return f"{title}: {', '.join(words)}"
