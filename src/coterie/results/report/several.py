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

TOP = """<style>
body { position: relative; }
h1 { padding-right: 5rem; }
#theme { position: absolute; top: 1.3rem; right: 1rem; font: inherit; padding: .2rem .7rem; }
:root[data-theme=light] { color-scheme: light; }
:root[data-theme=dark] { color-scheme: dark; }
@media print { body { padding: 0; } section { break-inside: auto; } iframe { border: 0; } #theme, summary { display: none; } }
</style>
<button type="button" id="theme">Dark</button>
<script>
/* Each report is as tall as what it holds, on paper too, and this page wears the theme of the reports. */
const root = document.documentElement, theme = document.getElementById("theme");
const inside = () => [...document.querySelectorAll("iframe")].map((frame) => frame.contentDocument);
const fit = (frame) => { frame.style.height = `${frame.contentDocument.body.offsetHeight}px`; };
/* Browsers ask this page first what it prints: reports as wide as a page is shrunk to. */
const widen = (width) => { for (const frame of document.querySelectorAll("iframe")) frame.style.width = width; };
window.addEventListener("beforeprint", () => widen("1050px"));
window.addEventListener("afterprint", () => widen(""));
/* In the style of paper already while it is measured; charts, which are drawn for the screen, shrink to it. */
const print = (frame, before, after) => {
  const report = frame.contentDocument;
  for (const { media } of report.styleSheets[0].cssRules) if (media?.mediaText === before) media.mediaText = after;
  for (const chart of report.querySelectorAll(".chart")) {
    chart.firstElementChild.style.zoom = Math.min(1, chart.clientWidth / chart._fullLayout.width) || 1;
  }
  fit(frame);
};
const follow = (report) => {
  const other = report.getElementById("theme");
  root.dataset.theme = report.documentElement.dataset.theme;
  theme.textContent = other.textContent;
  theme.setAttribute("aria-label", other.getAttribute("aria-label"));
};
document.addEventListener("load", ({ target: frame }) => {
  if (frame.tagName !== "IFRAME") return;
  const report = frame.contentDocument;
  new ResizeObserver(() => fit(frame)).observe(report.body);
  new MutationObserver(() => follow(report)).observe(report.documentElement, { attributeFilter: ["data-theme"] });
  follow(report);
  frame.contentWindow.addEventListener("beforeprint", () => print(frame, "print", "all"));
  frame.contentWindow.addEventListener("afterprint", () => print(frame, "all", "print"));
}, true);
theme.addEventListener("click", () => {
  const before = root.dataset.theme;
  for (const report of inside()) if (report.documentElement.dataset.theme === before) report.getElementById("theme").click();
});
</script>
"""


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
    durable.write(path, document(title, TOP + parts))
    return path


def _quoted(chapter: Chapter) -> str:
    """A whole page as an attribute's value."""
    return render(chapter.report).replace("&", "&amp;").replace('"', "&quot;")
