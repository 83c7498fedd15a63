"""A run in one page of numbers, from its Tally alone. Nothing here needs torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from coterie.results.statistics import RUNNING, best_of
from coterie.results.tally import Mean, Tally

__all__ = ["SUMMARY", "costs_of", "summarise", "summary_in"]

SUMMARY = "summary.json"
"""What it is called in a run's folder; it is the last thing a run writes."""


def summary_in(folder: Path) -> dict[str, Any] | None:
    """The summary in a folder; one that does not parse (a disk that lost it) is none.

    >>> summary_in(Path("no/such/folder")) is None
    True
    """
    try:
        found: dict[str, Any] = json.loads((folder / SUMMARY).read_bytes())
    except (OSError, ValueError):
        return None
    return found


def summarise(tally: Tally) -> dict[str, Any]:
    """Last, best and mean of the last five of every metric; rounds and bytes to targets; bytes; local work; seconds.

    >>> start = {"event": "start", "experiment": {"evaluation": {"targets": [0.9]}}}
    >>> down = {"event": "exchange", "round": 1, "direction": "down", "kind": "weights", "payload_bytes": 8, "framed_bytes": 80}
    >>> seen = {"event": "evaluation", "round": 1, "protocol": "global", "client": None, "metric": "accuracy", "value": 0.95}
    >>> summary = summarise(Tally.of([start, down, seen]))
    >>> summary["protocols"]["global"]["accuracy"]["last"], summary["targets"]["global"]["0.9"]["first_crossing"]
    (0.95, {'round': 1, 'bytes': 8})
    """
    tally.check_measured()
    summary: dict[str, Any] = {
        "rounds": tally.rounds,
        "protocols": {p: {metric: _described(tally, p, metric) for metric in metrics} for p, metrics in tally.means.items()},
        "targets": {p: {str(t): _crossings(tally, p, t) for t in tally.targets} for p in tally.means},
        "rejected": len(tally.rejected),
        **costs_of(tally),
    }
    parts = {"domains": _domains(tally), "classes": {p: list(each.accuracy) for p, each in tally.classes.items()}}
    return summary | {key: found for key, found in {**parts, "new_clients": tally.new_clients}.items() if found}


def costs_of(tally: Tally) -> dict[str, Any]:
    """Bytes, local work and seconds; no work where the ledger does not tell of any.

    >>> costs_of(Tally())["bytes"]["up"], "work" in costs_of(Tally())
    (0, False)
    """
    found = {"bytes": _bytes(tally), "seconds": sum(tally.seconds.values())}
    return found | ({"work": _work(tally)} if tally.work else {})


def _described(tally: Tally, protocol: str, metric: str) -> dict[str, float]:
    """The last value and those of the curve; of a mean over clients, how many, and what it hides."""
    last, values = tally.last(protocol, metric), list(tally.curve(protocol, metric).values())
    assert last is not None
    tail = values[-RUNNING:]
    found = {"last": last.value, "best": best_of(values, metric), "mean_of_last_five": sum(tail) / len(tail)}
    fixed = list(tally.means[protocol][metric].values())[-1].clients
    if fixed is not None and fixed != last.clients:
        found["curve_clients"] = fixed  # whom every round measures, of those whom the last one did
    return found | {key: value for key, value in _hidden(last).items() if value is not None}


def _hidden(last: Mean) -> dict[str, float | None]:
    return {"clients": last.clients, "worst": last.worst, "worst_tenth": last.worst_tenth, "spread": last.spread}


def _crossings(tally: Tally, protocol: str, target: float) -> dict[str, dict[str, int] | None]:
    found = {"first_crossing": tally.reached(protocol, target), "running_mean": tally.reached(protocol, target, RUNNING)}
    return {rule: None if at is None else {"round": at.round, "bytes": at.bytes} for rule, at in found.items()}


def _bytes(tally: Tally) -> dict[str, Any]:
    """Payload and framed bytes of the rounds, and apart from them what the setup took."""
    ways = ("up", "down")
    found: dict[str, Any] = {way: tally.total(way) for way in ways}
    found |= {f"framed_{way}": tally.total(way, framed=True) for way in ways}
    found |= {f"setup_{way}": tally.total(way, setup=True) for way in ways}
    return {**found, "by_kind": tally.by_kind(), "setup_by_kind": tally.by_kind(setup=True)}


def _work(tally: Tally) -> dict[str, Any]:
    """Gradient steps and samples of training, and apart from them what only was trained to be measured."""
    parts = {
        "pretraining": tally.trained(setup=True),
        "rounds": tally.trained(setup=False),
        "server": tally.trained(site="server"),
        "evaluation": tally.trained("evaluation"),
    }
    losses = tally.losses() or tally.losses("server")
    found: dict[str, Any] = {name: {"steps": work.steps, "samples": work.samples} for name, work in parts.items()}
    return found | ({"last_loss": list(losses.values())[-1]} if losses else {})


def _domains(tally: Tally) -> dict[str, dict[str, float]]:
    found = {p: metrics.get("accuracy", {}) for p, metrics in tally.domains.items()}
    return {p: {domain: seen.value for domain, seen in domains.items()} for p, domains in found.items() if domains}
