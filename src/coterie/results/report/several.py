"""Several comparisons on one page: of each a table and a sentence, and below it the whole report, all in one file."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from coterie import durable
from coterie.results.gather import Report
from coterie.results.report.page import render
from coterie.results.tables import Sheet, as_html

__all__ = ["Chapter", "write_pages"]

STYLE = """
:root { color-scheme: light dark; --line: color-mix(in srgb, currentColor 20%, transparent); }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 75rem; margin: 0 auto; padding: 1rem; }
table { border-collapse: collapse; width: 100%; margin: 1rem 0; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; }
th, td { text-align: left; padding: .35rem .75rem .35rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
.wide { overflow-x: auto; }
iframe { width: 100%; height: 85vh; border: 1px solid var(--line); border-radius: 6px; }
summary { cursor: pointer; padding: .5rem 0; }
"""


@dataclass(frozen=True)
class Chapter:
    """One comparison."""

    title: str
    sheet: Sheet
    report: Report


def write_pages(title: str, chapters: Sequence[Chapter], path: Path) -> Path:
    """Write one page that needs nothing else."""
    parts = "".join(
        f"<section><h2>{html.escape(each.title)}</h2><div class=wide>{as_html(each.sheet)}</div>"
        f'<details open><summary>Curves, clients, bytes</summary><iframe title="{html.escape(each.title)}" srcdoc="{_quoted(each)}">'
        "</iframe></details></section>"
        for each in chapters
    )
    head = '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    whole = (
        f"{head}<title>{html.escape(title)}</title><style>{STYLE}</style></head><body><h1>{html.escape(title)}</h1>{parts}</body></html>"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    durable.write(path, whole)
    return path


def _quoted(chapter: Chapter) -> str:
    """A whole page as an attribute's value."""
    return render(chapter.report).replace("&", "&amp;").replace('"', "&quot;")
