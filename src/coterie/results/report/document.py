"""A page that is one file and needs nothing else: its frame, its style, and lists and figures in it."""

from __future__ import annotations

import html
from collections.abc import Sequence

from matplotlib.figure import Figure

from coterie.results.tables import Sheet, as_html
from coterie.style import as_svg

__all__ = ["document", "drawn", "listed", "tabled"]

STYLE = """
:root { color-scheme: light dark; --line: color-mix(in srgb, currentColor 20%, transparent); }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 75rem; margin: 0 auto; padding: 1rem; }
h1 { line-height: 1.2; }
table { border-collapse: collapse; width: 100%; margin: 1rem 0; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; }
th, td { text-align: left; padding: .35rem .75rem .35rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th:not(:last-child), td:not(:last-child) { white-space: nowrap; }
td:last-child { min-width: 9rem; }
.wide { overflow-x: auto; }
iframe { width: 100%; height: 85vh; border: 1px solid var(--line); border-radius: 6px; }
figure { margin: 1rem 0; padding: .5rem; background: #fff; border-radius: 6px; overflow-x: auto; }
figure svg { display: block; width: 100%; min-width: 36rem; max-width: 60rem; height: auto; margin: auto; }
summary { cursor: pointer; padding: .5rem 0; }
.claims { list-style: none; padding: 0; }
.claims li { padding: .6rem 0 .6rem .8rem; margin: .6rem 0; border-left: 4px solid var(--line); }
.claims small { display: block; opacity: .75; }
.verdict { font-weight: 600; }
.shown { border-color: #009e73 !important; } .contrary { border-color: #d55e00 !important; }
.unshown { border-color: #e69f00 !important; }
@media print { body { max-width: none; } section { break-inside: avoid-page; } }
"""


def document(title: str, body: str) -> str:
    """The whole page; `body` is HTML already.

    >>> document("a < b", "<p>text</p>").endswith("<h1>a &lt; b</h1><p>text</p></body></html>")
    True
    """
    head = '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    name = html.escape(title)
    return f"{head}<title>{name}</title><style>{STYLE}</style></head><body><h1>{name}</h1>{body}</body></html>"


def listed(title: str, lines: Sequence[str]) -> str:
    """A heading and its lines; nothing where there are none.

    >>> listed("Seeds", ["ten"]), listed("Seeds", [])
    ('<section><h2>Seeds</h2><ul><li>ten</li></ul></section>', '')
    """
    items = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
    return f"<section><h2>{html.escape(title)}</h2><ul>{items}</ul></section>" if lines else ""


def tabled(sheet: Sheet) -> str:
    """A table that scrolls by itself where the page is narrow."""
    return f"<div class=wide>{as_html(sheet)}</div>"


def drawn(figure: Figure, what: str) -> str:
    """A figure inside the page."""
    return f'<figure role="img" aria-label="{html.escape(what)}">{as_svg(figure)}</figure>'
