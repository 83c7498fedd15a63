"""A run in one page of numbers, from its ledger alone. Nothing here needs torch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from coterie.ledger import Event

__all__ = ["crossing", "summarise"]

RUNNING = 5
"""Evaluations in the running mean, and in `mean_of_last_five`."""


def summarise(events: Iterable[Event]) -> dict[str, Any]:
    """Last, best and mean of the last five of every metric; rounds and bytes to targets; bytes; seconds.

    >>> start = {"event": "start", "experiment": {"evaluation": {"targets": [0.9]}}}
    >>> down = {"event": "exchange", "round": 1, "direction": "down", "kind": "weights", "payload_bytes": 8, "framed_bytes": 80}
    >>> seen = {"event": "evaluation", "round": 1, "protocol": "global", "client": None, "metric": "accuracy", "value": 0.95}
    >>> summary = summarise([start, down, seen])
    >>> summary["protocols"]["global"]["accuracy"]["last"], summary["targets"]["global"]["0.9"]["first_crossing"]
    (0.95, {'round': 1, 'bytes': 8})
    """
    targets: Sequence[float] = ()
    curves: dict[str, dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    traffic: dict[int, int] = defaultdict(int)
    totals = dict.fromkeys(("up", "down", "framed_up", "framed_down", "setup_up", "setup_down"), 0)
    by_kind: dict[str, int] = defaultdict(int)
    seconds, rejected, rounds, new_clients = 0.0, 0, 0, []
    for event in events:
        match event["event"]:
            case "start":
                targets = event["experiment"]["evaluation"]["targets"]
            case "exchange":
                _count(event, totals, traffic)
                by_kind[event["kind"]] += event["payload_bytes"]
            case "evaluation" if event["client"] is None:
                curves[event["protocol"]][event["metric"]][event["round"]] = event["value"]
            case "rejected":
                rejected += 1
            case "round":
                seconds, rounds = seconds + event["seconds"], max(rounds, event["round"])
            case "new_client":
                new_clients.append({key: event[key] for key in ("client", "plateau", "epochs_to_plateau", "accuracy")})
    protocols = {
        protocol: {metric: _describe(list(curve.values()), metric) for metric, curve in metrics.items()}
        for protocol, metrics in curves.items()
    }
    crossings = {
        protocol: {str(target): _crossings(metrics["accuracy"], target, traffic) for target in targets}
        for protocol, metrics in curves.items()
    }
    summary: dict[str, Any] = {"rounds": rounds, "protocols": protocols, "targets": crossings}
    summary |= {"bytes": {**totals, "by_kind": dict(by_kind)}, "rejected": rejected, "seconds": seconds}
    return summary | ({"new_clients": new_clients} if new_clients else {})


def crossing(curve: dict[int, float], target: float, running: int = 1) -> int | None:
    """The first round in which the mean of the last `running` values reaches `target`.

    >>> crossing({1: 0.5, 2: 0.9, 3: 0.8}, 0.9), crossing({1: 0.5, 2: 0.9, 3: 0.8}, 0.85, running=2)
    (2, 3)
    """
    rounds, values = list(curve), list(curve.values())
    for end in range(running, len(values) + 1):
        if sum(values[end - running : end]) / running >= target:
            return rounds[end - 1]
    return None


def _count(event: Event, totals: dict[str, int], traffic: dict[int, int]) -> None:
    direction, payload = event["direction"], event["payload_bytes"]
    if event["round"] == 0:
        totals[f"setup_{direction}"] += payload
    else:
        totals[direction] += payload
        totals[f"framed_{direction}"] += event["framed_bytes"]
        traffic[event["round"]] += payload


def _describe(values: list[float], metric: str) -> dict[str, float]:
    best = min(values) if metric == "loss" else max(values)
    tail = values[-RUNNING:]
    return {"last": values[-1], "best": best, "mean_of_last_five": sum(tail) / len(tail)}


def _crossings(curve: dict[int, float], target: float, traffic: dict[int, int]) -> dict[str, dict[str, int] | None]:
    def at(round: int | None) -> dict[str, int] | None:
        return None if round is None else {"round": round, "bytes": sum(n for r, n in traffic.items() if r <= round)}

    return {"first_crossing": at(crossing(curve, target)), "running_mean": at(crossing(curve, target, RUNNING))}
