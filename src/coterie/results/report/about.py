"""What was run, on the page: a line on the experiment, its settings and versions, every run, and what went wrong."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from coterie.errors import counted
from coterie.ledger import Event
from coterie.results.gather import Report, flatten
from coterie.results.tables import Cell, Sheet, as_page, bytes_cell, seconds_cell

__all__ = ["facts", "packages", "rejected", "runs", "settings", "subtitle"]

REJECTIONS = 200
"""Rejected replies that are listed one by one."""


def subtitle(report: Report) -> str:
    """How much of what: methods, seeds, rounds, clients, data."""
    experiment = _first(report)
    seeds, rounds = {tally.seed for tally in report.tallies}, max(tally.rounds for tally in report.tallies)
    parts = [counted(len(report.arms), "method"), counted(len(seeds), "seed"), counted(rounds, "round")]
    partition = experiment.get("partition", {})
    clients = next((tally.partition["clients"] for tally in report.tallies if tally.partition), partition.get("clients"))
    if clients:
        parts.append(counted(clients, "client") + _cohort(experiment.get("cohort"), clients))
    sources = " + ".join(source.get("name", "?") for source in experiment.get("data", {}).get("source", []))
    name = partition.get("name", "")
    return " · ".join(part for part in [*parts, sources, f"partition {name}" if name else ""] if part)


def _first(report: Report) -> dict[str, Any]:
    return next((tally.experiment for tally in report.tallies if tally.experiment), {})


def _cohort(cohort: float | None, clients: int) -> str:
    """How many take part in a round: a number of clients, or a share of them.

    >>> _cohort(5, 10), _cohort(0.5, 10), _cohort(1.0, 4)
    (', 5 per round', ', 5 per round', ', all in every round')
    """
    if cohort is None:
        return ""
    size = cohort if isinstance(cohort, int) else max(1, round(cohort * clients))
    return ", all in every round" if size == clients else f", {size:,} per round"


def facts(report: Report) -> str:
    """How models are trained, where all runs agree on it: what a reader asks for first."""
    tables = [flatten(tally.experiment) for tally in report.tallies if tally.experiment]

    def agreed(key: str) -> Any:
        values = [table.get(key) for table in tables]
        return values[0] if values and all(value == values[0] for value in values) else None

    models = agreed("model")
    names = [_name(model) for model in (models if isinstance(models, list) else [models]) if model]
    parts = [f"model{'s' if len(names) > 1 else ''} {', '.join(names)}" if names else ""]
    parts.append(
        f"{agreed('training.optimiser.name')}, learning rate {agreed('training.optimiser.lr')}" if agreed("training.optimiser.lr") else ""
    )
    epochs, batch = agreed("training.epochs"), agreed("training.batch")
    parts.append(f"{counted(epochs, 'local epoch')} per round" if isinstance(epochs, int) else "")
    parts.append(f"batches of {batch}" if batch else "")
    pretraining = agreed("pretraining")
    parts.append(f"{counted(pretraining, 'epoch')} of pretraining" if isinstance(pretraining, int) and pretraining else "")
    return " · ".join(part for part in parts if part)


def _name(model: Any) -> str:
    return str(model.get("name", "?")) if isinstance(model, Mapping) else str(model)


def rejected(report: Report) -> dict[str, Any]:
    """Replies that were dropped, clients that failed, and runs that were stopped and resumed."""
    found = [(arm, run.tally, event) for arm in report.arms for run in arm.runs for event in run.tally.rejected]
    counts = [sum(len(run.tally.rejected) for run in arm.runs) for arm in report.arms]
    rows = [
        [arm.label, tally.seed, event["round"], event["client"], event["task"], _reason(event)] for arm, tally, event in found[:REJECTIONS]
    ]
    why = Counter((arm.label, _reason(event)) for arm, _, event in found)
    listed = [[label, times, reason] for (label, reason), times in why.most_common(20)]
    note = f"The first {REJECTIONS} of {len(found):,}." if len(found) > REJECTIONS else ""
    stops = [f"{run.folder.name} was stopped and resumed after round {each['round']}." for run in report.runs for each in run.tally.resumes]
    return {
        "counts": counts,
        "stops": stops,
        "reasons": as_page(Sheet("", ["method", "times", "reason"], listed)),
        "table": as_page(Sheet("", ["method", "seed", "round", "client", "task", "reason"], rows, note)),
    }


def _reason(event: Event) -> str:
    """The first line, without the client, task and round that have columns of their own.

    >>> _reason({"reason": "client 3, task 'train', round 2: RuntimeError: full\\n  at line 1"})
    'RuntimeError: full'
    """
    return re.sub(r"^client \d+, task '[^']*', round \d+: ", "", str(event["reason"]).split("\n")[0])


def runs(report: Report) -> dict[str, Any]:
    """Every run: how far it came, what it sent, and the digests of what was run and on what."""
    rows = []
    for arm in report.arms:
        for run in arm.runs:
            tally, start = run.tally, run.tally.start
            planned = tally.experiment.get("rounds")
            done = Cell(f"{tally.rounds} of {planned}" if planned else str(tally.rounds), values=(tally.rounds,))
            sent = [bytes_cell(tally.total(way)) for way in ("up", "down")]
            setup = bytes_cell(tally.total("up", setup=True) + tally.total("down", setup=True))
            spent = seconds_cell(sum(tally.seconds.values()))
            digests = [str(start.get(key, ""))[:12] for key in ("digest", "code", "data")]
            state = "finished" if tally.ended else "unfinished"
            rows.append([arm.label, tally.seed, done, state, *sent, setup, spent, *digests, start.get("processor", ""), run.folder.name])
    columns = ["method", "seed", "rounds", "state", "sent up", "sent down", "setup", "seconds"]
    return as_page(_without_empty(Sheet("", [*columns, "experiment", "code", "data", "processor", "folder"], rows)))


def _without_empty(sheet: Sheet) -> Sheet:
    """A sheet without the columns that say nothing."""
    kept = [at for at in range(len(sheet.columns)) if any(row[at] != "" for row in sheet.rows)]
    return Sheet(sheet.title, [sheet.columns[at] for at in kept], [[row[at] for at in kept] for row in sheet.rows], sheet.note)


def settings(report: Report) -> dict[str, Any]:
    """Every key of the resolved experiment: once where all runs agree, else for each arm."""
    tables = {arm.label: flatten(arm.runs[0].tally.experiment) for arm in report.arms}
    rows = []
    for key in dict.fromkeys(key for each in tables.values() for key in each):
        if key != "seed":
            values = {label: json.dumps(each[key]) for label, each in tables.items() if key in each}
            alike = len(set(values.values())) == 1 and len(values) == len(tables)
            rows += [[key, "all", next(iter(values.values()))]] if alike else [[key, label, value] for label, value in values.items()]
    return as_page(Sheet("", ["key", "method", "value"], rows))


def packages(report: Report) -> dict[str, Any]:
    """Packages that the runs were made with."""
    found = Counter((name, str(version)) for tally in report.tallies for name, version in tally.start.get("versions", {}).items())
    return as_page(Sheet("", ["package", "version", "runs"], [[name, version, count] for (name, version), count in found.items()]))
