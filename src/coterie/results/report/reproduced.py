"""A reproduced table in figures and on a page: every seed beside the paper's number, and what each verdict rests on."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, ScalarFormatter

from coterie.results.report.document import document, drawn, listed, tabled
from coterie.results.statistics import ACCURACIES
from coterie.results.tables import Sheet
from coterie.style import colour, styled

__all__ = ["figure_of", "intervals_of", "study_page"]

LABEL = 48
"""Letters in a line of what a comparison is called."""
CLAIMED = 0.08
"""How dark it is where a claim says that an effect lies."""
SPREAD = 1.5
"""How far a logarithmic axis goes beside the only value that is on it."""
ACROSS = 5
"""Panels beside each other, at most."""
WIDTH = 7.0
"""Inches: two columns of most papers."""
SIGNS = {"shown": ("o", 2, "shown"), "shown contrary": ("s", 1, "contrary"), "not shown": ("D", 4, "unshown")}
"""Outcome -> marker, colour and class of its mark."""
AXES = {"points": "difference in points", "value": "difference", "ratio": "ratio"}
"""What effects are measured in."""


def figure_of(result: Mapping[str, Any]) -> Figure:
    """The figure of what `result.json` holds; tables that were not run are left out.

    >>> cell = {"table": "t", "row": "ours", "column": "c", "measure": "last", "paper": 0.9, "values": [0.5, 0.7], "rounds": 3}
    >>> len(figure_of({"cells": [cell]}).axes)
    1
    """
    cells = [cell for cell in result["cells"] if cell["values"]]
    tables = list(dict.fromkeys(cell["table"] for cell in cells))
    lines = [(table, some) for table in tables for some in _lines([cell for cell in cells if cell["table"] == table])]
    rows = {table: list(dict.fromkeys(cell["row"] for cell in cells if cell["table"] == table)) for table in tables}
    heights = [0.8 + 0.2 * len(rows[table]) for table, _ in lines] or [1.0]
    across = max((len(columns) for _, columns in lines), default=1)
    figure = Figure(figsize=(WIDTH, sum(heights) + 0.6), layout="constrained")
    grid = figure.subplots(max(1, len(lines)), across, squeeze=False, gridspec_kw={"height_ratios": heights})
    for panels, (table, columns) in zip(grid, lines, strict=False):
        for panel, column in zip(panels, columns, strict=False):
            mine = [cell for cell in cells if (cell["table"], cell["column"]) == (table, column)]
            _panel(panel, mine, rows[table], named=panel is panels[0])
            above = f"{table if panel is panels[0] else ''}\n" if len(tables) > 1 else ""
            panel.set_title(above + fill(column, 80 // across), loc="left")
        for panel in panels[len(columns) :]:
            panel.remove()
    figure.legend(handles=_legend(cells), loc="outside lower center", ncols=4, title=_verdicts(result.get("claims", ())), title_fontsize=6)
    return figure


def _lines(cells: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """The columns of a table, so many beside each other that their panels can be read."""
    columns = list(dict.fromkeys(cell["column"] for cell in cells))
    return [columns[at : at + ACROSS] for at in range(0, len(columns), ACROSS)]


def intervals_of(result: Mapping[str, Any]) -> Figure | None:
    """Every comparison's effect with the interval of its verdict, over where the claim says that it lies; None where there is none.

    >>> found = {"comparison": "a > b", "outcome": "shown", "middle": 0.02, "low": 0.01, "high": 0.03}
    >>> found |= {"unit": "points", "claimed": [0, None]}
    >>> figure = intervals_of({"cells": [], "claims": [{"number": "004.1", "comparisons": [found]}]})
    >>> [axes.get_xlabel() for axes in figure.axes]
    ['difference in points']
    >>> intervals_of({"cells": [], "claims": []}) is None
    True
    """
    found = [(claim["number"] or "ours", each) for claim in result["claims"] for each in claim["comparisons"] if each["low"] is not None]
    units = [unit for unit in AXES if any(each["unit"] == unit for _, each in found)]
    if not units:
        return None
    counts = [sum(each["unit"] == unit for _, each in found) for unit in units]
    names = {id(each): fill(f"{number}  {in_short(each['comparison'])}", LABEL) for number, each in found}
    row = 0.1 + 0.13 * max(name.count("\n") + 1 for name in names.values())
    figure = Figure(figsize=(WIDTH, 0.9 + row * len(found) + 0.5 * len(units)), layout="constrained")
    panels = figure.subplots(len(units), 1, squeeze=False, gridspec_kw={"height_ratios": [1 + count for count in counts]})
    for panel, unit in zip(panels[:, 0], units, strict=True):
        mine = [each for _, each in found if each["unit"] == unit]
        for y, each in enumerate(mine):
            _interval(panel, y, each)
        panel.axvline(1 if unit == "ratio" else 0, color="#000000", linewidth=0.8)
        if unit == "ratio":
            _logarithmic(panel)
        for y, each in enumerate(mine):
            _region(panel, y, each)
        panel.set_ylim(len(mine) - 0.5, -0.5)
        panel.set_yticks(range(len(mine)), [names[id(each)] for each in mine])
        panel.set_xlabel(AXES[unit])
    outcomes = dict.fromkeys(each["outcome"] for _, each in found)
    handles = [
        Line2D([], [], marker=SIGNS[name][0], color=colour(SIGNS[name][1]), label=name, markersize=4) for name in SIGNS if name in outcomes
    ]
    claimed = Patch(color="#000000", alpha=CLAIMED, linewidth=0, label="where the claim says that it lies")
    figure.legend(handles=[*handles, claimed], loc="outside lower center", ncols=4)
    return figure


def in_short(comparison: str) -> str:
    """What is compared with what, said once where it is the same on both sides.

    >>> in_short("MNIST, IID / FML / last accuracy > MNIST, IID / alone / last accuracy")
    'MNIST, IID, last accuracy: FML > alone'
    >>> in_short("MNIST / noisy / last accuracy ~ MNIST / clean / last accuracy within 0.01")
    'MNIST, last accuracy: noisy ~ clean within 0.01'
    >>> in_short("MNIST / FML / last accuracy > 0.9")
    'MNIST / FML / last accuracy > 0.9'
    """
    found = re.fullmatch(r"(.+?) ([<>~]) (.+?)( within .+)?", comparison)
    sides = [side.split(" / ") for side in found.group(1, 3)] if found else []
    if found is None or len(sides[0]) != len(sides[1]):  # with a number, or with several cells
        return comparison
    same = [one for one, two in zip(*sides, strict=True) if one == two]
    left, right = (" / ".join(part for part in side if part not in same) for side in sides)
    return f"{', '.join(same)}{': ' if same else ''}{left} {found.group(2)} {right}{found.group(4) or ''}"


def study_page(
    title: str, lead: Sequence[str], result: Mapping[str, Any], sheets: Sequence[Sheet], lists: Mapping[str, Sequence[str]]
) -> str:
    """A study on one page: claims and verdicts first, then intervals, then tables and seeds, then how it was done."""
    claims = "".join(
        f'<li class="{SIGNS[claim["verdict"]][2] if claim["verdict"] in SIGNS else ""}">{html.escape(claim["number"] or "ours")} '
        f'<span class="verdict">{html.escape(claim["verdict"])}</span>: {html.escape(claim["claim"])}'
        f"<small>{html.escape(claim['detail'])}</small></li>"
        for claim in result["claims"]
    )
    with styled():
        intervals = intervals_of(result)
        figures = [
            "<section><h2>What the verdicts rest on</h2>" + drawn(intervals, "effects and their intervals") + "</section>"
            if intervals
            else "",
            "<section><h2>Every seed</h2>" + drawn(figure_of(result), "every seed beside the paper's numbers") + "</section>",
        ]
    parts = [
        *(f"<p>{html.escape(line)}</p>" for line in lead if line),
        f'<section><h2>Claims and verdicts</h2><ul class="claims">{claims}</ul></section>',
        *figures,
        "<section><h2>Tables</h2>" + "".join(map(tabled, sheets)) + "</section>",
        *(listed(name, lines) for name, lines in lists.items()),
    ]
    return document(title, "".join(parts))


def _interval(panel: Axes, y: int, found: Mapping[str, Any]) -> None:
    """One effect and how far it may be off; an end that is open has an arrow."""
    scale = 100 if found["unit"] == "points" else 1
    marker, tint, _ = SIGNS[found["outcome"]]
    low, middle = scale * found["low"], found["middle"]
    high = scale * found["high"] if found["high"] is not None else None
    panel.plot([low, high if high is not None else low], [y, y], color=colour(tint), linewidth=1.6)
    if high is None:
        panel.plot([low], [y], ">", color=colour(tint), markersize=5)
    if middle is not None:
        panel.plot([scale * middle], [y], marker, color=colour(tint), markersize=4)


def _region(panel: Axes, y: int, found: Mapping[str, Any]) -> None:
    """Where the claim says that the effect lies, as far as the panel reaches."""
    scale, (left, right) = 100 if found["unit"] == "points" else 1, panel.get_xlim()
    low, high = (edge if end is None else scale * end for end, edge in zip(found["claimed"], (left, right), strict=True))
    panel.broken_barh([(low, max(high - low, 0))], (y - 0.42, 0.84), color="#000000", alpha=CLAIMED, linewidth=0, zorder=0)
    panel.set_xlim(min(left, low), max(right, high))


def _panel(panel: Axes, cells: Sequence[Mapping[str, Any]], rows: Sequence[str], *, named: bool) -> None:
    """One row a line; what did not get there in time stands, hollow, where it stopped."""
    share = bool(cells) and cells[0]["measure"] in ACCURACIES
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
        _logarithmic(panel)
    panel.set_ylim(len(rows) - 0.5, -0.5)
    panel.set_yticks(range(len(rows)), rows if named else [""] * len(rows))
    counted = {"rounds": "rounds", "new client epochs": "epochs"}
    panel.set_xlabel("%" if share else counted.get(cells[0]["measure"], "") if cells else "")


def _logarithmic(panel: Axes) -> None:
    """A logarithmic axis with whole numbers to read off, also where it spans less than a power of ten, or nothing at all."""
    panel.set_xscale("log")
    low, high = panel.dataLim.intervalx
    if low == high:
        panel.set_xlim(low / SPREAD, high * SPREAD)
    few = LogLocator(subs=(1, 2, 5) if high > 10 * low else (1, 2, 3, 5, 7))
    panel.xaxis.set_major_locator(few if high > 3 * low else MaxNLocator(4, integer=True))
    panel.xaxis.set_minor_locator(NullLocator())
    panel.xaxis.set_major_formatter(ScalarFormatter())


def _verdicts(claims: Sequence[Mapping[str, Any]]) -> str:
    """The verdicts, a few words for each of the paper's claims; parts of one claim that come to the same are told once."""
    return fill("; ".join(dict.fromkeys(f"{claim['number']} {claim['verdict']}" for claim in claims if claim["number"])), 120)


def _legend(cells: Sequence[Mapping[str, Any]]) -> list[Line2D]:
    def mark(marker: str, index: int, label: str, **more: Any) -> Line2D:
        return Line2D([], [], linestyle="", marker=marker, color=colour(index), label=label, **more)

    found = [mark("o", 0, "a seed", alpha=0.45, markersize=3.5), mark("|", 0, "mean", markersize=9, markeredgewidth=1.8)]
    if any(value is None for cell in cells for value in cell["values"]):
        found.append(mark(">", 0, "not there when it stopped", markerfacecolor="none", markersize=4))
    if any(cell["paper"] is not None for cell in cells):
        found.append(mark("D", 1, "paper", markerfacecolor="none", markersize=4))
    return found
