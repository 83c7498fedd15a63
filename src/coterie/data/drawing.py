"""An image of a partition: which client holds how much of which class, and where the clients come from.

Up to forty clients are columns in their order, bubbles for each class and sizes above; more clients are a heat map, ordered by the
classes they hold, with a histogram of their sizes beside it. Colours are Okabe and Ito's for domains, and one hue from light to dark for
amounts: both are safe for colour-blind eyes and on paper.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator, NullLocator
from numpy.typing import NDArray

from coterie.data.pool import Partition, Pool, Rows, count
from coterie.errors import UserError
from coterie.style import FORMATS, PER_CENT, THOUSANDS, colour, styled, write_figure

__all__ = ["count", "draw_partition", "save"]

FEW = 40
"""Clients up to which each has a column of its own, and classes up to which each has a row of bubbles."""
BINS = 16
COLUMNS = 1200
"""Columns of a heat map; more clients than that are averaged in neighbours."""
GREY = "#555555"

Shares = NDArray[np.float64]


def draw_partition(pool: Pool, partition: Partition, title: str = "") -> Figure:
    """Clients and classes of a partition, and domains where clients differ by them.

    >>> from coterie.data.partitions import IID
    >>> pool = Pool(np.zeros((40, 1, 2, 2), np.uint8), np.arange(40) % 4, train=30, classes=4)
    >>> [axes.get_ylabel() for axes in draw_partition(pool, IID(clients=3).partition(pool, 0), "digits").axes]
    ['samples', 'class']
    """
    table = count(pool, partition)
    figure = (_few if partition.clients <= FEW else _many)(table, partition.domain_of)
    if partition.domain_of is not None:
        marks = [Patch(color=colour(d), label=domain) for d, domain in enumerate(pool.domains)]
        figure.legend(handles=marks, loc="outside lower center", ncols=min(4, len(marks)), fontsize=7, frameon=False, handlelength=1)
    if pool.note:
        wrapped = textwrap.fill(pool.note, int(24 * (figure.get_figwidth() - 1.3)))  # 24 letters an inch at this size
        figure.axes[0].set_title(wrapped, fontsize=6, color=GREY, loc="left", pad=10)
    figure.suptitle(title, fontsize=10, x=0.01, ha="left")
    return figure


def save(figure: Figure, path: str | Path) -> Path:
    """Write the image as PNG, SVG or PDF, as the name says; the same image gives the same bytes.

    >>> save(Figure(), "partition.bmp")
    Traceback (most recent call last):
    ...
    coterie.errors.UserError: image 'partition.bmp' has no format we write: expected a name that ends in .pdf, .png or .svg
    """
    path = Path(path)
    if path.suffix.lower().removeprefix(".") not in FORMATS:
        raise UserError(f"image '{path}' has no format we write: expected a name that ends in .pdf, .png or .svg")
    path.parent.mkdir(parents=True, exist_ok=True)
    with styled():
        return write_figure(figure, path)


def _few(table: Rows, domain_of: Rows | None) -> Figure:
    clients, classes = table.shape
    tall = min(4.5, 0.23 * max(classes, 6))
    figure = Figure(figsize=(min(7.2, 1.9 + 0.27 * max(clients, 9)), 1.9 + tall), layout="constrained")
    above, main = figure.subplots(2, 1, sharex=True, height_ratios=[0.9, tall])
    colours = [colour(d) for d in ([0] * clients if domain_of is None else domain_of.tolist())]
    above.bar(np.arange(clients), table.sum(axis=1), width=0.62 * min(1.0, clients / 9), color=colours)
    _size_axis(above, table.sum(axis=1))
    if classes <= FEW:
        _bubbles(main, table, colours, diameter=min(13.5, 0.9 * 72 * (figure.get_figwidth() - 1.5) / clients))
    else:
        _heat(main, table / np.maximum(table.sum(axis=1, keepdims=True), 1), (-0.5, clients - 0.5))
    _class_axis(main, classes)
    main.set_xlim(-0.6, clients - 0.4)
    main.set_xticks(range(0, clients, 1 if clients <= 20 else 5))
    main.set_xlabel("client", fontsize=8)
    figure.align_ylabels([above, main])
    return figure


def _many(table: Rows, domain_of: Rows | None) -> Figure:
    clients, classes = table.shape
    figure = Figure(figsize=(7.2, 1.5 + min(4.0, max(1.4, 0.16 * classes))), layout="constrained")
    main, beside = figure.subplots(1, 2, width_ratios=[4.2, 1], gridspec_kw={"wspace": 0.06})
    order = _order(table, domain_of)
    _heat(main, _neighbours(table[order] / np.maximum(table.sum(axis=1, keepdims=True)[order], 1)), (0, clients))
    _class_axis(main, classes)
    main.set_xlabel(f"{clients:,} clients, ordered by {'' if domain_of is None else 'domain and '}largest class", fontsize=8)
    main.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    main.xaxis.set_major_formatter(THOUSANDS)
    _histogram(beside, table.sum(axis=1), domain_of)
    if domain_of is not None:
        strip = main.inset_axes((0, 1.02, 1, 0.04))
        strip.imshow([[to_rgb(colour(d)) for d in domain_of[order].tolist()]], aspect="auto", interpolation="nearest")
        strip.set_axis_off()
    return figure


def _bubbles(axes: Axes, table: Rows, colours: list[str], diameter: float) -> None:
    """Bubbles whose area is the number of samples, the largest of the given diameter in points."""
    client, kind = np.nonzero(table)
    most = int(table.max())
    axes.scatter(client, kind, s=table[client, kind] * diameter**2 / most, c=[colours[c] for c in client], linewidths=0)
    axes.grid(color="#e6e6e6", linewidth=0.5)
    axes.set_axisbelow(True)
    marks = [
        Line2D([], [], ls="", marker="o", mew=0, color=GREY, ms=diameter * (size / most) ** 0.5, label=f"{size:,}")
        for size in sorted({_round(most * part) for part in (1.0, 0.4, 0.1)} - {0})
    ]
    legend = axes.legend(handles=marks, title="samples", loc="center left", bbox_to_anchor=(1, 0.5), fontsize=7, labelspacing=1.1)
    legend.get_title().set_fontsize(7)
    legend.get_frame().set_visible(False)


def _heat(axes: Axes, share: Shares, across: tuple[float, float]) -> None:
    """A column for each client, a row for each class; the darkest half per cent of the fields share a colour."""
    top = float(np.quantile(share, 0.995)) or 1.0
    extent = (*across, share.shape[1] - 0.5, -0.5)
    image = axes.imshow(share.T, aspect="auto", cmap="Blues", vmin=0, vmax=top, extent=extent, interpolation="nearest")
    extend = "max" if share.max() > top * 1.001 else "neither"
    bar = axes.figure.colorbar(image, ax=axes, pad=0.015, aspect=30, extend=extend, format=PER_CENT)
    bar.set_label("share of the client's samples", fontsize=7)
    bar.ax.tick_params(labelsize=7, length=2)
    bar.ax.yaxis.set_major_locator(MaxNLocator(5))


def _order(table: Rows, domain_of: Rows | None) -> Rows:
    """By domain, then by the class a client has most of, then by how much of it."""
    largest = table.argmax(axis=1)
    share = table.max(axis=1) / np.maximum(table.sum(axis=1), 1)
    return np.lexsort((-share, largest, np.zeros_like(largest) if domain_of is None else domain_of))


def _neighbours(share: Shares) -> Shares:
    """At most `COLUMNS` rows, each the mean of neighbouring ones."""
    if len(share) <= COLUMNS:
        return share
    starts = np.linspace(0, len(share), COLUMNS, endpoint=False).astype(np.int64)
    return np.asarray(np.add.reduceat(share, starts) / np.diff(starts, append=len(share))[:, None], np.float64)


def _histogram(axes: Axes, sizes: Rows, domain_of: Rows | None) -> None:
    """How many clients have how many samples, on a log scale where sizes differ much."""
    groups = [sizes] if domain_of is None else [sizes[domain_of == d] for d in range(int(domain_of.max()) + 1)]
    wide = _differ(sizes)
    axes.hist(groups, bins=_bins(sizes, wide), stacked=True, color=[colour(d) for d in range(len(groups))])
    if wide:
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
    elif sizes.min() == sizes.max():
        axes.set_xlim(sizes[0] - 3, sizes[0] + 3)
        axes.set_xticks([int(sizes[0])])
    else:
        axes.xaxis.set_major_locator(MaxNLocator(3, integer=True))
    axes.xaxis.set_major_formatter(THOUSANDS)
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.yaxis.set_major_formatter(THOUSANDS)
    axes.set_xlabel("samples per client", fontsize=8)
    axes.set_ylabel("clients", fontsize=8)
    _plain(axes)


def _bins(sizes: Rows, wide: bool) -> list[float]:
    """Edges between whole numbers, so that every bin can be hit.

    >>> _bins(np.array([3, 3, 5]), wide=False)
    [2.5, 3.5, 4.5, 5.5]
    """
    low, high = int(sizes.min()), int(sizes.max())
    if wide:
        edges = np.unique(np.rint(np.geomspace(max(low, 1), high + 1, BINS)))
    else:
        step = max(1, -(-(high - low + 1) // BINS))
        edges = np.arange(low, high + step + 1, step)
    return [float(edge) - 0.5 for edge in edges]


def _size_axis(axes: Axes, sizes: Rows) -> None:
    """Numbers on the bars where there is room; an axis, on a log scale where sizes differ much, where there is not."""
    label = "samples"
    if len(sizes) <= 20:
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        for client, size in enumerate(sizes):
            axes.annotate(f"{size:,}", (client, size), (0, 1.5), textcoords="offset points", ha="center", fontsize=5.5, color=GREY)
    elif _differ(sizes):
        axes.set_yscale("log")
        axes.set_ylim(bottom=max(0.5, int(sizes.min()) / 3))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(THOUSANDS)
        label = "samples (log)"
    axes.set_ylabel(label, fontsize=8)
    _plain(axes)
    axes.tick_params(axis="x", length=0, labelbottom=False)


def _differ(sizes: Rows) -> bool:
    return bool(sizes.max() > 20 * max(1, int(sizes.min())))


def _class_axis(axes: Axes, classes: int) -> None:
    axes.set_ylim(classes - 0.5, -0.5)
    axes.set_yticks(range(0, classes, 1 if classes <= 20 else max(5, round(classes / 50) * 5)))
    axes.set_ylabel("class", fontsize=8)
    _plain(axes)


def _plain(axes: Axes) -> None:
    axes.tick_params(labelsize=7, length=2, width=0.6)
    axes.spines[:].set_linewidth(0.6)
    axes.spines[["top", "right"]].set_visible(False)


def _round(number: float) -> int:
    """The number to one significant digit, downwards.

    >>> _round(1250), _round(47.3), _round(0.4)
    (1000, 40, 0)
    """
    power = int(10 ** max(0, len(str(int(number))) - 1))
    return int(number) // power * power
