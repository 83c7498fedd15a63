"""Results as tables: for a terminal, and as CSV, Markdown and LaTeX. Nothing here needs torch."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from rich.table import Column, Table
from rich.text import Text

from coterie.results.escaping import cell as csv_cell
from coterie.results.escaping import latex, markdown, plain
from coterie.results.statistics import Contrast, Difference, Estimate, Reach, Run, Standing

__all__ = [
    "Cell",
    "Sheet",
    "amount",
    "as_csv",
    "as_latex",
    "as_markdown",
    "comparison",
    "formatted",
    "outcome",
    "percent",
    "simple",
    "wide",
]


class Cell(NamedTuple):
    """A text, and whether it is the best of its kind."""

    text: str
    best: bool = False


@dataclass(frozen=True)
class Sheet:
    """A table before it is drawn.

    >>> sheet = Sheet("ours", ("method", "accuracy"), ((Cell("fedavg"), Cell("97.1%", best=True)),))
    >>> print(as_markdown([sheet]), end="")
    **ours**
    <BLANKLINE>
    | method | accuracy |
    |---|---|
    | fedavg | **97.1%** |
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""

    def __rich__(self) -> Table:
        return simple(self.title, self.columns, [[_marked(cell) for cell in row] for row in self.rows], caption=self.note)


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


def percent(found: Estimate) -> str:
    """An accuracy, with its spread over seeds.

    >>> percent(Estimate(0.971, 0.0012, 3)), percent(Estimate(0.971, None, 1))
    ('97.10% ± 0.12', '97.10%')
    """
    return f"{100 * found.mean:.2f}%" + ("" if found.spread is None else f" ± {100 * found.spread:.2f}")


def simple(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], caption: str = "") -> Table:
    """A plain table; every text in it is taken as it is, not as markup."""
    captions: dict[str, Any] = {"title": _text(title), "caption": _text(caption) if caption else None}
    table = Table(*(Column(_text(column)) for column in columns), **captions, title_justify="left", caption_justify="left")
    for row in rows:
        table.add_row(*map(_text, row))
    return table


def _text(cell: object) -> Text:
    return cell if isinstance(cell, Text) else Text(plain(cell))


def outcome(title: str, summary: Mapping[str, Any]) -> Table:
    """One run: every protocol's accuracy, and what reaching each target took."""
    targets = list(next(iter(summary["targets"].values()), {}))
    rows = []
    for protocol, metrics in summary["protocols"].items():
        values = [f"{100 * metrics['accuracy'][key]:.2f}%" for key in ("last", "best", "mean_of_last_five")]
        crossings = [_crossed(summary["targets"][protocol][target]["first_crossing"]) for target in targets]
        rows.append([protocol, *values, *crossings])
    return simple(title, ["protocol", "last", "best", "mean of last 5", *(f"rounds to {_share(t)}" for t in targets)], rows)


def comparison(title: str, found: Contrast) -> list[Sheet]:
    """A comparison as up to three tables: where every arm stands, what targets took, differences to the baseline."""
    sheets = [_standings(title, found)]
    if found.reaches:
        sheets.append(_targets(found))
    if found.differences:
        sheets.append(_differences(found))
    return sheets


def _standings(title: str, found: Contrast) -> Sheet:
    protocols = list(dict.fromkeys(protocol for standing in found.standings for protocol in standing.accuracy))
    best = {p: max(standing.accuracy[p].mean for standing in found.standings if p in standing.accuracy) for p in protocols}

    def row(standing: Standing) -> tuple[Cell, ...]:
        accuracies = [standing.accuracy.get(protocol) for protocol in protocols]
        cells = [Cell("-") if a is None else Cell(percent(a), a.mean == best[p]) for p, a in zip(protocols, accuracies, strict=True)]
        traffic = [Cell(amount(size)) for size in (standing.up, standing.down, standing.setup)]
        return (Cell(standing.label), *cells, *traffic, Cell(f"{standing.seconds.mean:.1f}"))

    columns = ("method", *protocols, "sent up", "sent down", "setup", "seconds")
    seeds = max(standing.seconds.seeds for standing in found.standings)
    spread = "one seed" if seeds == 1 else f"mean ± standard deviation over {seeds} seeds"
    return Sheet(title, columns, tuple(map(row, found.standings)), f"last accuracy: {spread}; best in bold")


def _targets(found: Contrast) -> Sheet:
    lowest: dict[tuple[str, str], tuple[float, float]] = {}
    for reach in found.reaches:
        if reach.rounds and reach.bytes:
            rounds, sent = lowest.get((reach.protocol, reach.target), (reach.rounds.mean, reach.bytes.mean))
            lowest[reach.protocol, reach.target] = min(rounds, reach.rounds.mean), min(sent, reach.bytes.mean)

    def row(reach: Reach) -> tuple[Cell, ...]:
        names = (Cell(reach.protocol), Cell(_share(reach.target)), Cell(reach.label))
        if reach.rounds is None or reach.bytes is None:
            words = "not reached" if not reach.reached else f"reached by {reach.reached} of {reach.seeds} seeds"
            return (*names, Cell(words), Cell("-"), Cell("-"), Cell("-"))
        rounds, sent = lowest[reach.protocol, reach.target]
        return (
            *names,
            Cell(_rounds(reach.rounds), reach.rounds.mean == rounds),
            Cell(_times(reach.fewer_rounds)),
            Cell(amount(reach.bytes.mean), reach.bytes.mean == sent),
            Cell(_times(reach.fewer_bytes)),
        )

    columns = ("protocol", "target", "method", "rounds", "fewer rounds", "bytes", "fewer bytes")
    ordered = sorted(found.reaches, key=lambda reach: (reach.protocol, float(reach.target)))
    note = f"first crossing; bytes with setup; 'fewer': how many times less than {found.baseline}"
    return Sheet("rounds and bytes to targets", columns, tuple(map(row, ordered)), note)


def _differences(found: Contrast) -> Sheet:
    columns = ("method", "protocol", "difference", "95% interval", "")
    rows = tuple(tuple(map(Cell, _difference(each))) for each in found.differences)
    note = "percentage points, paired by seed; Student's t, each comparison by itself"
    return Sheet(f"differences to {found.baseline}", columns, rows, note)


def _difference(each: Difference) -> tuple[str, ...]:
    if each.low is None or each.high is None:
        bounds, words = "-", "one seed: no interval"
    else:
        bounds = f"{100 * each.low:+.2f} to {100 * each.high:+.2f}"
        words = ("higher" if each.mean > 0 else "lower") if each.shown else "no difference shown"
    return each.label, each.protocol, f"{100 * each.mean:+.2f}", bounds, words


def wide(found: Contrast) -> list[dict[str, Any]]:
    """A comparison as one flat row of numbers for each arm."""
    rows: dict[str, dict[str, Any]] = {}
    for standing in found.standings:
        row = rows[standing.label] = {"method": standing.label, "seeds": standing.seconds.seeds}
        for protocol, accuracy in standing.accuracy.items():
            row |= {f"{protocol} mean": accuracy.mean, f"{protocol} sd": accuracy.spread}
        row |= {"bytes up": standing.up, "bytes down": standing.down, "bytes setup": standing.setup, "seconds": standing.seconds.mean}
    for reach in found.reaches:
        at = f"{reach.protocol} {reach.target}"
        row = rows[reach.label]
        row |= {f"rounds to {at}": reach.rounds and reach.rounds.mean, f"bytes to {at}": reach.bytes and reach.bytes.mean}
        row |= {f"seeds at {at}": reach.reached, f"fewer rounds to {at}": reach.fewer_rounds, f"fewer bytes to {at}": reach.fewer_bytes}
    for each in found.differences:
        versus = f"{each.protocol} less {found.baseline}"
        rows[each.label] |= {versus: each.mean, f"{versus} low": each.low, f"{versus} high": each.high}
    return list(rows.values())


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as CSV, a column for every key that any of them has.

    >>> as_csv([{"a": 1}, {"a": 2, "b": None}])
    'a,b\\n1,\\n2,\\n'
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: csv_cell(value) for key, value in row.items()} for row in rows)
    return text.getvalue()


def as_markdown(sheets: Sequence[Sheet]) -> str:
    """Tables as GitHub writes them."""

    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(cells) + " |\n"

    def drawn(sheet: Sheet) -> str:
        body = "".join(line(_bold(cell, "**{}**", markdown) for cell in row) for row in sheet.rows)
        rule = "|" + "---|" * len(sheet.columns) + "\n"
        head = line(map(markdown, sheet.columns))
        return f"**{markdown(sheet.title)}**\n\n{head}{rule}{body}" + (f"\n{markdown(sheet.note)}\n" if sheet.note else "")

    return "\n".join(map(drawn, sheets))


def as_latex(sheets: Sequence[Sheet]) -> str:
    """Tables for a paper, with booktabs."""

    def line(cells: Iterable[str]) -> str:
        return "  " + " & ".join(cells) + r" \\" + "\n"

    def drawn(sheet: Sheet) -> str:
        body = "".join(line(_bold(cell, r"\textbf{{{}}}", latex) for cell in row) for row in sheet.rows)
        head = line(map(latex, sheet.columns))
        open_, close = rf"\begin{{tabular}}{{{'l' * len(sheet.columns)}}}", r"\end{tabular}"
        note = f"% {latex(sheet.note)}\n" if sheet.note else ""
        return f"% {latex(sheet.title)}\n{note}{open_}\n  \\toprule\n{head}  \\midrule\n{body}  \\bottomrule\n{close}\n"

    return "\n".join(map(drawn, sheets))


def formatted(form: str, sheets: Sequence[Sheet], found: Contrast, runs: Sequence[Run]) -> str:
    """A comparison in the format that a program or a paper takes: csv, latex, markdown or json."""
    match form:
        case "csv":
            return as_csv(wide(found))
        case "latex":
            return as_latex(sheets)
        case "markdown":
            return as_markdown(sheets)
    rows = [{"method": run.label, "seed": run.seed, **run.summary} for run in runs]
    return json.dumps({**asdict(found), "runs": rows}) + "\n"


def _bold(cell: Cell, form: str, escaped: Any) -> str:
    text = escaped(cell.text)
    return form.format(text) if cell.best else text


def _marked(cell: Cell) -> Text:
    return Text(plain(cell.text), style="bold" if cell.best else "")


def _share(target: str) -> str:
    return f"{100 * float(target):g}%"


def _rounds(found: Estimate) -> str:
    return f"{found.mean:.4g}" + ("" if found.spread is None else f" ± {found.spread:.2g}")


def _times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.1f}×"


def _crossed(crossing: Mapping[str, int] | None) -> str:
    return "not reached" if crossing is None else f"{crossing['round']} ({amount(crossing['bytes'])})"
