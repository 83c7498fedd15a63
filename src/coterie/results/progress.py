"""Progress in a script or a notebook: one line, written over as rounds go by. The command line has bars (`coterie.cli.progress`)."""

from __future__ import annotations

import sys
import time
from typing import TextIO

from coterie.ledger import Event
from coterie.results.tally import Tally

__all__ = ["Progress"]


class Progress:
    """A listener that shows a run in one line: `coterie.run(experiment, callbacks=[coterie.Progress()])`.

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
        self._tally = Tally(keep_logs=False)
        self._began, self._before, self._width = time.monotonic(), 0, 0

    def __call__(self, event: Event) -> None:
        self._tally.on_event(event)
        if event["event"] == "resume":
            self._before = event["round"]
        elif event["event"] == "round":
            self._write(event["round"])
        elif event["event"] == "end":
            print(file=self._file or sys.stderr, flush=True)

    def _write(self, round: int) -> None:
        planned, gone = self._tally.experiment.get("rounds", round), time.monotonic() - self._began
        left = gone / max(1, round - self._before) * (planned - round)
        found = {name: self._tally.last(name) for name in self._tally.means}
        words = [f"round {round}/{planned}", *(f"{name} {100 * last.value:.2f}%" for name, last in found.items() if last), f"{gone:.0f} s"]
        words += [f"about {left:.0f} s left"] if round < planned else []
        line = f"{self._tally.experiment.get('name', '')} {self._tally.method}: {', '.join(words)}"
        self._width = max(self._width, len(line))
        print(f"\r{line:<{self._width}}", end="", file=self._file or sys.stderr, flush=True)
