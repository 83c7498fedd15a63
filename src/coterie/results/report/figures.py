"""Figures for papers, from the same numbers as the page: PDF, SVG and PNG of every one."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from coterie.results.comparison import Reach, measured, reached
from coterie.results.gather import Report
from coterie.results.report.clients import clients_under, values_of
from coterie.results.report.costs import kinds_by_size, kinds_of
from coterie.results.report.curves import METRICS, Curve, axis_of, curve_of, loss_of, metrics_of
from coterie.results.report.logs import images_of, logs_of
from coterie.results.statistics import box
from coterie.results.tables import amount, share
from coterie.style import HATCHES, PER_CENT, blank, colour, line_of, save_figure, styled

__all__ = ["BYTES", "write_figures"]

BYTES = FuncFormatter(lambda value, _: amount(value).replace(".00", ""))
AXES = {"rounds": "round", "bytes": "sent, up and down", "seconds": "seconds"}


def write_figures(report: Report, folder: Path) -> list[Path]:
    """Every figure that the runs have numbers for, in every format."""
    folder.mkdir(parents=True, exist_ok=True)
    with styled():
        return [path for name, figure in _figures(report) for path in save_figure(figure, folder, name)]


def _figures(report: Report) -> Iterator[tuple[str, Figure]]:
    for protocol in measured(report.arms):
        for x in AXES:
            yield f"accuracy-{_slug(protocol)}-by-{x}", _curves(report, protocol, "accuracy", x)
        if "worst" in metrics_of(report, protocol):
            yield f"worst-client-{_slug(protocol)}-by-rounds", _curves(report, protocol, "worst", "rounds")
        for target in sorted({target for tally in report.tallies for target in tally.targets}):
            yield f"rounds-to-{_slug(share(target))}-{_slug(protocol)}", _rounds_to(report, protocol, target)
    yield "communication", _communication(report)
    if any(tally.losses() or tally.losses("server") for tally in report.tallies):
        yield "training-loss", _losses(report)
    for protocol in clients_under(report):
        yield f"clients-{_slug(protocol)}", _clients(report, protocol)
    yield from _logs(report)


def _slug(text: str) -> str:
    """A piece of a file's name.

    >>> _slug("Fusion weights, 90%")
    'fusion-weights-90'
    """
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")


def _curves(report: Report, protocol: str, metric: str, x: str) -> Figure:
    figure, axes = blank()
    level = []
    for index, arm in enumerate(report.arms):
        axis = axis_of(arm)
        curve = curve_of(arm, protocol, metric, axis)
        if curve is None:
            continue
        at = getattr(axis, x)
        if x == "bytes" and at[0] == at[-1]:
            level.append((index, arm.label, [value for value in curve.mean if value is not None][-1]))
        else:
            _line(axes, index, arm.label, at, curve)
    for index, label, value in level:  # sends nothing in its rounds: its last value
        axes.axhline(value, color=colour(index), linestyle=":", linewidth=1.1, label=f"{label} (sends nothing)")
    axes.set(xlabel=AXES[x], ylabel=f"{METRICS[metric]},\n{protocol}" if len(METRICS[metric]) > 20 else f"{METRICS[metric]}, {protocol}")
    axes.yaxis.set_major_formatter(PER_CENT)
    if x == "bytes":
        axes.xaxis.set_major_formatter(BYTES)
        axes.xaxis.set_major_locator(MaxNLocator(5))
    if x == "rounds":
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="best")
    return figure


def _line(axes: Axes, index: int, label: str, x: Sequence[float], curve: Curve) -> None:
    """A mean over seeds, and a band from the lowest to the highest of them."""
    kept = [at for at, value in enumerate(curve.mean) if value is not None]
    at = [x[each] for each in kept]
    middle, low, high = ([values[each] for each in kept] for values in (curve.mean, curve.low, curve.high))
    axes.plot(at, middle, label=label, **line_of(index, len(at)))  # type: ignore[arg-type]
    if len(curve.seeds) > 1:
        axes.fill_between(at, low, high, color=colour(index), alpha=0.15, linewidth=0)  # type: ignore[arg-type]


def _losses(report: Report) -> Figure:
    figure, axes = blank()
    for index, arm in enumerate(report.arms):
        found = loss_of(arm)
        if found is not None:
            _line(axes, index, arm.label, found[0], found[1])
    axes.set(xlabel="round", ylabel="training loss")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.legend(loc="best")
    return figure


def _rounds_to(report: Report, protocol: str, target: float) -> Figure:
    found = [(index, reach) for index, arm in enumerate(report.arms) if (reach := reached(arm, protocol, target)).found]
    figure, axes = blank(0.6 + 0.3 * len(found))
    for row, (index, reach) in enumerate(found):
        rounds = reach.took("round")
        middle, spread = (rounds.mean, rounds.spread or 0.0) if rounds else (0.0, 0.0)
        look: dict[str, Any] = {"color": colour(index), "hatch": HATCHES[index % 8], "edgecolor": "white", "error_kw": {"lw": 0.8}}
        axes.barh(row, middle, xerr=spread or None, height=0.6, **look)
        axes.annotate(_reach(reach), (middle + spread, row), xytext=(3, 0), textcoords="offset points", va="center", fontsize=7)
    _rows(axes, [reach.label for _, reach in found])
    axes.margins(x=0.2)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.set_xlabel(f"rounds to {share(target)}, {protocol}")
    return figure


def _reach(reach: Reach) -> str:
    """What stands beside a bar."""
    rounds = reach.took("round")
    if rounds is None:
        return "not reached"
    return f"{rounds.mean:.4g}" if reach.everywhere else f"{rounds.seeds} of {len(reach.found)} seeds"


def _communication(report: Report) -> Figure:
    found = [kinds_of(arm) for arm in report.arms]
    kinds = kinds_by_size(found)
    figure, axes = blank(0.9 + 0.3 * len(found))
    left = np.zeros(len(found))
    for index, kind in enumerate(kinds):
        sent = np.array([sum(amount.payload for (k, _), amount in each.items() if k == kind) for each in found], dtype=np.float64)
        look: dict[str, Any] = {"color": colour(index), "hatch": HATCHES[index % 8], "edgecolor": "white"}
        axes.barh(np.arange(len(found)), sent, left=left, height=0.6, label=kind, **look)
        left += sent
    _rows(axes, [arm.label for arm in report.arms])
    axes.xaxis.set_major_formatter(BYTES)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.set_xlabel("sent in a run, up and down")
    if kinds:
        figure.legend(loc="outside upper center", ncols=min(4, len(kinds)))
    return figure


def _clients(report: Report, protocol: str) -> Figure:
    found = [values_of(arm, protocol) for arm in report.arms]
    kept = [(index, values) for index, values in enumerate(found) if values]
    figure, axes = blank(0.6 + 0.4 * len(kept))
    for row, (index, values) in enumerate(kept):
        line = {"color": colour(index), "linewidth": 1.0}
        looks: dict[str, Any] = {f"{part}props": line for part in ("box", "whisker", "cap", "median")}
        five = box(values)
        drawn = {"whislo": five.lowest, "q1": five.first, "med": five.median, "q3": five.third, "whishi": five.highest}
        axes.bxp([drawn], positions=[row], orientation="horizontal", widths=0.5, showfliers=False, **looks)
        jitter = np.random.default_rng(index).uniform(-0.17, 0.17, len(values))
        marks: dict[str, Any] = {"color": colour(index), "markersize": 2.2, "alpha": 0.45, "markeredgewidth": 0, "zorder": 3}
        axes.plot(values, row + jitter, line_of(index, 1)["marker"], **marks)
    _rows(axes, [report.arms[index].label for index, _ in kept])
    axes.xaxis.set_major_formatter(PER_CENT)
    axes.set_xlabel(f"accuracy of each client, {protocol}")
    return figure


def _rows(axes: Axes, labels: Sequence[str]) -> None:
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)


def _logs(report: Report) -> Iterator[tuple[str, Figure]]:
    """One of each name and arm: the first run's, the server's or else the first client's."""
    chosen: dict[tuple[int, str], dict[str, Any]] = {}
    for shown in logs_of(report):
        chosen.setdefault((shown["arm"], shown["name"]), shown)
    for shown in chosen.values():
        label = report.arms[shown["arm"]].label
        figure, axes = blank(3.0 if shown["draw"] == "heatmap" else 2.4)
        DRAWN[shown["draw"]](figure, axes, shown)
        axes.set_title(fill(f"{shown['title']}, {label}, {shown['who']}", 48), loc="left")
        yield f"log-{_slug(label)}-{_slug(shown['name'])}", figure


def _draw_lines(_: Figure, axes: Axes, shown: Mapping[str, Any]) -> None:
    for index, (name, values) in enumerate(zip(shown["names"], shown["values"], strict=True)):
        axes.plot(shown["rounds"], values, label=name, **line_of(index, len(values)))
    axes.set(xlabel="round", ylabel=shown["y"] or "value")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    if len(shown["values"]) > 1:
        axes.legend(ncols=1 if len(shown["values"]) <= 4 else 2)


def _draw_heatmap(figure: Figure, axes: Axes, shown: Mapping[str, Any]) -> None:
    matrix = np.array(shown["values"], dtype=np.float64)
    most = float(np.nanmax(np.abs(matrix))) or 1.0
    signed = bool(np.nanmin(matrix) < 0)
    low, high = shown.get("low", -most if signed else None), shown.get("high", most if signed else None)
    drawn = axes.imshow(matrix, cmap="RdBu" if signed else "Blues", vmin=low, vmax=high, aspect="auto")
    if "rows" not in shown:  # else the numbers stand in the cells
        figure.colorbar(drawn, ax=axes, shrink=0.8)
    axes.set(xlabel=shown["x"] or "column", ylabel=shown["y"] or "row")
    axes.grid(visible=False)
    if "rows" in shown:
        axes.set_xticks(range(len(shown["columns"])), shown["columns"])
        axes.set_yticks(range(len(shown["rows"])), shown["rows"])
        for (row, column), value in np.ndenumerate(matrix):
            axes.text(column, row, f"{value:.1f}", ha="center", va="center", color="white" if value > 60 else "black", fontsize=7)
    elif "columns" in shown:
        ticks = np.unique(np.linspace(0, len(shown["columns"]) - 1, 6).round().astype(int)).tolist()
        axes.set_xticks(ticks, [shown["columns"][tick] for tick in ticks])


def _draw_images(_: Figure, axes: Axes, shown: Mapping[str, Any]) -> None:
    axes.imshow(images_of(shown["values"]), cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    axes.set_axis_off()


DRAWN: dict[str, Callable[[Figure, Axes, Mapping[str, Any]], None]] = {
    "lines": _draw_lines,
    "heatmap": _draw_heatmap,
    "images": _draw_images,
}
