"""Tally: the one fold of a ledger. Summary, tables, watch, progress, trackers and report all take their numbers from here.

Bytes are payload bytes; up and down, rounds and setup (round 0) stand apart. What reaching a target took includes the setup.
The last value under a protocol is the mean over all clients where the ledger has one (`final`), else that of the last round.
Nothing here needs torch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from coterie.errors import RunError
from coterie.ledger import Event, events, value_of
from coterie.results.statistics import crossing, fairness, running_sums

__all__ = ["SETUP", "USUAL", "Amount", "ByClass", "Mean", "Reached", "Seen", "Tally", "WorkDone"]

SETUP = 0
"""The round in which a run is set up."""
USUAL = ("accuracy", "top5", "loss")
"""What is measured of every model; all else is a metric of a user's own."""


class Seen(NamedTuple):
    """A measurement and its round."""

    round: int
    value: float


class Mean(NamedTuple):
    """What one round's evaluation came to: of the server's model, or a mean over clients and what it hides."""

    round: int
    value: float
    clients: int | None = None
    """How many it is a mean over; None for the server's model."""
    worst: float | None = None
    worst_tenth: float | None = None
    spread: float | None = None


class Reached(NamedTuple):
    """When a target was reached, and what had been spent by then: bytes up and down with the setup, and seconds."""

    round: int
    bytes: int
    seconds: float


class ByClass(NamedTuple):
    """Accuracy class by class, None for one without examples; confusion counts true (rows) against predicted classes."""

    round: int
    accuracy: Sequence[float | None]
    confusion: Sequence[Sequence[int]] | None


@dataclass
class Amount:
    """Bytes of one kind in one direction."""

    payload: int = 0
    framed: int = 0


@dataclass
class WorkDone:
    """Training that was done: gradient steps, samples gone through, and the loss on the way, weighted by samples."""

    steps: int = 0
    samples: int = 0
    _loss: float = 0.0
    _weight: int = 0

    def add(self, steps: int, samples: int, loss: float | None) -> None:
        """One ask more."""
        self.steps += steps
        self.samples += samples
        if loss is not None:
            self._loss += loss * samples
            self._weight += samples

    @property
    def loss(self) -> float | None:
        """The mean training loss; None where none was told."""
        return self._loss / self._weight if self._weight else None


def _two(leaf: Callable[[], Any]) -> Callable[[], Any]:
    """A factory of tables whose missing entries are leaves."""
    return lambda: defaultdict(leaf)


def _three(leaf: Callable[[], Any]) -> Callable[[], Any]:
    return lambda: defaultdict(_two(leaf))


@dataclass
class Tally:
    """What a ledger comes to, event by event.

    >>> down = {"event": "exchange", "round": 1, "direction": "down", "kind": "weights", "payload_bytes": 8, "framed_bytes": 80}
    >>> seen = {"event": "evaluation", "round": 1, "protocol": "global", "client": None, "metric": "accuracy", "value": 0.95}
    >>> tally = Tally.of([down, {**down, "round": 0, "payload_bytes": 5}, seen])
    >>> tally.total("down"), tally.total("down", setup=True), tally.reached("global", 0.9)
    (8, 5, Reached(round=1, bytes=13, seconds=0))
    """

    start: Event = field(default_factory=dict)
    """The first line; empty where it is lost."""
    partition: Event | None = None
    means: dict[str, dict[str, dict[int, Mean]]] = field(default_factory=_three(dict))
    """Protocol -> metric -> round -> the mean over the clients of the evaluation set, or the server's model."""
    finals: dict[str, dict[str, Mean]] = field(default_factory=_two(dict))
    """Protocol -> metric -> the mean over all clients, at the end."""
    clients: dict[str, dict[str, dict[int, Seen]]] = field(default_factory=_three(dict))
    """Protocol -> metric -> client -> its last measurement."""
    domains: dict[str, dict[str, dict[str, Seen]]] = field(default_factory=_three(dict))
    """Protocol -> metric -> domain -> the last mean over that domain's clients."""
    on_domain: dict[str, dict[tuple[int, str], Seen]] = field(default_factory=_two(dict))
    """Metric -> client and domain -> the last measurement of the client's model there."""
    classes: dict[str, ByClass] = field(default_factory=dict)
    """Protocol -> the last accuracy by class."""
    traffic: dict[int, dict[tuple[str, str], Amount]] = field(default_factory=_three(Amount))
    """Round (0 is the setup) -> direction and kind -> bytes."""
    sent: dict[tuple[str, bool], Amount] = field(default_factory=_two(Amount))
    """Direction, and whether in the setup -> bytes of all kinds and rounds."""
    work: dict[tuple[str, str, bool], WorkDone] = field(default_factory=_two(WorkDone))
    """Purpose (training, evaluation), site (clients, server), and whether in the setup -> what was trained."""
    training: dict[str, dict[int, WorkDone]] = field(default_factory=_three(WorkDone))
    """Site -> round -> what was trained there for training's sake."""
    seconds: dict[int, float] = field(default_factory=dict)
    where: dict[str, float] = field(default_factory=_two(float))
    """Where the seconds went."""
    rejected: list[Event] = field(default_factory=list)
    new_clients: list[Event] = field(default_factory=list)
    resumes: list[Event] = field(default_factory=list)
    logs: dict[tuple[str, int | None], list[Event]] = field(default_factory=dict)
    """Name and client -> every round's number or vector; of larger arrays only the latest."""
    ended: bool = False
    keep_logs: bool = True
    """Whether logged arrays are kept; who only looks on does without."""

    @classmethod
    def of(cls, found: Iterable[Event]) -> Tally:
        """The fold of some events."""
        tally = cls()
        for event in found:
            tally.on_event(event)
        return tally

    @classmethod
    def read(cls, path: Path) -> Tally:
        """The fold of a ledger's file. `coterie.results.read` has a faster reader, which also says what is damaged."""
        return cls.of(events(path))

    def on_event(self, event: Event) -> None:
        """Take note of one event; of a kind that is not known, nothing."""
        match event["event"]:
            case "exchange":
                content = (str(event["direction"]), str(event["kind"]), int(event["payload_bytes"]), int(event["framed_bytes"]))
                self.add_bytes(int(event["round"]), *content)
            case "evaluation" if "epoch" not in event:  # a new client's has an event of its own
                self._take_evaluation(event)
            case "training":
                self._take_training(event)
            case "classes":
                self.classes[event["protocol"]] = ByClass(int(event["round"]), event["accuracy"], event.get("confusion"))
            case "log":
                if self.keep_logs:
                    self._take_log(event)
            case _:
                self._take_rare(event)

    def add_bytes(self, round: int, direction: str, kind: str, payload: int, framed: int, times: int = 1) -> None:
        """Count a message, or several that are alike."""
        for amount in (self.traffic[round][direction, kind], self.sent[direction, round == SETUP]):
            amount.payload += payload * times
            amount.framed += framed * times

    def _take_training(self, event: Event) -> None:
        purpose, site, round = str(event["purpose"]), str(event["site"]), int(event["round"])
        done = (int(event["steps"]), int(event["samples"]), event["loss"])
        self.work[purpose, site, round == SETUP].add(*done)
        if purpose == "training":
            self.training[site][round].add(*done)

    def _take_evaluation(self, event: Event) -> None:
        protocol, metric, client = event["protocol"], event["metric"], event["client"]
        seen = Seen(int(event["round"]), value_of(event["value"]))
        domain = event.get("domain")
        if client is not None and domain is not None:
            self.on_domain[metric][int(client), domain] = seen
        elif client is not None:
            self.clients[protocol][metric][int(client)] = seen
        elif domain is not None:
            self.domains[protocol][metric][domain] = seen
        else:
            self._take_mean(event, seen)

    def _take_mean(self, event: Event, seen: Seen) -> None:
        mean = Mean(*seen, *(event.get(key) for key in ("clients", "worst", "worst_tenth", "spread")))
        if event.get("final"):
            self.finals[event["protocol"]][event["metric"]] = mean
        else:
            self.means[event["protocol"]][event["metric"]][seen.round] = mean

    def _take_log(self, event: Event) -> None:
        key, values = (event["name"], event["client"]), event["values"]
        nested = isinstance(values, list) and bool(values) and isinstance(values[0], list)
        if nested:
            self.logs[key] = [event]
        else:
            self.logs.setdefault(key, []).append(event)

    def _take_rare(self, event: Event) -> None:
        match event["event"]:
            case "start":
                if not isinstance(event.get("experiment", {}), dict):
                    raise ValueError("the experiment is not a table")
                self.start = event
            case "partition":
                self.partition = event
            case "round":
                self.seconds[int(event["round"])] = float(event["seconds"])
                for place, seconds in event.get("where", {}).items():
                    self.where[place] += seconds
            case "rejected":
                self.rejected.append({key: event[key] for key in ("round", "task", "client", "reason")})
            case "new_client":
                self.new_clients.append({key: event[key] for key in ("client", "accuracy", "plateau", "epochs_to_plateau")})
            case "resume":
                self.resumes.append(event)
            case "end":
                self.ended = True

    @property
    def experiment(self) -> dict[str, Any]:
        """The resolved experiment."""
        found: dict[str, Any] = self.start.get("experiment", {})
        return found

    @property
    def method(self) -> str:
        """The method's name."""
        return str(self.experiment.get("method", {}).get("name", ""))

    @property
    def seed(self) -> int:
        """The run's seed."""
        return int(self.start.get("seed", 0))

    @property
    def rounds(self) -> int:
        """The last round that was closed."""
        return max(self.seconds, default=0)

    @property
    def asked(self) -> tuple[str, ...]:
        """The protocols that the experiment asks for; none where it leaves them to the method."""
        return tuple(self.experiment.get("evaluation", {}).get("protocols", ()))

    @property
    def targets(self) -> tuple[float, ...]:
        """The accuracies that the experiment wants to see reached; the one to stop at is among them."""
        settings = self.experiment.get("evaluation", {})
        return tuple(dict.fromkeys([*settings.get("targets", ()), *filter(None, [settings.get("stop_at")])]))

    @property
    def stopped(self) -> bool:
        """Whether it ended before its last round, since it had reached the accuracy to stop at.

        >>> start = {"event": "start", "experiment": {"rounds": 9}}
        >>> Tally.of([start, {"event": "round", "round": 2, "seconds": 0.1}, {"event": "end"}]).stopped
        True
        """
        return self.ended and self.rounds < self.experiment.get("rounds", 0)

    def check_measured(self) -> None:
        """Refuse a run that is over and was never measured under a protocol that was asked for.

        >>> start = {"event": "start", "experiment": {"evaluation": {"protocols": ["local_post"]}}}
        >>> Tally.of([start, {"event": "end"}]).check_measured()
        Traceback (most recent call last):
        ...
        coterie.errors.RunError: nothing was measured under 'local_post': the method had no model for it in any round
        """
        missing = [protocol for protocol in self.asked if protocol not in self.means]
        if self.ended and missing:
            raise RunError(f"nothing was measured under {', '.join(map(repr, missing))}: the method had no model for it in any round")

    def curve(self, protocol: str, metric: str = "accuracy") -> dict[int, float]:
        """Round -> value, in order."""
        return {round: mean.value for round, mean in sorted(self.means.get(protocol, {}).get(metric, {}).items())}

    def last(self, protocol: str, metric: str = "accuracy") -> Mean | None:
        """What a protocol ended with; None where it was never measured so."""
        found = self.finals.get(protocol, {}).get(metric)
        if found is None:
            curve = self.means.get(protocol, {}).get(metric)
            found = curve[max(curve)] if curve else None
        if found is None or found.worst is not None:
            return found
        values = [seen.value for seen in self.last_of_clients(protocol, metric, found.round).values()]
        if not values or metric != "accuracy":
            return found._replace(clients=found.clients or len(values) or None)
        hidden = fairness(values)
        return Mean(found.round, found.value, found.clients or hidden.clients, hidden.worst, hidden.worst_tenth, hidden.spread)

    def last_of_clients(self, protocol: str, metric: str = "accuracy", round: int | None = None) -> dict[int, Seen]:
        """Each client that the last mean is over, and what it had: those that were measured in that round."""
        found = self.clients.get(protocol, {}).get(metric, {})
        at = max((seen.round for seen in found.values()), default=0) if round is None else round
        return {client: seen for client, seen in sorted(found.items()) if seen.round == at}

    def total(self, direction: str, *, setup: bool = False, framed: bool = False) -> int:
        """Bytes in one direction, in rounds or in the setup: the payload, or as framed."""
        amount = self.sent.get((direction, setup), Amount())
        return amount.framed if framed else amount.payload

    def by_kind(self, *, setup: bool = False) -> dict[str, int]:
        """Payload bytes by kind of content, up and down, in rounds or in the setup."""
        found: dict[str, int] = defaultdict(int)
        for round, sent in self.traffic.items():
            for (_, kind), amount in sent.items():
                if (round == SETUP) == setup:
                    found[kind] += amount.payload
        return dict(found)

    def bytes_by(self, rounds: Sequence[int]) -> list[int]:
        """Payload bytes up and down until the end of each of some rounds, the setup included."""
        by_round = {round: sum(amount.payload for amount in sent.values()) for round, sent in self.traffic.items()}
        return [int(size) for size in running_sums(by_round, rounds)]

    def reached(self, protocol: str, target: float, running: int = 1) -> Reached | None:
        """When the accuracy, or the mean of its last `running` values, first reached a target, and at what cost."""
        at = crossing(self.curve(protocol), target, running)
        if at is None:
            return None
        return Reached(at, self.bytes_by([at])[0], running_sums(self.seconds, [at])[0])

    def trained(self, purpose: str = "training", site: str = "clients", *, setup: bool | None = None) -> WorkDone:
        """Training for a purpose at a site: in the setup (pretraining), in rounds, or in both."""
        total = WorkDone()
        for part in (True, False) if setup is None else (setup,):
            done = self.work.get((purpose, site, part), WorkDone())
            total.add(done.steps, done.samples, None)
        return total

    def losses(self, site: str = "clients") -> dict[int, float]:
        """Round -> the mean loss of the training in it, the setup's left out."""
        found = {round: done.loss for round, done in sorted(self.training.get(site, {}).items()) if round != SETUP}
        return {round: loss for round, loss in found.items() if loss is not None}
