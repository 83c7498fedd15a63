"""The one maker of tables: a Sheet is drawn for a terminal, as Markdown, LaTeX and CSV, and as data for the page.

In a terminal nothing is cut off: a table too wide for it is drawn in parts, each with its first columns. Nothing here needs torch.
"""

from __future__ import annotations

import csv
import html
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from coterie.results import escaping
from coterie.results.statistics import Estimate

__all__ = [
    "Cell",
    "Sheet",
    "amount",
    "as_csv",
    "as_html",
    "as_latex",
    "as_markdown",
    "as_page",
    "bytes_cell",
    "estimate_cell",
    "estimated",
    "is_share",
    "number",
    "number_cell",
    "points",
    "seconds_cell",
    "share",
    "simple",
]

PROSE = 26
"""Letters from which on a cell is text that may be broken between words."""
GAP = 2
"""Columns of a terminal between those of a table."""


@dataclass(frozen=True)
class Cell:
    """What is shown, whether it is the best of its kind, and the plain values behind it: its text where none are given."""

    text: str
    best: bool = False
    values: tuple[Any, ...] = ()

    @property
    def plain(self) -> tuple[Any, ...]:
        """For a spreadsheet."""
        return self.values or (self.text,)


@dataclass(frozen=True)
class Sheet:
    """A table before it is drawn. Cells that are no `Cell` are plain values.

    >>> sheet = Sheet("ours", ("method", "accuracy"), (("fedavg", Cell("97.1%", best=True)),))
    >>> print(as_markdown([sheet]), end="")
    **ours**
    <BLANKLINE>
    | method | accuracy |
    |---|---|
    | fedavg | **97.1%** |
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    note: str = ""
    plain: Sequence[Sequence[str]] = ()
    """For each column the headings of its plain values, where they differ from what is shown."""
    keys: int = 1
    """Leading columns that say what a row is about."""

    @property
    def cells(self) -> list[list[Cell]]:
        """Every row's."""
        return [[cell if isinstance(cell, Cell) else Cell(str(cell), values=(cell,)) for cell in row] for row in self.rows]

    def numeric(self, at: int) -> bool:
        """Whether a column holds numbers."""
        return bool(self.rows) and all(map(_is_number, (row[at] for row in self.cells)))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        shown = _visible(self)
        if shown.title:
            yield Text(shown.title, style="bold")
        for part in _parts(shown, options.max_width):
            yield _drawn(shown, part)
        yield Text(f"{shown.note}\n" if shown.note else "", style="dim")


def _visible(sheet: Sheet) -> Sheet:
    """The same for a terminal, which would obey some of what a name may hold."""
    rows = [[replace(cell, text=escaping.plain(cell.text)) for cell in row] for row in sheet.cells]
    columns = tuple(map(escaping.plain, sheet.columns))
    return replace(sheet, title=escaping.plain(sheet.title), columns=columns, rows=rows, note=escaping.plain(sheet.note))


def _is_number(cell: Cell) -> bool:
    return all(value in ("", "-") or (isinstance(value, int | float) and not isinstance(value, bool)) for value in cell.plain)


def _parts(sheet: Sheet, width: int) -> Iterator[dict[int, int]]:
    """The columns of each part and how wide they are, so that every part fits; one that never fits is folded."""
    least = [_least(sheet, at) for at in range(len(sheet.columns))]
    keys = list(range(sheet.keys))
    part: list[int] = []
    for at in range(sheet.keys, len(sheet.columns)):
        if part and sum(least[each] + GAP for each in [*keys, *part, at]) - GAP > width:
            yield _widths(sheet, [*keys, *part], least, width)
            part = []
        part.append(at)
    yield _widths(sheet, [*keys, *part], least, width)


def _column(sheet: Sheet, at: int) -> list[str]:
    return [line for row in sheet.cells for line in row[at].text.split("\n")]


def _least(sheet: Sheet, at: int) -> int:
    """A cell is not broken, text of a sentence is, between words; so is a heading."""
    words = [*sheet.columns[at].split(), *(word for line in _column(sheet, at) for word in line.split())]
    whole = max((len(line) for line in _column(sheet, at)), default=0)
    return max([whole if whole <= PROSE else PROSE, *map(len, words)])


def _widths(sheet: Sheet, columns: Sequence[int], least: Sequence[int], width: int) -> dict[int, int]:
    """What is left over goes to sentences, then to headings."""
    left = width - sum(least[at] + GAP for at in columns) + GAP
    widths = {at: least[at] for at in columns}
    wants = [(at, max(map(len, _column(sheet, at)), default=0)) for at in columns] + [(at, len(sheet.columns[at])) for at in columns]
    for at, want in wants:
        more = max(0, min(left, want - widths[at]))
        widths[at] += more
        left -= more
    if left < 0:
        widest = max(columns, key=lambda at: widths[at])
        widths[widest] = max(4, widths[widest] + left)
    return widths


def _drawn(sheet: Sheet, widths: Mapping[int, int]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0))
    for at, width in widths.items():
        justify: Any = "right" if sheet.numeric(at) else "left"
        table.add_column(Text(sheet.columns[at]), width=width, justify=justify, overflow="fold")
    for row in sheet.cells:
        table.add_row(*(Text(row[at].text, style="bold" if row[at].best else "") for at in widths))
    return table


def simple(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], caption: str = "") -> Sheet:
    """A plain table."""
    return Sheet(title, tuple(columns), [tuple(map(str, row)) for row in rows], caption)


def amount(size: float) -> str:
    """Bytes as people read them.

    >>> amount(999), amount(6_653_480)
    ('999 B', '6.65 MB')
    """
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            break
        size /= 1000
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.2f} {unit}"


def is_share(metric: str) -> bool:
    """Whether a metric is a share, to be shown in per cent.

    >>> is_share("accuracy"), is_share("loss")
    (True, False)
    """
    return metric in ("accuracy", "top5", "worst", "worst_tenth", "spread")


def number(value: float, metric: str = "accuracy") -> str:
    """A value of a metric as people read it.

    >>> number(0.8939), number(0.25, "loss")
    ('89.39%', '0.2500')
    """
    return f"{100 * value:.2f}%" if is_share(metric) else f"{value:.4f}"


def points(value: float, metric: str = "accuracy") -> str:
    """A spread, or a difference without its sign: percentage points for shares.

    >>> points(0.0123), points(0.0123, "loss")
    ('1.23', '0.0123')
    """
    return f"{100 * value:.2f}" if is_share(metric) else f"{value:.4f}"


def estimated(found: Estimate | None, metric: str = "accuracy") -> str:
    """A mean, with its spread over seeds.

    >>> estimated(Estimate(0.971, 0.0012, 3)), estimated(Estimate(0.971, None, 1)), estimated(None)
    ('97.10% ± 0.12', '97.10%', '-')
    """
    if found is None:
        return "-"
    return number(found.mean, metric) + ("" if found.spread is None else f" ± {points(found.spread, metric)}")


def share(target: float) -> str:
    """A target.

    >>> share(0.9)
    '90%'
    """
    return f"{100 * target:.4g}%"


def estimate_cell(found: Estimate | None, metric: str = "accuracy", best: bool = False, more: str = "") -> Cell:
    """Mean and spread over seeds, and something after them."""
    values = ("", "") if found is None else (found.mean, "" if found.spread is None else found.spread)
    return Cell(estimated(found, metric) + more, best, values)


def number_cell(value: float | None, metric: str = "accuracy") -> Cell:
    """One value of a metric; None, as summaries have it, is what is no number."""
    return Cell("-", values=("",)) if value is None else Cell(number(value, metric), values=(value,))


def bytes_cell(size: float, best: bool = False) -> Cell:
    """Bytes."""
    return Cell(amount(size), best, (round(size),))


def seconds_cell(seconds: float | Estimate) -> Cell:
    """Seconds, of one run or over seeds: how busy a machine was is in their spread."""
    if not isinstance(seconds, Estimate):
        return Cell(f"{seconds:,.1f} s", values=(seconds,))
    return Cell(f"{seconds.mean:,.1f}" + ("" if seconds.spread is None else f" ± {seconds.spread:.1f}") + " s", values=(seconds.mean,))


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as CSV, a column for every key that any of them has.

    >>> as_csv([{"a": 1}, {"a": 2, "b": None}])
    'a,b\\n1,\\n2,\\n'
    """
    columns = list(dict.fromkeys(key for row in rows for key in row))
    return _csv(columns, [[row.get(key) for key in columns] for row in rows])


def _csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows(map(escaping.cell, row) for row in (columns, *rows))
    return text.getvalue()


def as_page(sheet: Sheet) -> dict[str, Any]:
    """A table as the page shows it (text, the best marked) and as a spreadsheet wants it (CSV with all digits).

    >>> as_page(Sheet("", ("method", "sent"), [("fedavg", bytes_cell(8000))], plain=[["method"], ["bytes"]]))["csv"]
    'method,bytes\\nfedavg,8000\\n'
    """
    cells = sheet.cells
    headings = [heading for headings in sheet.plain for heading in headings] if sheet.plain else sheet.columns
    return {
        "columns": list(sheet.columns),
        "rows": [[[cell.text, 1] if cell.best else cell.text for cell in row] for row in cells],
        "numeric": [sheet.numeric(at) for at in range(len(sheet.columns))],
        "csv": _csv(headings, ([value for cell in row for value in cell.plain] for row in cells)),
        "note": sheet.note,
    }


def as_html(sheet: Sheet) -> str:
    """A table as a notebook shows it.

    >>> as_html(Sheet("x < y", ("method",), [(Cell("fedavg", best=True),)]))
    '<table><caption>x &lt; y</caption><tr><th>method</th></tr><tr><td><b>fedavg</b></td></tr></table>'
    """
    head = "".join(f"<th>{html.escape(column)}</th>" for column in sheet.columns)
    body = "".join("<tr>" + "".join(f"<td>{_bold(cell, '<b>{}</b>', _unbroken)}</td>" for cell in row) + "</tr>" for row in sheet.cells)
    note = f"<p>{html.escape(sheet.note)}</p>" if sheet.note else ""
    title = f"<caption>{html.escape(sheet.title)}</caption>" if sheet.title else ""
    return f"<table>{title}<tr>{head}</tr>{body}</table>{note}"


def _unbroken(text: str) -> str:
    """As HTML; a mean and its spread stay on one line."""
    return html.escape(text).replace(" ± ", "&nbsp;±&nbsp;")


def as_markdown(sheets: Sequence[Sheet]) -> str:
    """Tables as GitHub writes them."""

    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(cells) + " |\n"

    def drawn(sheet: Sheet) -> str:
        body = "".join(line(_bold(cell, "**{}**", escaping.markdown) for cell in row) for row in sheet.cells)
        rule = "|" + "---|" * len(sheet.columns) + "\n"
        head, note = line(map(escaping.markdown, sheet.columns)), escaping.markdown(sheet.note)
        return f"**{escaping.markdown(sheet.title)}**\n\n{head}{rule}{body}" + (f"\n{note}\n" if note else "")

    return "\n".join(map(drawn, sheets))


def as_latex(sheets: Sequence[Sheet]) -> str:
    """Tables for a paper, with booktabs."""

    def line(cells: Iterable[str]) -> str:
        return "  " + " & ".join(cells) + r" \\" + "\n"

    def drawn(sheet: Sheet) -> str:
        body = "".join(line(_bold(cell, r"\textbf{{{}}}", escaping.latex) for cell in row) for row in sheet.cells)
        head = line(map(escaping.latex, sheet.columns))
        form = "".join("r" if sheet.numeric(at) else "l" for at in range(len(sheet.columns)))
        note = f"% {escaping.latex(sheet.note)}\n" if sheet.note else ""
        whole = f"\\begin{{tabular}}{{{form}}}\n  \\toprule\n{head}  \\midrule\n{body}  \\bottomrule\n\\end{{tabular}}\n"
        return f"% {escaping.latex(sheet.title)}\n{note}{whole}"

    return "\n".join(map(drawn, sheets))


def _bold(cell: Cell, form: str, escaped: Callable[[str], str]) -> str:
    text = escaped(cell.text)
    return form.format(text) if cell.best else text
