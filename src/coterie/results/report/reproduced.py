"""A reproduced table as one figure: every seed, their mean, and the paper's number, a panel for each table and column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter, ScalarFormatter

from coterie.style import colour

__all__ = ["figure_of"]

WIDTH = 7.0
"""Inches: two columns of most papers."""


def figure_of(result: Mapping[str, Any]) -> Figure:
    """The figure of what `result.json` holds; tables that were not run are left out.

    >>> cell = {"table": "t", "row": "ours", "column": "c", "measure": "last", "paper": 0.9, "values": [0.5, 0.7], "rounds": 3}
    >>> len(figure_of({"cells": [cell]}).axes)
    1
    """
    cells = [cell for cell in result["cells"] if cell["values"]]
    tables, columns = (list(dict.fromkeys(cell[key] for cell in cells)) for key in ("table", "column"))
    rows = {table: list(dict.fromkeys(cell["row"] for cell in cells if cell["table"] == table)) for table in tables}
    heights = [0.5 + 0.2 * len(rows[table]) for table in tables] or [1.0]
    figure = Figure(figsize=(WIDTH, sum(heights) + 0.6), layout="constrained")
    grid = figure.subplots(max(1, len(tables)), max(1, len(columns)), squeeze=False, gridspec_kw={"height_ratios": heights})
    for line, table in zip(grid, tables, strict=False):
        for panel, column in zip(line, columns, strict=True):
            mine = [cell for cell in cells if (cell["table"], cell["column"]) == (table, column)]
            _panel(panel, mine, rows[table], named=panel is line[0])
            panel.set_title(fill(f"{table}: {column}" if len(tables) > 1 else column, 80 // len(columns)), loc="left")
    figure.legend(handles=_legend(cells), loc="outside lower center", ncols=4, title=_verdicts(result.get("claims", ())), title_fontsize=6)
    return figure


def _panel(panel: Axes, cells: Sequence[Mapping[str, Any]], rows: Sequence[str], *, named: bool) -> None:
    """One row a line; what did not get there in time stands, hollow, where it stopped."""
    share = bool(cells) and cells[0]["measure"] in ("last", "best", "new client accuracy")
    scale = 100 if share else 1
    for cell in cells:
        y, there = rows.index(cell["row"]), [scale * value for value in cell["values"] if value is not None]
        panel.plot(there, [y] * len(there), "o", color=colour(0), alpha=0.45, markersize=3.5, markeredgewidth=0)
        late = len(cell["values"]) - len(there)
        panel.plot([cell["rounds"]] * late, [y] * late, ">", color=colour(0), markerfacecolor="none", markersize=4)
        if there and not late:
            panel.plot(sum(there) / len(there), y, "|", color=colour(0), markersize=9, markeredgewidth=1.8)
        if cell["paper"] is not None:
            panel.plot(scale * cell["paper"], y, "D", color=colour(1), markerfacecolor="none", markersize=4)
    if cells and cells[0]["measure"] == "rounds":
        panel.set_xscale("log")
        panel.xaxis.set_major_formatter(ScalarFormatter())
        panel.xaxis.set_minor_formatter(NullFormatter())
    panel.set_ylim(len(rows) - 0.5, -0.5)
    panel.set_yticks(range(len(rows)), rows if named else [""] * len(rows))
    panel.set_xlabel("%" if share else "rounds" if cells and cells[0]["measure"] == "rounds" else "epochs")


def _verdicts(claims: Sequence[Mapping[str, Any]]) -> str:
    """The verdicts, a few words for each of the paper's claims."""
    return fill("; ".join(f"{claim['number']} {claim['verdict']}" for claim in claims if claim["number"]), 120)


def _legend(cells: Sequence[Mapping[str, Any]]) -> list[Line2D]:
    def mark(marker: str, index: int, label: str, **more: Any) -> Line2D:
        return Line2D([], [], linestyle="", marker=marker, color=colour(index), label=label, **more)

    found = [mark("o", 0, "a seed", alpha=0.45, markersize=3.5), mark("|", 0, "mean", markersize=9, markeredgewidth=1.8)]
    if any(value is None for cell in cells for value in cell["values"]):
        found.append(mark(">", 0, "not there when it stopped", markerfacecolor="none", markersize=4))
    if any(cell["paper"] is not None for cell in cells):
        found.append(mark("D", 1, "paper", markerfacecolor="none", markersize=4))
    return found
