"""Clients on the page: how each stands, who is left behind, what they hold, and those that join at the end."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from statistics import mean
from typing import Any

from coterie.results.comparison import ArmRuns
from coterie.results.gather import Report
from coterie.results.read import Run
from coterie.results.statistics import box
from coterie.results.tables import Sheet, as_page, number_cell
from coterie.results.tally import Seen

__all__ = ["clients", "clients_under", "new_clients", "partitions", "values_of"]

WORST = 5
"""Clients of each arm in the table of worst ones."""
DOTS = 1000
"""Clients of an arm that are drawn one by one."""

Client = tuple[Seen, Run, int]


def clients_under(report: Report) -> list[str]:
    """Protocols under which single clients were measured."""
    return list(dict.fromkeys(p for tally in report.tallies for p, found in tally.clients.items() if "accuracy" in found))


def values_of(arm: ArmRuns, protocol: str) -> list[float]:
    """The last accuracy of every client that the arm's last means are over, of all seeds."""
    return [seen.value for seen, _, _ in _of(arm, protocol)]


def _of(arm: ArmRuns, protocol: str) -> list[Client]:
    """From the worst to the best."""
    found = [(seen, run, client) for run in arm.runs for client, seen in run.tally.last_of_clients(protocol).items()]
    return sorted(found, key=lambda each: (each[0].value, each[1].tally.seed, each[2]))


def clients(report: Report) -> dict[str, Any]:
    """Protocol -> each client's last measurement, the five numbers of its box, and the worst clients."""
    return {protocol: _under(report, protocol) for protocol in clients_under(report)}


def _under(report: Report, protocol: str) -> dict[str, Any]:
    dots: list[Any] = []
    boxes: list[Any] = []
    rows, worst, cut = [], [], ""
    for arm in report.arms:
        found = _of(arm, protocol)
        step = max(1, math.ceil(len(found) / DOTS))
        cut = cut if step == 1 else f"One in {step} clients is drawn; boxes and tables use all."
        dots.append([[round(seen.value, 6), run.tally.seed, client] for seen, run, client in found[::step]])
        boxes.append(asdict(box([seen.value for seen, _, _ in found])) if found else None)
        if found:
            rows.append([arm.label, *(number_cell(value) for value in boxes[-1].values()), len(found)])
            worst += [_worst(arm, *each) for each in found[:WORST]]
    columns = ["method", "worst", "first quartile", "median", "third quartile", "best", "clients"]
    summary = as_page(Sheet("", columns, rows, "Each client counts once for each seed, as it was measured at the end."))
    listed = Sheet("", ["method", "seed", "client", "accuracy", "in round", "holds"], worst, f"The {WORST} worst of each method.")
    return {"dots": dots, "boxes": boxes, "cut": cut, "summary": summary, "worst": as_page(listed)}


def _worst(arm: ArmRuns, seen: Seen, run: Run, client: int) -> list[Any]:
    return [arm.label, run.tally.seed, client, number_cell(seen.value), seen.round, _holds(run, client)]


def _holds(run: Run, client: int) -> str:
    """What a client holds, in a few words."""
    partition = run.tally.partition
    if partition is None or client >= len(partition["counts"]):
        return ""
    held = {label: samples for label, samples in enumerate(partition["counts"][client]) if samples}
    domain = f"{partition['domains'][partition['domain_of'][client]]}, " if partition.get("domain_of") else ""
    if len(held) <= 3:
        return f"{domain}{sum(held.values())} samples of {'class' if len(held) == 1 else 'classes'} {', '.join(map(str, held))}"
    return f"{domain}{sum(held.values())} samples of {len(held)} classes"


def partitions(report: Report) -> list[dict[str, Any]]:
    """One for each seed, or only one where all are alike."""
    found: dict[str, dict[str, Any]] = {}
    for tally in report.tallies:
        if tally.partition is not None:
            key = json.dumps(tally.partition["counts"])
            plain = {k: v for k, v in tally.partition.items() if k != "event"}
            found.setdefault(key, {"seeds": [], **plain})["seeds"].append(tally.seed)
    return [_partition(each) for each in found.values()]


def _partition(found: dict[str, Any]) -> dict[str, Any]:
    listed = len(found["counts"])
    note = f"The first {listed} of {found['clients']:,} clients are shown." if listed < found["clients"] else ""
    rows = [[client, *counts, sum(counts)] for client, counts in enumerate(found["counts"])]
    found["table"] = as_page(Sheet("", ["client", *(f"class {label}" for label in range(found["classes"])), "samples"], rows))
    said = str(found.get("note") or "").strip()
    said = said if not said or said.endswith(".") else f"{said}."
    return found | {"seeds": sorted(set(found["seeds"])), "cut": note, "note": said[:1].upper() + said[1:]}


def new_clients(report: Report) -> dict[str, Any] | None:
    """Accuracy of clients that join at the end, by epochs of their own training."""
    curves, rows = [], []
    for arm in report.arms:
        found = [event for run in arm.runs for event in run.tally.new_clients]
        columns = list(zip(*(event["accuracy"] for event in found), strict=False))
        band = {"mean": [mean(c) for c in columns], "low": [min(c) for c in columns], "high": [max(c) for c in columns]}
        curves.append(band if found else None)
        for run in arm.runs:
            for event in run.tally.new_clients:
                start, plateau = number_cell(event["accuracy"][0]), number_cell(event["plateau"])
                rows.append([arm.label, run.tally.seed, event["client"], start, plateau, event["epochs_to_plateau"]])
    names = ["method", "seed", "client", "on arrival", "plateau", "epochs to plateau"]
    return {"curves": curves, "table": as_page(Sheet("", names, rows))} if rows else None
