"""One HTML file that needs nothing else: the template, its style and script, the plotting library and the data, all inlined."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

from coterie import durable
from coterie.errors import UserError
from coterie.results.gather import Report
from coterie.results.report.content import content

__all__ = ["render", "write_page"]

PARTS = {"STYLE": "page.css", "PLOTLY": "plotly.min.js", "KIT": "page.kit.js", "SCRIPT": "page.js"}


def render(report: Report) -> str:
    """The page as text."""
    page = content(report)
    data = json.dumps(page, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    filled = _part("page.html").replace("{{TITLE}}", _escaped(report.name))
    for mark, name in PARTS.items():
        filled = filled.replace(f"/*{{{{{mark}}}}}*/", _part(name))
    return filled.replace('"{{DATA}}"', data)


def write_page(report: Report, path: Path) -> Path:
    """Write the page; a reader never sees half of it."""
    if path.is_dir():
        raise UserError(f"--out = '{path}' is a folder: expected the name of a file, such as {path / 'report.html'}")
    path.parent.mkdir(parents=True, exist_ok=True)
    durable.write(path, render(report))
    return path


def _part(name: str) -> str:
    return resources.files("coterie.results.report").joinpath(name).read_text(encoding="utf-8")


def _escaped(text: str) -> str:
    """Safe between tags.

    >>> _escaped("a < b & c")
    'a &lt; b &amp; c'
    """
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
