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
from matplotlib.ticker import MaxNLocator

from coterie.results.report.exhibits import exhibits_of, images_of
from coterie.results.report.gather import Comparison
from coterie.results.report.numbers import axis_of, curve_of, kinds_by_size, kinds_of, protocols_of, targets_of
from coterie.results.report.style import BYTES, HATCHES, PER_CENT, blank, colour, line_of, save, styled
from coterie.results.report.tabulate import percent

__all__ = ["write_figures"]

AXES = {"rounds": "round", "bytes": "sent, up and down", "seconds": "seconds"}


def write_figures(comparison: Comparison, folder: Path) -> list[Path]:
    """Every figure that the runs have numbers for, in every format."""
    folder.mkdir(parents=True, exist_ok=True)
    with styled():
        return [path for name, figure in _figures(comparison) for path in save(figure, folder, name)]


def _figures(comparison: Comparison) -> Iterator[tuple[str, Figure]]:
    for protocol in protocols_of(comparison):
        for x in AXES:
            yield f"accuracy-{_slug(protocol)}-by-{x}", _curves(comparison, protocol, x)
        for target in sorted({t for run in comparison.runs for t in run.experiment.get("evaluation", {}).get("targets", ())}):
            yield f"rounds-to-{_slug(percent(target))}-{_slug(protocol)}", _rounds_to(comparison, protocol, target)
    yield "communication", _communication(comparison)
    for protocol in dict.fromkeys(p for run in comparison.runs for p, found in run.clients.items() if "accuracy" in found):
        yield f"clients-{_slug(protocol)}", _clients(comparison, protocol)
    yield from _exhibits(comparison)


def _slug(text: str) -> str:
    """A piece of a file's name.

    >>> _slug("Fusion weights, 90%")
    'fusion-weights-90'
    """
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")


def _curves(comparison: Comparison, protocol: str, x: str) -> Figure:
    figure, axes = blank()
    level = []
    for index, arm in enumerate(comparison.arms):
        axis = axis_of(arm)
        curve = curve_of(arm, protocol, "accuracy", axis)
        if curve is None:
            continue
        kept = [at for at, value in enumerate(curve.mean) if value is not None]
        at: Sequence[float] = [getattr(axis, x)[k] for k in kept]
        middle, low, high = ([values[k] for k in kept] for values in (curve.mean, curve.low, curve.high))
        if x == "bytes" and at[0] == at[-1]:
            level.append((index, arm.label, middle[-1]))
            continue
        axes.plot(at, middle, label=arm.label, **line_of(index, len(at)))  # type: ignore[arg-type]
        if len(curve.seeds) > 1:
            axes.fill_between(at, low, high, color=colour(index), alpha=0.15, linewidth=0)  # type: ignore[arg-type]
    for index, label, value in level:  # sends nothing in its rounds: its last value
        axes.axhline(value or 0.0, color=colour(index), linestyle=":", linewidth=1.1, label=f"{label} (sends nothing)")
    axes.set(xlabel=AXES[x], ylabel=f"accuracy, {protocol}")
    axes.yaxis.set_major_formatter(PER_CENT)
    if x == "bytes":
        axes.xaxis.set_major_formatter(BYTES)
        axes.xaxis.set_major_locator(MaxNLocator(5))
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="best")
    return figure


def _rounds_to(comparison: Comparison, protocol: str, target: float) -> Figure:
    found = [(index, arm.label, targets_of(arm, protocol, target, running=False)) for index, arm in enumerate(comparison.arms)]
    kept = [(index, label, each) for index, label, each in found if each is not None]
    figure, axes = blank(0.6 + 0.3 * len(kept))
    for row, (index, _, each) in enumerate(kept):
        rounds = each.of("rounds")
        middle = float(np.mean(rounds)) if rounds else 0.0
        spread = float(np.std(rounds, ddof=1)) if len(rounds) > 1 else 0.0
        axes.barh(
            row,
            middle,
            xerr=spread or None,
            height=0.6,
            color=colour(index),
            hatch=HATCHES[index % 8],
            edgecolor="white",
            error_kw={"lw": 0.8},
        )
        text = (
            f"{middle:.4g}"
            if len(rounds) == len(each.rounds)
            else f"{len(rounds)} of {len(each.rounds)} seeds"
            if rounds
            else "not reached"
        )
        axes.annotate(text, (middle + spread, row), xytext=(3, 0), textcoords="offset points", va="center", fontsize=7)
    _rows(axes, [label for _, label, _ in kept])
    axes.margins(x=0.2)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.set_xlabel(f"rounds to {percent(target)}, {protocol}")
    return figure


def _communication(comparison: Comparison) -> Figure:
    found = [kinds_of(arm) for arm in comparison.arms]
    kinds = kinds_by_size(found)
    figure, axes = blank(0.9 + 0.3 * len(found))
    left = np.zeros(len(found))
    for index, kind in enumerate(kinds):
        sent = np.array([sum(amount.payload for (k, _), amount in each.items() if k == kind) for each in found], dtype=np.float64)
        axes.barh(
            np.arange(len(found)), sent, left=left, height=0.6, label=kind, color=colour(index), hatch=HATCHES[index % 8], edgecolor="white"
        )
        left += sent
    _rows(axes, [arm.label for arm in comparison.arms])
    axes.xaxis.set_major_formatter(BYTES)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.set_xlabel("sent in a run, up and down")
    if kinds:
        figure.legend(loc="outside upper center", ncols=min(4, len(kinds)))
    return figure


def _clients(comparison: Comparison, protocol: str) -> Figure:
    found = [[s.value for run in arm.runs for s in run.clients.get(protocol, {}).get("accuracy", {}).values()] for arm in comparison.arms]
    kept = [(index, values) for index, values in enumerate(found) if values]
    figure, axes = blank(0.6 + 0.4 * len(kept))
    for row, (index, values) in enumerate(kept):
        line = {"color": colour(index), "linewidth": 1.0}
        axes.boxplot(
            values,
            positions=[row],
            orientation="horizontal",
            widths=0.5,
            showfliers=False,
            boxprops=line,
            whiskerprops=line,
            capprops=line,
            medianprops=line,
        )
        jitter = np.random.default_rng(index).uniform(-0.17, 0.17, len(values))
        axes.plot(
            values, row + jitter, line_of(index, 1)["marker"], color=colour(index), markersize=2.2, alpha=0.45, markeredgewidth=0, zorder=3
        )
    _rows(axes, [comparison.arms[index].label for index, _ in kept])
    axes.xaxis.set_major_formatter(PER_CENT)
    axes.set_xlabel(f"accuracy of each client, {protocol}")
    return figure


def _rows(axes: Axes, labels: Sequence[str]) -> None:
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)


def _exhibits(comparison: Comparison) -> Iterator[tuple[str, Figure]]:
    """One of each kind and arm: the first run's, the server's or else the first client's."""
    chosen: dict[tuple[int, str], dict[str, Any]] = {}
    for shown in exhibits_of(comparison):
        chosen.setdefault((shown["arm"], shown["title"]), shown)
    for shown in chosen.values():
        label = comparison.arms[shown["arm"]].label
        figure, axes = blank(3.0 if shown["draw"] == "heatmap" else 2.4)
        DRAWN[shown["draw"]](figure, axes, shown)
        axes.set_title(fill(f"{shown['title']}, {label}, {shown['who']}", 48), loc="left")
        yield f"exhibit-{_slug(label)}-{_slug(shown['title'])}", figure


def _draw_lines(_: Figure, axes: Axes, shown: Mapping[str, Any]) -> None:
    for index, values in enumerate(shown["values"]):
        axes.plot(shown["rounds"], values, label=str(index), **line_of(index, len(values)))
    axes.set(xlabel=shown["x"] or "round", ylabel=shown["y"] or "value")
    if 1 < len(shown["values"]) <= 12:
        axes.legend(ncols=3)


def _draw_bars(_: Figure, axes: Axes, shown: Mapping[str, Any]) -> None:
    axes.bar(range(len(shown["values"])), shown["values"], color=colour(0))
    axes.set(xlabel=shown["x"] or "entry", ylabel=shown["y"] or "value")
    axes.grid(axis="x", visible=False)


def _draw_heatmap(figure: Figure, axes: Axes, shown: Mapping[str, Any]) -> None:
    matrix = np.array(shown["values"], dtype=np.float64)
    most = float(np.nanmax(np.abs(matrix))) or 1.0
    signed = bool(np.nanmin(matrix) < 0)
    drawn = axes.imshow(
        matrix, cmap="RdBu" if signed else "Blues", vmin=-most if signed else None, vmax=most if signed else None, aspect="auto"
    )
    figure.colorbar(drawn, ax=axes, shrink=0.8)
    axes.set(xlabel=shown["x"] or "column", ylabel=shown["y"] or "row")
    axes.grid(visible=False)
    if "columns" in shown:
        axes.set_xticks(range(len(shown["columns"])), shown["columns"])
        axes.set_yticks(range(len(shown["rows"])), shown["rows"])
        for (row, column), value in np.ndenumerate(matrix):
            axes.text(column, row, f"{value:.1f}", ha="center", va="center", color="white" if value > 0.6 * most else "black", fontsize=7)


def _draw_images(_: Figure, axes: Axes, shown: Mapping[str, Any]) -> None:
    axes.imshow(images_of(shown["values"]), cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    axes.set_axis_off()


DRAWN: dict[str, Callable[[Figure, Axes, Mapping[str, Any]], None]] = {
    "lines": _draw_lines,
    "bars": _draw_bars,
    "heatmap": _draw_heatmap,
    "images": _draw_images,
}
