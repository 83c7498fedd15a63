"""One ledger, read once as a stream, into a Tally; and what is missing in it.

A ledger of 10,000 rounds and 100 clients has millions of lines that differ in a few digits. Lines of the two frequent events, exchanges
and evaluations of one client, are cut at their commas, and a piece that was seen in a whole line before is looked up, not parsed again;
any other line goes through `json.loads` to the Tally and teaches the reader its pieces. So every line is checked, and only a few are
parsed. What an event means is the Tally's business alone: the reader only counts how often the same came again.

A damaged line is left out, counted and named; nothing else is lost with it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from coterie.errors import RunError, UserError
from coterie.ledger import LEDGER, Event, value_of
from coterie.results.tally import Tally

__all__ = ["LEDGER", "Run", "read_run", "read_whole"]

FORGET = 200_000
"""Pieces remembered before the reader starts afresh: bounds memory where every message has another size."""
NAMED = 5
"""Damaged lines that are named; of more, only the number is told."""


@dataclass
class Run:
    """A run that lies in a folder: what its ledger comes to."""

    folder: Path
    tally: Tally = field(default_factory=Tally)
    missing: list[str] = field(default_factory=list)
    """A sentence for each thing that the ledger should have and has not."""


def read_run(folder: Path) -> Run:
    """The ledger in a folder.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / LEDGER).write_text('{"event":"start","seed":3}\\n{"event":"round","round":1,"seconds":0.5}\\n{"event":"rou')
    >>> run = read_run(folder)
    >>> run.tally.seed, run.tally.rounds, run.missing
    (3, 1, ['its last line is only half written (13 bytes)', 'it has no end: the run is still under way, or was stopped after round 1'])
    """
    path = folder / LEDGER
    if not path.is_file():
        raise UserError(f"there is no ledger in {folder}: expected a file {LEDGER}")
    reader = _Reader(Run(folder))
    with path.open("rb", buffering=1 << 20) as file:
        reader.read(file)
    return reader.run


def read_whole(folder: Path) -> Run:
    """The ledger of a run that is over; where anything is missing in it, its numbers would mislead, and it is an error.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / LEDGER).write_text('{"event":"start","seed":3}\\n')
    >>> read_whole(folder)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    coterie.errors.RunError: the ledger in ... is damaged: it has no end: ... Remove that folder, and the same command runs it again
    """
    run = read_run(folder)
    if run.missing:
        raise RunError(
            f"the ledger in {folder} is damaged: {'; '.join(run.missing)}. Remove that folder, and the same command runs it again"
        )
    return run


class _Reader:
    """The state of one reading."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.tally = run.tally
        self._sent: dict[bytes, dict[int, int]] = {}
        """An exchange up to its task -> number of a content -> how often it came."""
        self._numbers: dict[bytes, int] = {}
        """The rest of an exchange, from its client on -> the number of its content."""
        self._contents: dict[tuple[str, str, int, int], int] = {}
        """Direction, kind, payload and framed bytes -> their number."""
        self._rounds: dict[bytes, int] = {}
        """An exchange up to its task, or an evaluation up to its round -> the round."""
        self._last: dict[bytes, tuple[int, float]] = {}
        """A client's evaluation from its protocol up to its value -> the latest round and value."""
        self._whose: dict[bytes, Event] = {}
        """The same -> the event with which it came first."""
        self._latest: dict[tuple[str, int | None], bytes] = {}
        """Name and client of a logged array -> its latest line, parsed at the end."""
        self._damaged: list[int] = []

    def read(self, lines: Iterable[bytes]) -> None:
        """Every line, then what is missing. The two frequent events are counted here, without a call: this loop is the time of a report."""
        sent, numbers, rounds, last = self._sent, self._numbers, self._rounds, self._last
        half = 0
        for number, line in enumerate(lines, 1):
            event = line[10:20]
            if event == b'exchange",':
                head, _, rest = line.partition(b',"client":')
                if rest in numbers and head in sent:
                    counts, content = sent[head], numbers[rest]
                    counts[content] = counts.get(content, 0) + 1
                    continue
            elif event == b"evaluation":
                head, _, rest = line.partition(b',"protocol":')
                key, _, value = rest.rpartition(b',"value":')
                if key in last and head in rounds and value[-2:] == b"}\n":
                    try:
                        last[key] = (rounds[head], float(value[:-2]))
                        continue
                    except ValueError:
                        pass
            if not line.endswith(b"\n"):
                half = len(line)
            elif not self._parse(line):
                self._damaged.append(number)
        self._settle()
        self._unpack()
        self._say_what_is_missing(half)

    def _parse(self, line: bytes) -> bool:
        """One line the long way; whether it is a whole event."""
        try:
            if line.startswith(b'{"event":"log"') and self._put_off(line):
                return True
            event = json.loads(line)
            self.tally.on_event(event)
            match event["event"]:
                case "exchange":
                    self._learn_exchange(event, line)
                case "evaluation":
                    self._learn_evaluation(event, line)
        except (ValueError, KeyError, TypeError, AttributeError):
            return False
        return True

    def _learn_exchange(self, event: Event, line: bytes) -> None:
        head, _, rest = line.partition(b',"client":')
        if head == _written(event, "event", "round", "task") and rest.startswith(b"%d," % event["client"]):
            if len(self._numbers) > FORGET:
                self._settle()
            content = (event["direction"], event["kind"], event["payload_bytes"], event["framed_bytes"])
            self._sent.setdefault(head, {})
            self._rounds[head] = event["round"]
            self._numbers[rest] = self._contents.setdefault(content, len(self._contents))

    def _learn_evaluation(self, event: Event, line: bytes) -> None:
        """Of a client only the last matters: a line that ends in its value can come again with another. Means are all parsed."""
        head, _, rest = line.partition(b',"protocol":')
        key, _, _ = rest.rpartition(b',"value":')
        *keys, last = event
        if last == "value" and keys[:3] == ["event", "round", "protocol"] and line.startswith(_written(event, *keys) + b',"value":'):
            self._rounds[head] = event["round"]
            if event["client"] is not None:
                self._last[key], self._whose[key] = (event["round"], value_of(event["value"])), event
        elif key in self._last:
            del self._last[key], self._whose[key]

    def _put_off(self, line: bytes) -> bool:
        """Of a logged matrix only the latest is looked at, so only the latest is parsed, at the end; whether this is one."""
        head, _, values = line.partition(b',"values":')
        if not values.startswith(b"[["):
            return False
        event = json.loads(head + b"}")
        if not line.endswith(b"]}\n"):
            raise ValueError(line)
        self._latest[event["name"], event["client"]] = line
        return True

    def _unpack(self) -> None:
        for (name, _), line in self._latest.items():
            try:
                self.tally.on_event(json.loads(line))
            except ValueError:
                self.run.missing.append(f"its last line of the log '{name}' is damaged")

    def _settle(self) -> None:
        """Turn what was counted into bytes and measurements, and forget its pieces."""
        contents = list(self._contents)
        for head, counts in self._sent.items():
            for number, times in counts.items():
                self.tally.add_bytes(self._rounds[head], *contents[number], times)
        for key, (round, value) in sorted(self._last.items(), key=lambda item: item[1][0]):
            self.tally.on_event({**self._whose[key], "round": round, "value": value})
        for pieces in (self._sent, self._numbers, self._contents):
            pieces.clear()

    def _say_what_is_missing(self, half: int) -> None:
        tally, say = self.tally, self.run.missing.append
        if not tally.start:
            say("its first line, which names the experiment and the seed, is lost")
        if self._damaged:
            named = ", ".join(map(str, self._damaged[:NAMED])) + (", ..." if len(self._damaged) > NAMED else "")
            many = len(self._damaged) > 1
            say(f"{len(self._damaged)} line{'s are' if many else ' is'} damaged and left out (line{'s' if many else ''} {named})")
        if half:
            say(f"its last line is only half written ({half} bytes)")
        if gaps := tally.rounds - len(tally.seconds):
            say(f"{gaps} of {tally.rounds} rounds {'have' if gaps > 1 else 'has'} lost the line with the seconds")
        if not tally.ended:
            say(f"it has no end: the run is still under way, or was stopped after round {tally.rounds}")


def _written(event: Event, *keys: str) -> bytes:
    """How the ledger begins a line with these keys: only such lines are read by their pieces.

    >>> _written({"event": "round", "round": 3}, "event", "round")
    b'{"event":"round","round":3'
    """
    return ("{" + ",".join(f'"{key}":{json.dumps(event[key])}' for key in keys)).encode()
