"""What the server of a deployment shows in its terminal: the run, as `coterie watch` has it, and how every participant stands."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType

from coterie.cli.progress import clock
from coterie.cli.watch import Following, View
from coterie.deployment.server_app import RUN, STANDINGS
from coterie.ledger import LEDGER, Event
from coterie.results.tables import Sheet, amount

__all__ = ["Attendance"]


class Attended(View):
    """A run in which every client is somebody."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.moved: Counter[tuple[int, str]] = Counter()
        """Client and direction -> bytes."""
        self.dropped: Counter[int] = Counter()
        """Client -> replies that were not let in."""

    def on_event(self, event: Event) -> None:
        """Take note of an event."""
        super().on_event(event)
        match event["event"]:
            case "exchange":
                self.moved[event["client"], event["direction"]] += event["payload_bytes"]
            case "rejected":
                self.dropped[event["client"]] += 1

    def _hint(self, silent: float) -> str:
        return ""  # whoever has started the server sees who is waited for


class Attendance:
    """The folder of a deployment, as it is now.

    >>> import tempfile
    >>> from rich.console import Console
    >>> Console(width=80).print(Attendance(Path(tempfile.mkdtemp()), ["north"]).frame())
    participant  state         samples  up   down  dropped
    ──────────────────────────────────────────────────────
    north        not here yet        -  0 B  0 B         0
    <BLANKLINE>
    """

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self._names, self._standings, self._run = names, folder / STANDINGS, folder / RUN
        self._following: Following[Attended] | None = None

    def frame(self) -> RenderableType:
        """One image of it."""
        if self._following is None and (self._run / LEDGER).exists():
            self._following = Following(self._run, Attended)
        view = Attended(self._run) if self._following is None else self._following.now()
        return Group(*([view.frame()] if view.tally.start else []), self._participants(view))

    def _participants(self, view: Attended) -> Sheet:
        known = self._known()
        rows = [self._row(client, name, known.get(name), view) for client, name in enumerate(self._names)]
        return Sheet("", ["participant", "state", "samples", "up", "down", "dropped"], rows)

    def _row(self, client: int, name: str, standing: Any, view: Attended) -> tuple[Any, ...]:
        up, down = (amount(view.moved[client, way]) for way in ("up", "down"))
        if standing is None:
            return name, "not here yet", "-", up, down, view.dropped[client]
        state, since, samples = standing
        words = f"{state} for {clock(time.time() - since)}" if state != "in" else state
        return name, words, samples, up, down, view.dropped[client]

    def _known(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads(self._standings.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        return found
