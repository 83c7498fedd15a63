"""Tables as the page shows them (text) and as a spreadsheet wants them (CSV with all digits)."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from coterie.results.report.numbers import Spread
from coterie.results.tables import amount

__all__ = ["Cell", "bytes_cell", "is_share", "number", "percent", "points", "seconds_cell", "share", "table"]


@dataclass(frozen=True)
class Cell:
    """What is shown, and the plain values behind it."""

    text: str
    values: tuple[Any, ...]
    best: bool = False


def table(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], expand: Sequence[Sequence[str]] | None = None, note: str = ""
) -> dict[str, Any]:
    """A table for the page.

    Args:
        columns: headings as shown.
        rows: cells, or plain values.
        expand: for each column the headings of its plain values, where they differ from what is shown.
        note: a sentence below it.

    >>> table(["method", "sent"], [["fedavg", bytes_cell(8000)]], expand=[["method"], ["bytes"]])["csv"]
    'method,bytes\\nfedavg,8000\\n'
    """
    cells = [[cell if isinstance(cell, Cell) else Cell(str(cell), (cell,)) for cell in row] for row in rows]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([heading for headings in expand for heading in headings] if expand else columns)
    writer.writerows([value for cell in row for value in cell.values] for row in cells)
    shown = [[[cell.text, 1] if cell.best else cell.text for cell in row] for row in cells]
    numeric = [bool(rows) and all(_is_number(row[at]) for row in cells) for at in range(len(columns))]
    return {"columns": list(columns), "rows": shown, "numeric": numeric, "csv": out.getvalue(), "note": note}


def _is_number(cell: Cell) -> bool:
    return all(value == "" or (isinstance(value, int | float) and not isinstance(value, bool)) for value in cell.values)


def is_share(metric: str) -> bool:
    """Whether a metric is a share, to be shown in per cent."""
    return metric in ("accuracy", "top5")


def number(value: float, metric: str = "accuracy") -> str:
    """A value of a metric as people read it.

    >>> number(0.8939), number(0.25, "loss")
    ('89.39%', '0.2500')
    """
    return f"{100 * value:.2f}%" if is_share(metric) else f"{value:.4f}"


def percent(target: float) -> str:
    """A target.

    >>> percent(0.9)
    '90%'
    """
    return f"{100 * target:.4g}%"


def points(spread: Spread | None, metric: str, best: bool = False) -> Cell:
    """Mean and deviation over seeds."""
    if spread is None:
        return Cell("–", ("", ""))
    text, deviation = number(spread.mean, metric), spread.deviation
    if deviation is not None:
        text += f" ± {100 * deviation:.2f}" if is_share(metric) else f" ± {deviation:.4f}"
    return Cell(text, (spread.mean, "" if deviation is None else deviation), best)


def share(value: float, metric: str = "accuracy") -> Cell:
    """One value of a metric."""
    return Cell(number(value, metric), (value,))


def bytes_cell(size: float) -> Cell:
    """Bytes."""
    return Cell(amount(size), (round(size),))


def seconds_cell(seconds: float) -> Cell:
    """Seconds."""
    return Cell(f"{seconds:,.1f} s", (seconds,))
