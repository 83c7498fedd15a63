"""Everything the page shows, as one JSON object. All text and all numbers are made here; the page only draws and switches."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import mean, median, quantiles
from typing import Any

from coterie.ledger import Event
from coterie.results.report.exhibits import exhibits_of
from coterie.results.report.gather import Arm, Comparison, flatten
from coterie.results.report.headline import METRICS, cards
from coterie.results.report.numbers import (
    POINTS,
    Axis,
    Target,
    axis_of,
    curve_of,
    kinds_by_size,
    kinds_of,
    last_of,
    metrics_of,
    protocols_of,
    seconds_of,
    spread,
    targets_of,
)
from coterie.results.report.read import Run, Seen
from coterie.results.report.tabulate import Cell, bytes_cell, percent, points, seconds_cell, share, table
from coterie.results.summary import RUNNING

__all__ = ["PROTOCOLS", "content"]

PROTOCOLS = {
    "global": "the server's model on the whole test set",
    "local_pre": "the model a client receives, on the client's own test data; mean over clients",
    "local_post": "a client's model after its own training, on the client's own test data; mean over clients",
    "local_val": "a client's model on its private validation data; mean over clients",
    "intra": "a client's model on its own domain; mean over clients",
    "inter": "a client's model on the domains of the others; mean over clients",
    "composed": "the client's lower layers under the server's upper layers, on the whole test set",
}
WORST = 5
"""Clients of each arm in the table of worst ones."""
DOTS = 1000
"""Clients of an arm that are drawn one by one."""
REJECTIONS = 200
"""Rejected replies that are listed one by one."""
RULES = {"first_crossing": False, "running_mean": True}
"""When a target counts as reached -> whether it is the mean of the last five that must reach it."""


def content(comparison: Comparison) -> dict[str, Any]:
    """The page's data.

    >>> from pathlib import Path
    >>> run = Run(Path("r"), {"experiment": {"name": "toy", "method": {"name": "fedavg"}, "rounds": 1}, "seed": 0})
    >>> run.curves["global"]["accuracy"][1] = 0.5
    >>> page = content(Comparison("toy", [Arm("fedavg", "fedavg", [run])]))
    >>> page["title"], page["scores"]["global"]["accuracy"]["rows"]
    ('toy', [['fedavg', ['50.00%', 1], '50.00%', '50.00%', '1']])
    """
    arms, protocols = comparison.arms, protocols_of(comparison)
    axes = [axis_of(arm) for arm in arms]
    found = {p: metrics_of(comparison, p) for p in protocols}
    page = {
        "title": comparison.name,
        "subtitle": _subtitle(comparison),
        "notices": comparison.notices,
        "thinned": _thinned(comparison, axes),
        "arms": [{"label": arm.label, "seeds": [run.seed for run in arm.runs]} for arm in arms],
        "protocols": {p: {"what": PROTOCOLS.get(p, ""), "metrics": found[p]} for p in protocols},
        "metrics": METRICS,
        "cards": {p: cards(comparison, p) for p in protocols},
        "axes": [asdict(axis) for axis in axes],
        "curves": {p: {m: _curves(comparison, axes, p, m) for m in found[p]} for p in protocols},
        "scores": {p: {m: _scores(comparison, p, m) for m in found[p]} for p in protocols},
        "targets": {p: _targets(comparison, p) for p in protocols if "accuracy" in found[p]},
        "clients": _clients(comparison),
        "partitions": _partitions(comparison),
        "traffic": _traffic(comparison),
        "new_clients": _new_clients(comparison),
        "exhibits": exhibits_of(comparison),
        "rejected": _rejected(comparison),
        "seconds": _seconds(comparison),
        "runs": _runs(comparison),
        "settings": _settings(comparison),
        "versions": _versions(comparison),
    }
    cleaned: dict[str, Any] = _clean(page)
    return cleaned


def _clean(value: Any) -> Any:
    """The same with None for what JSON has no number for."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _clean(each) for key, each in value.items()}
    return [_clean(each) for each in value] if isinstance(value, list | tuple) else value


def _subtitle(comparison: Comparison) -> str:
    experiment = next((run.experiment for run in comparison.runs if run.experiment), {})
    seeds, rounds = {run.seed for run in comparison.runs}, max(run.rounds for run in comparison.runs)
    parts = [_several(len(comparison.arms), "method"), _several(len(seeds), "seed"), _several(rounds, "round")]
    clients = next((run.partition["clients"] for run in comparison.runs if run.partition), experiment.get("partition", {}).get("clients"))
    if clients:
        cohort = experiment.get("cohort")
        parts.append(_several(clients, "client") + (f", {cohort} a round" if cohort else ""))
    sources = " + ".join(source.get("name", "?") for source in experiment.get("data", {}).get("source", []))
    partition = experiment.get("partition", {}).get("name", "")
    return " · ".join(part for part in [*parts, sources, f"partition {partition}" if partition else ""] if part)


def _several(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _thinned(comparison: Comparison, axes: Sequence[Axis]) -> str:
    most = max((len(curve) for run in comparison.runs for each in run.curves.values() for curve in each.values()), default=0)
    if most <= POINTS:
        return ""
    drawn = max(len(axis.rounds) for axis in axes)
    return f"Curves are thinned: {drawn} of {most:,} measured rounds are drawn, evenly spaced. Tables and targets use every round."


def _curves(comparison: Comparison, axes: Sequence[Axis], protocol: str, metric: str) -> list[dict[str, Any] | None]:
    found = [curve_of(arm, protocol, metric, axis) for arm, axis in zip(comparison.arms, axes, strict=True)]
    return [None if curve is None else {key: _shorter(values) for key, values in asdict(curve).items()} for curve in found]


def _shorter(values: Any) -> Any:
    """Six digits are more than a screen shows."""
    return [_shorter(value) for value in values] if isinstance(values, list) else values and round(values, 6)


def _scores(comparison: Comparison, protocol: str, metric: str) -> dict[str, Any]:
    """Last, best and mean of the last five, over seeds."""
    rows = []
    lasts = {arm.label: last for arm in comparison.arms if (last := last_of(arm, protocol, metric)) is not None}
    best = (min if metric == "loss" else max)(last.mean for last in lasts.values())
    for arm in comparison.arms:
        if arm.label in lasts:
            curves = [
                list(dict(sorted(run.curves[protocol][metric].items())).values()) for run in arm.runs if metric in run.curves[protocol]
            ]
            top = spread((min if metric == "loss" else max)(curve) for curve in curves)
            tail = spread(mean(curve[-RUNNING:]) for curve in curves)
            shown = points(lasts[arm.label], metric, best=lasts[arm.label].mean == best)
            rows.append([arm.label, shown, points(top, metric), points(tail, metric), len(curves)])
    pairs = [[name, f"{name} sd"] for name in ("last", "best", "mean of last five")]
    return table(["method", "last", "best", f"mean of last {RUNNING}", "seeds"], rows, [["method"], *pairs, ["seeds"]])


def _targets(comparison: Comparison, protocol: str) -> dict[str, Any]:
    """Target -> rule -> bars and a table."""
    wanted = sorted({t for run in comparison.runs for t in run.experiment.get("evaluation", {}).get("targets", ())})
    return {percent(t): {rule: _target(comparison, protocol, t, running) for rule, running in RULES.items()} for t in wanted}


def _target(comparison: Comparison, protocol: str, target: float, running: bool) -> dict[str, Any]:
    found = [targets_of(arm, protocol, target, running) for arm in comparison.arms]
    columns = ["method", "rounds", "sent, up and down", "seconds", "seeds that got there"]
    expand = [["method"], ["rounds", "rounds sd"], ["bytes"], ["seconds"], ["reached", "seeds"]]
    rows = [_target_row(arm, each) for arm, each in zip(comparison.arms, found, strict=True) if each is not None]
    bars = [None if each is None else {what: _mean(each.of(what)) for what in ("rounds", "bytes", "seconds")} for each in found]
    reached = [None if each is None else [len(each.of("rounds")), len(each.rounds)] for each in found]
    return {"bars": bars, "reached": reached, "table": table(columns, rows, expand)}


def _target_row(arm: Arm, target: Target) -> list[Any]:
    reached = Cell(f"{len(target.of('rounds'))} of {len(target.rounds)}", (len(target.of("rounds")), len(target.rounds)))
    rounds = spread(target.of("rounds"))
    if rounds is None:
        return [arm.label, Cell("not reached", ("", "")), Cell("–", ("",)), Cell("–", ("",)), reached]
    text = f"{rounds.mean:,.4g}" + ("" if rounds.deviation is None else f" ± {rounds.deviation:.1f}")
    cell = Cell(text, (rounds.mean, "" if rounds.deviation is None else rounds.deviation))
    return [arm.label, cell, bytes_cell(mean(target.of("bytes"))), seconds_cell(mean(target.of("seconds"))), reached]


def _mean(values: Sequence[float]) -> float | None:
    return mean(values) if values else None


def _clients(comparison: Comparison) -> dict[str, Any]:
    """Protocol -> each client's last measurement, its quantiles and the worst clients."""
    protocols = dict.fromkeys(p for run in comparison.runs for p, found in run.clients.items() if "accuracy" in found)
    return {protocol: _clients_under(comparison, protocol) for protocol in protocols}


def _clients_under(comparison: Comparison, protocol: str) -> dict[str, Any]:
    dots, rows, worst, cut = [], [], [], ""
    for arm in comparison.arms:
        found = [(seen.value, run, client, seen) for run in arm.runs for client, seen in _of_clients(run, protocol).items()]
        found.sort(key=lambda each: (each[0], each[1].seed, each[2]))
        step = max(1, math.ceil(len(found) / DOTS))
        cut = cut if step == 1 else f"One in {step} clients is drawn; tables use all."
        dots.append([[round(value, 6), run.seed, client] for value, run, client, _ in found[::step]])
        if found:
            rows.append([arm.label, *_quantiles([each[0] for each in found]), len(found)])
            worst += [_worst_row(arm, *each[1:]) for each in found[:WORST]]
    names = ["method", "worst", "worst tenth", "median", "mean", "best", "clients"]
    summary = table(
        names, rows, note="Each client counts once for each seed, as it was last measured. Worst tenth: a tenth of clients are below."
    )
    listed = table(["method", "seed", "client", "accuracy", "in round", "holds"], worst, note=f"The {WORST} worst of each method.")
    return {"dots": dots, "cut": cut, "summary": summary, "worst": listed}


def _of_clients(run: Run, protocol: str) -> dict[int, Seen]:
    return run.clients.get(protocol, {}).get("accuracy", {})


def _quantiles(values: Sequence[float]) -> list[Cell]:
    tenth = quantiles(values, n=10, method="inclusive")[0] if len(values) > 1 else values[0]
    return [share(value) for value in (values[0], tenth, median(values), mean(values), values[-1])]


def _worst_row(arm: Arm, run: Run, client: int, seen: Seen) -> list[Any]:
    return [arm.label, run.seed, client, share(seen.value), seen.round, _holds(run, client)]


def _holds(run: Run, client: int) -> str:
    """What a client holds, in a few words."""
    partition = run.partition
    if partition is None or client >= len(partition["counts"]):
        return ""
    held = {label: samples for label, samples in enumerate(partition["counts"][client]) if samples}
    domain = f"{partition['domains'][partition['domain_of'][client]]}, " if partition.get("domain_of") else ""
    if len(held) <= 3:
        return f"{domain}{sum(held.values())} samples of {'class' if len(held) == 1 else 'classes'} {', '.join(map(str, held))}"
    return f"{domain}{sum(held.values())} samples of {len(held)} classes"


def _partitions(comparison: Comparison) -> list[dict[str, Any]]:
    """One for each seed, or only one where all are alike."""
    found: dict[str, dict[str, Any]] = {}
    for run in comparison.runs:
        if run.partition is not None:
            key = json.dumps(run.partition["counts"])
            found.setdefault(key, {"seeds": [], **{k: v for k, v in run.partition.items() if k != "event"}})["seeds"].append(run.seed)
    return [_partition(each) for each in found.values()]


def _partition(found: dict[str, Any]) -> dict[str, Any]:
    listed = len(found["counts"])
    note = f"The first {listed} of {found['clients']:,} clients are shown." if listed < found["clients"] else ""
    rows = [[client, *counts, sum(counts)] for client, counts in enumerate(found["counts"])]
    found["table"] = table(["client", *(f"class {label}" for label in range(found["classes"])), "samples"], rows)
    return found | {"seeds": sorted(set(found["seeds"])), "cut": note}


def _traffic(comparison: Comparison) -> dict[str, Any]:
    """Bytes by kind and direction, a run on average."""
    found = [kinds_of(arm) for arm in comparison.arms]
    kinds = kinds_by_size(found)
    rows = []
    for arm, each in zip(comparison.arms, found, strict=True):
        for (kind, direction), sent in sorted(each.items(), key=lambda item: -item[1].payload):
            rounds = max(1, round(mean(run.rounds for run in arm.runs)))
            a_round = Cell("–", ("",)) if kind == "setup" else bytes_cell(sent.payload / rounds)
            rows.append([arm.label, kind, direction, bytes_cell(sent.payload), bytes_cell(sent.framed), a_round])
    columns = ["method", "content", "direction", "payload", "as framed", "a round"]
    expand = [["method"], ["content"], ["direction"], ["payload bytes"], ["framed bytes"], ["payload bytes a round"]]
    bars = {way: [[each[kind, way].payload if (kind, way) in each else 0 for each in found] for kind in kinds] for way in ("up", "down")}
    return {"kinds": kinds, "bars": bars, "table": table(columns, rows, expand, "A run, on average over seeds.")}


def _new_clients(comparison: Comparison) -> dict[str, Any] | None:
    """Accuracy of clients that join at the end, by epochs of their own training."""
    curves, rows = [], []
    for arm in comparison.arms:
        found = [event for run in arm.runs for event in run.new_clients]
        columns = list(zip(*(event["accuracy"] for event in found), strict=False))
        curves.append(
            {"mean": [mean(c) for c in columns], "low": [min(c) for c in columns], "high": [max(c) for c in columns]} if found else None
        )
        for run in arm.runs:
            for event in run.new_clients:
                start, plateau = share(event["accuracy"][0]), share(event["plateau"])
                rows.append([arm.label, run.seed, event["client"], start, plateau, event["epochs_to_plateau"]])
    columns_shown = ["method", "seed", "client", "on arrival", "plateau", "epochs to plateau"]
    return {"curves": curves, "table": table(columns_shown, rows)} if rows else None


def _rejected(comparison: Comparison) -> dict[str, Any]:
    """Replies that were dropped, clients that failed, and runs that were stopped and resumed."""
    found = [(arm, run, event) for arm in comparison.arms for run in arm.runs for event in run.rejected]
    counts = [sum(len(run.rejected) for run in arm.runs) for arm in comparison.arms]
    rows = [[arm.label, run.seed, event["round"], event["client"], event["task"], _reason(event)] for arm, run, event in found[:REJECTIONS]]
    why = Counter((arm.label, _reason(event)) for arm, _, event in found)
    listed = [[label, times, reason] for (label, reason), times in why.most_common(20)]
    note = f"The first {REJECTIONS} of {len(found):,}." if len(found) > REJECTIONS else ""
    stops = [f"{run.folder.name} was stopped and resumed after round {event['round']}." for run in comparison.runs for event in run.resumes]
    return {
        "counts": counts,
        "stops": stops,
        "reasons": table(["method", "times", "reason"], listed),
        "table": table(["method", "seed", "round", "client", "task", "reason"], rows, note=note),
    }


def _reason(event: Event) -> str:
    """The first line, without the client, task and round that have columns of their own.

    >>> _reason({"reason": "client 3, task 'train', round 2: RuntimeError: full\\n  at line 1"})
    'RuntimeError: full'
    """
    return re.sub(r"^client \d+, task '[^']*', round \d+: ", "", str(event["reason"]).split("\n")[0])


def _seconds(comparison: Comparison) -> dict[str, Any]:
    """Where the time of a run went, on average."""
    found = [seconds_of(arm) for arm in comparison.arms]
    places = [place for place in dict.fromkeys(place for each in found for place in each) if place not in ("total", "work")]
    rows = []
    for arm, each in zip(comparison.arms, found, strict=True):
        rounds = max(1, round(mean(run.rounds for run in arm.runs)))
        cells = [seconds_cell(each.get(place, 0.0)) for place in places]
        rows.append(
            [
                arm.label,
                seconds_cell(each["total"]),
                *cells,
                seconds_cell(each["work"]),
                Cell(f"{each['total'] / rounds:.3g} s", (each["total"] / rounds,)),
            ]
        )
    columns = ["method", "total", *(PLACES.get(place, place) for place in places), "work of clients", "a round"]
    bars = [[each.get(place, 0.0) for each in found] for place in places]
    note = "A run, on average over seeds. The work of clients is the sum over workers, so it can exceed the wait for them."
    return {"places": [PLACES.get(place, place) for place in places], "bars": bars, "table": table(columns, rows, note=note)}


PLACES = {"clients": "waiting for clients", "evaluation": "evaluation", "server": "server and ledger"}


def _runs(comparison: Comparison) -> dict[str, Any]:
    rows = []
    for arm in comparison.arms:
        for run in arm.runs:
            planned = run.experiment.get("rounds")
            done = Cell(f"{run.rounds} of {planned}" if planned else str(run.rounds), (run.rounds,))
            state = "finished" if run.ended else "unfinished"
            sent = bytes_cell(run.total("up") + run.total("down"))
            rows.append(
                [
                    arm.label,
                    run.seed,
                    done,
                    state,
                    sent,
                    seconds_cell(sum(run.seconds.values())),
                    run.start.get("digest", "")[:12],
                    run.folder.name,
                ]
            )
    return table(["method", "seed", "rounds", "state", "sent", "seconds", "digest", "folder"], rows)


def _settings(comparison: Comparison) -> dict[str, Any]:
    """Every key of the resolved experiment: once where all runs agree, else for each arm."""
    tables = {arm.label: flatten(arm.runs[0].experiment) for arm in comparison.arms}
    rows = []
    for key in dict.fromkeys(key for each in tables.values() for key in each):
        if key != "seed":
            values = {label: json.dumps(each[key]) for label, each in tables.items() if key in each}
            alike = len(set(values.values())) == 1 and len(values) == len(tables)
            rows += [[key, "all", next(iter(values.values()))]] if alike else [[key, label, value] for label, value in values.items()]
    return table(["key", "method", "value"], rows)


def _versions(comparison: Comparison) -> dict[str, Any]:
    found: dict[tuple[str, str], int] = Counter((k, str(v)) for run in comparison.runs for k, v in run.start.get("versions", {}).items())
    return table(["package", "version", "runs"], [[name, version, runs] for (name, version), runs in found.items()])
