"""How figures look: one column wide, thin lines, Okabe and Ito's colours with dashes and markers, the same bytes every time.

Figures of results and of partitions both have this style. Nothing here needs torch.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

__all__ = ["FORMATS", "HATCHES", "PER_CENT", "THOUSANDS", "as_svg", "blank", "colour", "line_of", "save_figure", "styled", "write_figure"]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#B8A800", "#000000")
"""Okabe and Ito's, the yellow darkened: it does not show on paper."""
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5)), (0, (8, 2)))
MARKERS = ("o", "s", "D", "^", "X", "P", "*", "v")
HATCHES = ("", "////", "xxxx", "....", "\\\\\\\\", "----", "++++", "||||")
FORMATS = ("pdf", "svg", "png")
WIDTH = 3.5
"""Inches: a column of most papers."""
RULES: dict[Any, Any] = {
    "font.family": ["DejaVu Sans"],
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#e6e8ea",
    "grid.linewidth": 0.6,
    "hatch.linewidth": 0.5,
    "legend.frameon": False,
    "legend.fontsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "pdf.fonttype": 42,
    "svg.hashsalt": "coterie",
}
PER_CENT = FuncFormatter(lambda value, _: f"{100 * value:.4g}%")
THOUSANDS = FuncFormatter(lambda value, _: f"{value:,.0f}")
UNDATED: dict[str, dict[str, Any]] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {"Software": None}}
"""What would differ from one writing to the next."""


@contextmanager
def styled() -> Iterator[None]:
    """Figures made and saved inside look alike."""
    with matplotlib.rc_context(RULES):
        yield


def blank(height: float = 2.4) -> tuple[Figure, Axes]:
    """An empty figure of one column.

    >>> float(blank()[0].get_figwidth())
    3.5
    """
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, figure.subplots()


def colour(index: int) -> str:
    """The colour of an arm, a kind, a place or a domain."""
    return COLOURS[index % len(COLOURS)]


def line_of(index: int, points: int) -> dict[str, Any]:
    """How an arm's line is drawn: colour, dashes and about eight markers.

    >>> line_of(1, 40)["marker"]
    's'
    """
    dashes, marker = DASHES[index % len(DASHES)], MARKERS[index % len(MARKERS)]
    return {
        "color": colour(index),
        "linestyle": dashes,
        "marker": marker,
        "markersize": 3.2,
        "markevery": max(1, points // 8),
        "linewidth": 1.3,
    }


def save_figure(figure: Figure, folder: Path, name: str, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write a figure in every format; the same figure gives the same bytes."""
    paths = [folder / f"{name}.{form}" for form in formats]
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # laid out once, not once for each format
    return [write_figure(figure, path) for path in paths]


def as_svg(figure: Figure) -> str:
    """A figure as it stands inside a page.

    >>> as_svg(blank()[0])[:4]
    '<svg'
    """
    into = io.StringIO()
    figure.savefig(into, format="svg", metadata=UNDATED["svg"])
    return into.getvalue()[into.getvalue().index("<svg") :]


def write_figure(figure: Figure, path: Path) -> Path:
    """Write a figure in the format that its name ends in, one of `FORMATS`."""
    form = path.suffix.removeprefix(".").lower()
    figure.savefig(path, format=form, dpi=300, metadata=UNDATED[form])
    return path
