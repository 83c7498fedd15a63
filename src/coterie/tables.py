"""Results as tables for a terminal. Nothing here needs torch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from rich.table import Table

__all__ = ["amount", "comparison", "outcome", "simple"]


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


def simple(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Table:
    """A plain table."""
    table = Table(*columns, title=title, title_justify="left")
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    return table


def outcome(title: str, summary: Mapping[str, Any]) -> Table:
    """One run: every protocol's accuracy, and what reaching each target took."""
    targets = list(next(iter(summary["targets"].values()), {}))
    table = Table(
        "protocol",
        "last",
        "best",
        "mean of last 5",
        *(f"rounds to {100 * float(t):g}%" for t in targets),
        title=title,
        title_justify="left",
    )
    for protocol, metrics in summary["protocols"].items():
        found = metrics["accuracy"]
        values = [f"{100 * found[key]:.2f}%" for key in ("last", "best", "mean_of_last_five")]
        crossings = [summary["targets"][protocol][target]["first_crossing"] for target in targets]
        table.add_row(protocol, *values, *(_crossed(each) for each in crossings))
    return table


def comparison(title: str, results: Sequence[tuple[str, Mapping[str, Any]]]) -> Table:
    """Methods side by side: accuracy as mean and spread over seeds, bytes, seconds; the best accuracy in bold."""
    by_method: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for method, summary in results:
        by_method[method].append(summary)
    protocols = list(dict.fromkeys(p for _, summary in results for p in summary["protocols"]))
    best = {p: max(_accuracies(s, p, default=[-1.0])[0] for s in by_method.values()) for p in protocols}
    table = Table("method", *protocols, "sent up", "sent down", "setup", "seconds", title=title, title_justify="left")
    for method, summaries in by_method.items():
        cells = [_spread(_accuracies(summaries, p), best[p]) for p in protocols]
        traffic = [summary["bytes"] for summary in summaries]
        totals = [mean(t["up"] for t in traffic), mean(t["down"] for t in traffic), mean(t["setup_up"] + t["setup_down"] for t in traffic)]
        table.add_row(method, *cells, *(amount(total) for total in totals), f"{mean(s['seconds'] for s in summaries):.1f}")
    return table


def _accuracies(summaries: Sequence[Mapping[str, Any]], protocol: str, default: Sequence[float] = ()) -> list[float]:
    found = [s["protocols"][protocol]["accuracy"]["last"] for s in summaries if protocol in s["protocols"]]
    return [mean(found), *found] if found else list(default)


def _spread(found: list[float], best: float) -> str:
    if not found:
        return "-"
    middle, *values = found
    text = f"{100 * middle:.2f}%" + (f" ± {100 * stdev(values):.2f}" if len(values) > 1 else "")
    return f"[bold]{text}[/bold]" if middle == best else text


def _crossed(crossing: Mapping[str, int] | None) -> str:
    return "not reached" if crossing is None else f"{crossing['round']} ({amount(crossing['bytes'])})"
