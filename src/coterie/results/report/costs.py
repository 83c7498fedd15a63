"""What runs cost, on the page: bytes, local work and the loss on the way, seconds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import mean
from typing import Any

from coterie.results.comparison import ArmRuns
from coterie.results.gather import Report
from coterie.results.report.curves import loss_of
from coterie.results.statistics import estimate
from coterie.results.tables import Cell, Sheet, as_page, bytes_cell, seconds_cell
from coterie.results.tally import SETUP, Amount

__all__ = ["kinds_by_size", "kinds_of", "seconds", "traffic", "work"]

BEFORE = "setup"
PLACES = {"clients": "waiting for clients", "evaluation": "evaluation", "server": "server and ledger"}
PARTS = {
    "pretraining": ("training", "clients", True),
    "training in rounds": ("training", "clients", False),
    "training at the server": ("training", "server", None),
    "only to be measured": ("evaluation", "clients", None),
}
"""Kinds of local work -> purpose, site, and whether it is the setup's."""


def kinds_of(arm: ArmRuns) -> dict[tuple[str, str], Amount]:
    """Kind and direction -> bytes, a run on average; what moved before the first round has a kind of its own."""
    total: dict[tuple[str, str], Amount] = defaultdict(Amount)
    for run in arm.runs:
        for number, sent in run.tally.traffic.items():
            for (direction, kind), amount in sent.items():
                here = total[BEFORE if number == SETUP else kind, direction]
                here.payload += amount.payload
                here.framed += amount.framed
    return {key: Amount(round(a.payload / len(arm.runs)), round(a.framed / len(arm.runs))) for key, a in sorted(total.items())}


def kinds_by_size(found: Sequence[Mapping[tuple[str, str], Amount]]) -> list[str]:
    """Kinds that weigh anything, the heaviest first, and the setup last.

    >>> kinds_by_size([{("setup", "up"): Amount(9), ("labels", "up"): Amount(1), ("weights", "up"): Amount(5), ("none", "up"): Amount(0)}])
    ['weights', 'labels', 'setup']
    """
    size: dict[str, int] = defaultdict(int)
    for each in found:
        for (kind, _), sent in each.items():
            size[kind] += sent.payload
    return sorted((kind for kind in size if size[kind]), key=lambda kind: (kind == BEFORE, -size[kind]))


def traffic(report: Report) -> dict[str, Any]:
    """Bytes by kind and direction, a run on average; what weighs nothing is left out."""
    found = [kinds_of(arm) for arm in report.arms]
    kinds = kinds_by_size(found)
    rows = []
    for arm, each in zip(report.arms, found, strict=True):
        rounds = max(1, round(mean(run.tally.rounds for run in arm.runs)))
        for (kind, direction), sent in sorted(each.items(), key=lambda item: -item[1].payload):
            if sent.payload:
                per_round = Cell("–", values=("",)) if kind == BEFORE else bytes_cell(sent.payload / rounds)
                rows.append([arm.label, kind, direction, bytes_cell(sent.payload), bytes_cell(sent.framed), per_round])
    columns = ["method", "content", "direction", "payload", "as framed", "per round"]
    plain = [["method"], ["content"], ["direction"], ["payload bytes"], ["framed bytes"], ["payload bytes per round"]]
    bars = {way: [[each[kind, way].payload if (kind, way) in each else 0 for each in found] for kind in kinds] for way in ("up", "down")}
    quiet = [arm.label for arm, each in zip(report.arms, found, strict=True) if not any(sent.payload for sent in each.values())]
    note = "A run, on average over seeds." + (f" Nothing was sent by {', '.join(quiet)}." if quiet else "")
    return {"kinds": kinds, "bars": bars, "table": as_page(Sheet("", columns, rows, note, plain))}


def work(report: Report) -> dict[str, Any] | None:
    """Gradient steps by what they were for, and the training loss; None where ledgers do not tell of any."""
    if not any(tally.work for tally in report.tallies):
        return None
    steps = [[_steps(arm, part) for arm in report.arms] for part in PARTS]
    kept = [index for index, each in enumerate(steps) if any(each)]
    names = [list(PARTS)[index] for index in kept]
    rows = []
    for at, arm in enumerate(report.arms):
        samples = round(mean(run.tally.trained().samples + run.tally.trained(site="server").samples for run in arm.runs))
        rows.append(
            [
                arm.label,
                *(Cell(f"{steps[index][at]:,}", values=(steps[index][at],)) for index in kept),
                Cell(f"{samples:,}", values=(samples,)),
            ]
        )
    note = "Gradient steps of all clients together, a run, on average over seeds; samples: gone through in training, epoch by epoch."
    table = as_page(Sheet("", ["method", *names, "samples"], rows, note))
    losses = [None if (found := loss_of(arm)) is None else {"rounds": found[0], **asdict(found[1])} for arm in report.arms]
    return {"parts": names, "bars": [steps[index] for index in kept], "table": table, "losses": losses if any(losses) else None}


def _steps(arm: ArmRuns, part: str) -> int:
    purpose, site, setup = PARTS[part]
    return round(mean(run.tally.trained(purpose, site, setup=setup).steps for run in arm.runs))


def seconds(report: Report) -> dict[str, Any]:
    """Where the time of a run went, on average."""
    found = [_seconds(arm) for arm in report.arms]
    places = [place for place in dict.fromkeys(place for each in found for place in each) if place != "work"]
    rows = []
    for arm, each in zip(report.arms, found, strict=True):
        total = estimate(sum(run.tally.seconds.values()) for run in arm.runs)
        per_round = total.mean / max(1, round(mean(run.tally.rounds for run in arm.runs)))
        cells = [seconds_cell(each.get(place, 0.0)) for place in places]
        rows.append([arm.label, seconds_cell(total), *cells, seconds_cell(each["work"]), Cell(f"{per_round:.3g} s", values=(per_round,))])
    columns = ["method", "total", *(PLACES.get(place, place) for place in places), "work of clients", "per round"]
    bars = [[each.get(place, 0.0) for each in found] for place in places]
    note = (
        "A run, on average over seeds; the total with its standard deviation, which tells how busy the machine was. "
        "The work of clients is the sum over workers, so it can exceed the wait for them."
    )
    return {"places": [PLACES.get(place, place) for place in places], "bars": bars, "table": as_page(Sheet("", columns, rows, note))}


def _seconds(arm: ArmRuns) -> dict[str, float]:
    """By place, on average: what was measured, and the rest, which is the server's."""
    runs = len(arm.runs)
    total = sum(sum(run.tally.seconds.values()) for run in arm.runs) / runs
    places: dict[str, float] = defaultdict(float)
    for run in arm.runs:
        for place, spent in run.tally.where.items():
            places[place] += spent / runs
    work = places.pop("work", 0.0)
    rest = max(0.0, total - sum(places.values()))
    return {**dict(sorted(places.items())), "server": rest, "work": work}
