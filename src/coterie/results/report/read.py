"""One ledger, read once as a stream, into the sums that a report shows.

A ledger of 10,000 rounds and 100 clients has millions of lines that differ in a few digits. Lines of the two frequent events are cut at
their commas, and a piece that was seen in a whole line before is looked up, not parsed again; a line with any new piece goes through
`json.loads` and teaches the reader its pieces. So every line is checked, and only a few are parsed.

A damaged line is left out, counted and named; nothing else is lost with it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from coterie.errors import UserError
from coterie.ledger import Event

__all__ = ["LEDGER", "Amount", "Run", "Seen", "read_run"]

LEDGER = "ledger.jsonl"
FORGET = 200_000
"""Pieces remembered before the reader starts afresh: bounds memory where every message has another size."""
NAMED = 5
"""Damaged lines that are named; of more, only the number is told."""


class Seen(NamedTuple):
    """A measurement and its round."""

    round: int
    value: float


@dataclass
class Amount:
    """Bytes of one kind in one direction."""

    payload: int = 0
    framed: int = 0


def _curves() -> dict[str, dict[str, dict[int, float]]]:
    return defaultdict(lambda: defaultdict(dict))


def _clients() -> dict[str, dict[str, dict[int, Seen]]]:
    return defaultdict(lambda: defaultdict(dict))


def _traffic() -> dict[int, dict[tuple[str, str], Amount]]:
    return defaultdict(lambda: defaultdict(Amount))


@dataclass
class Run:
    """What one ledger says."""

    folder: Path
    start: Event = field(default_factory=dict)
    """The first line; empty where it is lost."""
    partition: Event | None = None
    curves: dict[str, dict[str, dict[int, float]]] = field(default_factory=_curves)
    """Protocol -> metric -> round -> value, of the server's model or the mean over clients."""
    clients: dict[str, dict[str, dict[int, Seen]]] = field(default_factory=_clients)
    """Protocol -> metric -> client -> its last measurement."""
    traffic: dict[int, dict[tuple[str, str], Amount]] = field(default_factory=_traffic)
    """Round (0 is the setup) -> direction and kind -> bytes."""
    seconds: dict[int, float] = field(default_factory=dict)
    where: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Where the seconds went."""
    rejected: list[Event] = field(default_factory=list)
    new_clients: list[Event] = field(default_factory=list)
    resumes: list[Event] = field(default_factory=list)
    exhibits: dict[tuple[str, int | None], list[Event]] = field(default_factory=dict)
    """Name and client -> every round's values for lines, only the latest for all else."""
    ended: bool = False
    missing: list[str] = field(default_factory=list)
    """A sentence for each thing that the ledger should have and has not."""

    @property
    def experiment(self) -> dict[str, Any]:
        """The resolved experiment."""
        found: dict[str, Any] = self.start.get("experiment", {})
        return found

    @property
    def seed(self) -> int:
        """The run's seed."""
        return int(self.start.get("seed", 0))

    @property
    def rounds(self) -> int:
        """The last round that was closed."""
        return max(self.seconds, default=0)

    def total(self, direction: str, setup: bool = False) -> int:
        """Payload bytes in one direction, in rounds or in the setup.

        >>> run = Run(Path())
        >>> run.traffic[0]["up", "data"].payload, run.traffic[1]["up", "weights"].payload = 5, 8
        >>> run.total("up"), run.total("up", setup=True)
        (8, 5)
        """
        return sum(a.payload for r, sent in self.traffic.items() if (r == 0) == setup for (way, _), a in sent.items() if way == direction)


def read_run(folder: Path) -> Run:
    """The ledger in a folder.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / LEDGER).write_text('{"event":"start","seed":3}\\n{"event":"round","round":1,"seconds":0.5}\\n{"event":"rou')
    >>> run = read_run(folder)
    >>> run.seed, run.rounds, run.missing
    (3, 1, ['its last line is only half written (13 bytes)', 'it has no end: the run is still under way, or was stopped after round 1'])
    """
    path = folder / LEDGER
    if not path.is_file():
        raise UserError(f"there is no ledger in {folder}: expected a file {LEDGER}")
    reader = _Reader(Run(folder))
    with path.open("rb", buffering=1 << 20) as file:
        reader.read(file)
    return reader.run


class _Reader:
    """The state of one reading."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._sent: dict[bytes, dict[int, int]] = {}
        """An exchange up to its task -> number of a content -> how often it came."""
        self._numbers: dict[bytes, int] = {}
        """The rest of an exchange, from its client on -> the number of its content."""
        self._contents: dict[tuple[str, str, int, int], int] = {}
        """Direction, kind, payload and framed bytes -> their number."""
        self._rounds: dict[bytes, int] = {}
        """An exchange up to its task, or an evaluation up to its round -> the round."""
        self._curves: dict[bytes, dict[int, float]] = {}
        """Protocol, client and metric of an evaluation -> the curve it belongs to."""
        self._last: dict[bytes, tuple[int, float]] = {}
        """The same, of a client -> the latest round and value."""
        self._whose: dict[bytes, tuple[str, str, int]] = {}
        """The same -> protocol, metric and client."""
        self._latest: dict[tuple[str, int | None], bytes] = {}
        self._damaged: list[int] = []

    def read(self, lines: Iterable[bytes]) -> None:
        """Every line, then what is missing. The two frequent events are counted here, without a call: this loop is the time of a report."""
        sent, numbers, rounds, curves, last = self._sent, self._numbers, self._rounds, self._curves, self._last
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
                if head in rounds and value[-2:] == b"}\n":
                    try:
                        if key in last:
                            last[key] = (rounds[head], float(value[:-2]))
                            continue
                        if key in curves:
                            curves[key][rounds[head]] = float(value[:-2])
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
            if line.startswith(b'{"event":"exhibit"'):
                self._exhibit(line)
            else:
                self._take(json.loads(line), line)
        except (ValueError, KeyError, TypeError, AttributeError):
            return False
        return True

    def _take(self, event: Event, line: bytes) -> None:
        run = self.run
        match event["event"]:
            case "start":
                run.start = _checked(event)
            case "partition":
                run.partition = event
            case "exchange":
                self._take_exchange(event, line)
            case "evaluation":
                self._take_evaluation(event, line)
            case "round":
                run.seconds[int(event["round"])] = float(event["seconds"])
                for place, seconds in event.get("where", {}).items():
                    run.where[place] += seconds
            case "rejected":
                run.rejected.append({key: event[key] for key in ("round", "task", "client", "reason")})
            case "new_client":
                run.new_clients.append({key: event[key] for key in ("client", "accuracy", "plateau", "epochs_to_plateau")})
            case "resume":
                run.resumes.append(event)
            case "end":
                run.ended = True

    def _take_exchange(self, event: Event, line: bytes) -> None:
        content = (str(event["direction"]), str(event["kind"]), int(event["payload_bytes"]), int(event["framed_bytes"]))
        _add(self.run, int(event["round"]), content, 1)
        head, _, rest = line.partition(b',"client":')
        if head == _written(event, "event", "round", "task") and rest.startswith(b"%d," % event["client"]):
            if len(self._numbers) > FORGET:
                self._settle()
            self._sent.setdefault(head, {})
            self._rounds[head] = event["round"]
            self._numbers[rest] = self._contents.setdefault(content, len(self._contents))

    def _take_evaluation(self, event: Event, line: bytes) -> None:
        if "epoch" in event:  # a new_client's, who has a line of its own
            return
        protocol, metric, who, seen = event["protocol"], event["metric"], event["client"], Seen(int(event["round"]), float(event["value"]))
        if "domain" in event:
            protocol = f"on {event['domain']}"
        if who is None:
            self.run.curves[protocol][metric][seen.round] = seen.value
        else:
            self.run.clients[protocol][metric][int(who)] = seen
        head, _, rest = line.partition(b',"protocol":')
        key, _, _ = rest.rpartition(b',"value":')
        plain = line.startswith(_written(event, "event", "round", "protocol", "client", "metric") + b',"value":')
        if plain and "domain" not in event:
            self._rounds[head] = seen.round
            if who is None:
                self._curves[key] = self.run.curves[protocol][metric]
            else:
                self._last[key], self._whose[key] = seen, (protocol, metric, int(who))

    def _exhibit(self, line: bytes) -> None:
        """Of all but lines over rounds only the latest is drawn, so only the latest is parsed, at the end."""
        head, _, _ = line.partition(b',"values":')
        event = json.loads(head + b"}")
        key = (event["name"], event["client"])
        if event["draw"] == "lines":
            self.run.exhibits.setdefault(key, []).append(json.loads(line))
        elif line.endswith(b"}\n"):
            self._latest[key] = line
        else:
            raise ValueError(line)

    def _unpack(self) -> None:
        for key, line in self._latest.items():
            try:
                self.run.exhibits[key] = [json.loads(line)]
            except ValueError:
                self.run.missing.append(f"its last line of the exhibit '{key[0]}' is damaged")

    def _settle(self) -> None:
        """Turn what was counted into bytes and measurements, and forget its pieces."""
        contents = list(self._contents)
        for head, counts in self._sent.items():
            for number, times in counts.items():
                _add(self.run, self._rounds[head], contents[number], times)
        for key, (protocol, metric, client) in self._whose.items():
            found = self.run.clients[protocol][metric]
            found[client] = max(found[client], Seen(*self._last[key]), key=lambda seen: seen.round)
        for pieces in (self._sent, self._numbers, self._contents):
            pieces.clear()

    def _say_what_is_missing(self, half: int) -> None:
        run, say = self.run, self.run.missing.append
        if not run.start:
            say("its first line, which names the experiment and the seed, is lost")
        if self._damaged:
            named = ", ".join(map(str, self._damaged[:NAMED])) + (", ..." if len(self._damaged) > NAMED else "")
            many = len(self._damaged) > 1
            say(f"{len(self._damaged)} line{'s are' if many else ' is'} damaged and left out (line{'s' if many else ''} {named})")
        if half:
            say(f"its last line is only half written ({half} bytes)")
        if gaps := run.rounds - len(run.seconds):
            say(f"{gaps} of {run.rounds} rounds {'have' if gaps > 1 else 'has'} lost the line with the seconds")
        if not run.ended:
            say(f"it has no end: the run is still under way, or was stopped after round {run.rounds}")


def _checked(event: Event) -> Event:
    if not isinstance(event.get("experiment", {}), dict):
        raise ValueError("the experiment is not a table")
    return event


def _written(event: Event, *keys: str) -> bytes:
    """How the ledger begins a line with these keys: only such lines are read by their pieces.

    >>> _written({"event": "round", "round": 3}, "event", "round")
    b'{"event":"round","round":3'
    """
    return ("{" + ",".join(f'"{key}":{json.dumps(event[key])}' for key in keys)).encode()


def _add(run: Run, round: int, content: tuple[str, str, int, int], times: int) -> None:
    direction, kind, payload, framed = content
    amount = run.traffic[round][direction, kind]
    amount.payload += payload * times
    amount.framed += framed * times
