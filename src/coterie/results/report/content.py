"""Everything the page shows, as one JSON object. All text and all numbers are made in Python; the page only draws and switches."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from coterie.results.comparison import measured
from coterie.results.gather import Report
from coterie.results.report import about, clients, costs, scores
from coterie.results.report.curves import HIDDEN, METRICS, POINTS, Axis, axis_of, curve_of, metrics_of
from coterie.results.report.headline import cards
from coterie.results.report.logs import logs_of

__all__ = ["content"]


def content(report: Report) -> dict[str, Any]:
    """The page's data.

    >>> from pathlib import Path
    >>> from coterie.results.comparison import ArmRuns
    >>> from coterie.results.read import Run
    >>> from coterie.results.tally import Mean, Tally
    >>> tally = Tally({"experiment": {"name": "toy", "method": {"name": "fedavg"}, "rounds": 1}, "seed": 0})
    >>> tally.means["global"]["accuracy"][1] = Mean(1, 0.5)
    >>> page = content(Report("toy", [ArmRuns("fedavg", [Run(Path("r"), tally)])]))
    >>> page["title"], page["scores"]["global"]["accuracy"]["rows"]
    ('toy', [['fedavg', '50.00%', '50.00%', '50.00%', '1']])
    """
    page = {
        "title": report.name,
        "subtitle": about.subtitle(report),
        "facts": about.facts(report),
        "notices": report.notices,
        "arms": [{"label": arm.label, "seeds": [run.tally.seed for run in arm.runs], "bound": arm.bound} for arm in report.arms],
        **_accuracies(report),
        "domains": scores.domains(report),
        "classes": scores.classes(report),
        "clients": clients.clients(report),
        "partitions": clients.partitions(report),
        "new_clients": clients.new_clients(report),
        "traffic": costs.traffic(report),
        "work": costs.work(report),
        "seconds": costs.seconds(report),
        "logs": logs_of(report),
        "rejected": about.rejected(report),
        "runs": about.runs(report),
        "settings": about.settings(report),
        "versions": about.packages(report),
    }
    cleaned: dict[str, Any] = _clean(page)
    return cleaned


def _accuracies(report: Report) -> dict[str, Any]:
    """What is switched together: everything by protocol, and by metric."""
    axes = [axis_of(arm) for arm in report.arms]
    metrics = {protocol: metrics_of(report, protocol) for protocol in measured(report.arms)}
    scored = [protocol for protocol, found in metrics.items() if "accuracy" in found]
    compared = scored if len(report.arms) > 1 else []
    return {
        "thinned": _thinned(report, axes),
        "protocols": {
            p: {"what": scores.what(p), "clients": scores.clients_of(report, p), "metrics": found} for p, found in metrics.items()
        },
        "measures": scores.protocols(report),
        "metrics": METRICS,
        "cards": {p: cards(report, p) for p in metrics},
        "axes": [asdict(axis) for axis in axes],
        "curves": {p: {metric: _curves(report, axes, p, metric) for metric in found} for p, found in metrics.items()},
        "scores": {
            p: {metric: scores.scores(report, p, metric) for metric in found if metric not in HIDDEN} for p, found in metrics.items()
        },
        "differences": {p: scores.differences_under(report, p) for p in compared},
        "targets": {p: scores.targets(report, p) for p in scored},
    }


def _clean(value: Any) -> Any:
    """The same with None for what JSON has no number for."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _clean(each) for key, each in value.items()}
    return [_clean(each) for each in value] if isinstance(value, list | tuple) else value


def _thinned(report: Report, axes: Sequence[Axis]) -> str:
    most = max((len(means) for tally in report.tallies for each in tally.means.values() for means in each.values()), default=0)
    if most <= POINTS:
        return ""
    drawn = max(len(axis.rounds) for axis in axes)
    return f"Curves are thinned: {drawn} of {most:,} measured rounds are drawn, evenly spaced. Tables and targets use every round."


def _curves(report: Report, axes: Sequence[Axis], protocol: str, metric: str) -> list[dict[str, Any] | None]:
    found = [curve_of(arm, protocol, metric, axis) for arm, axis in zip(report.arms, axes, strict=True)]
    return [None if curve is None else {key: _shorter(values) for key, values in asdict(curve).items()} for curve in found]


def _shorter(values: Any) -> Any:
    """Six digits are more than a screen shows."""
    return [_shorter(value) for value in values] if isinstance(values, list) else values and round(values, 6)
