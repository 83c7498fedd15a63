"""Accuracies on the page: protocols, scores, paired differences, targets, domains and classes."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import Any

from coterie.protocols import PROTOCOLS
from coterie.results.comparison import ArmRuns, Reach, differences, last_score, measured, over_clients, reached
from coterie.results.gather import Report
from coterie.results.sheets import clients_text, difference_cells, rounds_cell
from coterie.results.statistics import RUNNING, best_of, estimate
from coterie.results.tables import Cell, Sheet, as_page, bytes_cell, estimate_cell, number_cell, points, seconds_cell, share

__all__ = ["classes", "clients_of", "differences_under", "domains", "protocols", "scores", "targets", "what"]

RULES = {"first_crossing": 1, "running_mean": RUNNING}
"""When a target counts as reached -> of how many evaluations the mean must reach it."""


def what(protocol: str) -> str:
    """The sentence that says what a protocol measures.

    >>> what("global")
    "the server's model on the whole test set"
    """
    return PROTOCOLS[protocol].what if protocol in PROTOCOLS else ""


def clients_of(report: Report, protocol: str) -> str:
    """Over how many clients the last means under a protocol are; nothing for what is measured at the server."""
    counts = [count for arm in report.arms if (over := over_clients(arm, protocol)) for count in over.clients]
    return clients_text(min(counts), max(counts)) if counts else ""


def protocols(report: Report) -> dict[str, Any]:
    """Every protocol: its sentence, over how many clients, and for which methods."""
    rows = []
    for protocol in measured(report.arms):
        arms = [arm.label for arm in report.arms if last_score(arm, protocol) is not None]
        whose = "all" if len(arms) == len(report.arms) else ", ".join(arms)
        rows.append([protocol, what(protocol) or "a measure of the user's own", clients_of(report, protocol) or "at the server", whose])
    note = "A mean over clients counts every client once, whatever it holds."
    return as_page(Sheet("", ["protocol", "what is measured", "over", "methods"], rows, note))


def scores(report: Report, protocol: str, metric: str) -> dict[str, Any]:
    """Last, best and mean of the last five over seeds; beside a mean over clients, what it hides."""
    found = {arm.label: last for arm in report.arms if (last := last_score(arm, protocol, metric)) is not None}
    rivals = [found[arm.label].mean for arm in report.arms if arm.label in found and not arm.bound]
    to_the_end = not any(arm.stopped for arm in report.arms)  # what runs stopped at is nobody's best
    best = best_of(rivals, metric) if len(rivals) > 1 and to_the_end else None
    hidden = metric == "accuracy" and any(over_clients(arm, protocol) for arm in report.arms)
    rows = []
    for arm in report.arms:
        if arm.label in found:
            marked = found[arm.label].mean == best and not arm.bound
            cell = estimate_cell(found[arm.label], metric, best=marked)
            rows.append([arm.label, cell, *(_hidden(arm, protocol) if hidden else []), *_of_curves(arm, protocol, metric)])
    columns = [
        "method",
        "last",
        *(["clients", "worst client", "worst tenth", "spread"] if hidden else []),
        "best",
        f"mean of last {RUNNING}",
    ]
    plain = [["method"], ["last", "last sd"]]
    plain += [["clients"], ["worst", "worst sd"], ["worst tenth", "worst tenth sd"], ["spread"]] if hidden else []
    plain += [["best", "best sd"], ["mean of last five", "mean of last five sd"], ["seeds"]]
    note = "Worst tenth: the mean of the worst tenth of clients. Spread: the standard deviation over clients, in points." if hidden else ""
    return as_page(Sheet("", [*columns, "seeds"], rows, note, plain))


def _hidden(arm: ArmRuns, protocol: str) -> list[Cell]:
    over = over_clients(arm, protocol)
    if over is None:
        return [Cell("–", values=("",)), estimate_cell(None), estimate_cell(None), Cell("–", values=("",))]
    low, high = over.clients
    count = Cell(f"{low}" if low == high else f"{low} to {high}", values=(high,))
    spread = Cell(points(over.spread.mean), values=(over.spread.mean,))
    return [count, estimate_cell(over.worst), estimate_cell(over.worst_tenth), spread]


def _of_curves(arm: ArmRuns, protocol: str, metric: str) -> list[Cell]:
    curves = [list(curve.values()) for run in arm.runs if (curve := run.tally.curve(protocol, metric))]
    top, tail = estimate(best_of(curve, metric) for curve in curves), estimate(mean(curve[-RUNNING:]) for curve in curves)
    return [estimate_cell(top, metric), estimate_cell(tail, metric), Cell(str(len(curves)), values=(len(curves),))]


def differences_under(report: Report, protocol: str) -> list[dict[str, Any] | None]:
    """For each arm as the baseline, what the others have more, paired by seed; None where it was not measured so."""
    return [_differences(report, base, protocol) if last_score(base, protocol) else None for base in report.arms]


def _differences(report: Report, base: ArmRuns, protocol: str) -> dict[str, Any]:
    rows = [
        [arm.label, *difference_cells(found), Cell(str(found.seeds), values=(found.seeds,))]
        for arm, found in differences(report.arms, base, protocol)
    ]
    columns = ["method", f"less {base.label}", "95% interval", "verdict", "seeds"]
    plain = [["method"], ["difference"], ["low", "high"], ["verdict"], ["seeds"]]
    note = "Percentage points of last accuracy, paired by seed; Student's t, one by one. Fewer than three seeds have no interval."
    return as_page(Sheet("", columns, rows, note, plain))


def targets(report: Report, protocol: str) -> dict[str, Any]:
    """Target -> rule -> bars and a table."""
    wanted = sorted({target for tally in report.tallies for target in tally.targets})
    return {share(each): {rule: _target(report, protocol, each, running) for rule, running in RULES.items()} for each in wanted}


def _target(report: Report, protocol: str, target: float, running: int) -> dict[str, Any]:
    found = [reached(arm, protocol, target, running) for arm in report.arms]
    columns = ["method", "rounds", "sent, up and down", "seconds", "seeds that got there"]
    plain = [["method"], ["rounds", "rounds sd"], ["bytes"], ["seconds"], ["reached", "seeds"]]
    bars = [_bars(reach) if reach.found else None for reach in found]
    counts = [[len(reach.there), len(reach.found)] if reach.found else None for reach in found]
    note = "Mean over the seeds that got there. Bytes include the setup."
    return {
        "bars": bars,
        "reached": counts,
        "table": as_page(Sheet("", columns, [_row(reach) for reach in found if reach.found], note, plain)),
    }


def _bars(reach: Reach) -> dict[str, float | None]:
    names = {"rounds": "round", "bytes": "bytes", "seconds": "seconds"}
    return {name: took.mean if (took := reach.took(key)) else None for name, key in names.items()}


def _row(reach: Reach) -> list[Any]:
    counts = (len(reach.there), len(reach.found))
    there = Cell(f"{counts[0]} of {counts[1]}", values=counts)
    rounds, sent, seconds = (reach.took(key) for key in ("round", "bytes", "seconds"))
    if rounds is None or sent is None or seconds is None:
        return [reach.label, Cell("not reached", values=("", "")), Cell("–", values=("",)), Cell("–", values=("",)), there]
    return [reach.label, rounds_cell(rounds), bytes_cell(sent.mean), seconds_cell(seconds.mean), there]


def domains(report: Report) -> dict[str, Any]:
    """Protocol -> a table of the last accuracy domain by domain, over seeds."""
    names = dict.fromkeys(p for tally in report.tallies for p, found in tally.domains.items() if "accuracy" in found)
    return {protocol: _domains(report, protocol) for protocol in names}


def _domains(report: Report, protocol: str) -> dict[str, Any]:
    found = {arm.label: [run.tally.domains.get(protocol, {}).get("accuracy", {}) for run in arm.runs] for arm in report.arms}
    names = list(dict.fromkeys(domain for each in found.values() for seeds in each for domain in seeds))
    rows = []
    for label, seeds in found.items():
        if any(seeds):
            values = {domain: [each[domain].value for each in seeds if domain in each] for domain in names}
            rows.append([label, *(estimate_cell(estimate(values[domain]) if values[domain] else None) for domain in names)])
    return as_page(
        Sheet("", ["method", *names], rows, "Means over the clients of each domain.", [["method"], *([n, f"{n} sd"] for n in names)])
    )


def classes(report: Report) -> dict[str, Any]:
    """Protocol -> accuracy class by class for each arm, and what was taken for what; nothing where ledgers do not say."""
    names = dict.fromkeys(protocol for tally in report.tallies for protocol in tally.classes)
    return {protocol: _classes(report, protocol) for protocol in names}


def _classes(report: Report, protocol: str) -> dict[str, Any]:
    found = [[run.tally.classes[protocol] for run in arm.runs if protocol in run.tally.classes] for arm in report.arms]
    accuracy = [_by_class([each.accuracy for each in seeds]) for seeds in found]
    confusion = [_confused([each.confusion for each in seeds if each.confusion]) for seeds in found]
    width = max(len(each) for each in accuracy)
    rows = [
        [arm.label, *("–" if value is None else number_cell(value) for value in values)]
        for arm, values in zip(report.arms, accuracy, strict=True)
        if values
    ]
    table = as_page(Sheet("", ["method", *(f"class {label}" for label in range(width))], rows, "Mean over seeds, at the end."))
    return {"accuracy": accuracy, "confusion": confusion, "table": table}


def _by_class(seeds: Sequence[Sequence[float | None]]) -> list[float | None]:
    columns = [[value for value in column if value is not None] for column in zip(*seeds, strict=False)]
    return [mean(column) if column else None for column in columns]


def _confused(seeds: Sequence[Sequence[Sequence[int]]]) -> list[list[float]] | None:
    """Of the examples of each class (rows), the share that was taken for each (columns), all seeds together."""
    if not seeds:
        return None
    sums = [[sum(cells) for cells in zip(*rows, strict=True)] for rows in zip(*seeds, strict=True)]
    return [[count / (sum(row) or 1) for count in row] for row in sums]
