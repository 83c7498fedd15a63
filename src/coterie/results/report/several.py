"""Several comparisons on one page: of each a table and a sentence, and below it the whole report, all in one file."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from coterie import durable
from coterie.results.gather import Report
from coterie.results.report.document import document, tabled
from coterie.results.report.page import render
from coterie.results.tables import Sheet

__all__ = ["Chapter", "write_pages"]


@dataclass(frozen=True)
class Chapter:
    """One comparison."""

    title: str
    sheets: Sequence[Sheet]
    report: Report


def write_pages(title: str, chapters: Sequence[Chapter], path: Path) -> Path:
    """Write one page that needs nothing else."""
    parts = "".join(
        f"<section><h2>{html.escape(each.title)}</h2>{''.join(tabled(replace(sheet, title='')) for sheet in each.sheets)}"
        f'<details open><summary>Curves, clients, bytes</summary><iframe title="{html.escape(each.title)}" srcdoc="{_quoted(each)}">'
        "</iframe></details></section>"
        for each in chapters
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    durable.write(path, document(title, parts))
    return path


def _quoted(chapter: Chapter) -> str:
    """A whole page as an attribute's value."""
    return render(chapter.report).replace("&", "&amp;").replace('"', "&quot;")
