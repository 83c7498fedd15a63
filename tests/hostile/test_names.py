"""Names that would like to be more than names: in a terminal, in LaTeX, Markdown and CSV, and on the page in a real browser."""

from __future__ import annotations

import io
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.results.ledgers import write_run

from coterie.cli.progress import board
from coterie.cli.watch import watch
from coterie.results.gather import gather
from coterie.results.report import write_page
from coterie.results.tables import Cell, Sheet, as_csv, as_latex, as_markdown, simple

EVIL = "[/bold][red]x\x1b]0;owned\x07{\\input{/etc/passwd}}|</script><script>owned=1</script>\n=cmd()"
PAYLOADS = [
    "</script><script>window.owned = 1; alert(1)</script>",
    "<img src=x onerror='window.owned = 1'>",
    '"><svg onload="window.owned = 1">',
    "<a href='https://example.org/evil'>link</a>",
    "<!--<script>",
    "\u2028window.owned = 1;//",
    "${window.owned = 1}`'\"\\",
    "{{DATA}} /*{{SCRIPT}}*/ $& $1",
]
NAMED = {"name", "kind", "reason", "title", "note", "domain", "digest", "coterie", "task"}
PATIENCE = 200_000
"""Milliseconds: machines are shared, and to be slow is no fault."""
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")


def printed(thing: Any, terminal: bool = True) -> str:
    stream = io.StringIO()
    Console(file=stream, force_terminal=terminal, width=200, color_system=None).print(thing)
    return stream.getvalue()


def test_a_terminal_obeys_no_name() -> None:
    shown = printed(simple(EVIL, ["method", EVIL], [(EVIL, 1)], caption=EVIL))
    shown += printed(Sheet(EVIL, ("method", EVIL), ((Cell(EVIL, best=True), Cell(EVIL)),), EVIL))
    assert "\x1b]" not in shown
    assert "\x07" not in shown
    assert "[/bold][red]x" in shown


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_and_watch_obey_no_name(tmp_path, terminal) -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=300, color_system=None)
    with board(console) as show:
        for listener in show(EVIL, 2):
            listener({"event": "evaluation", "round": 1, "client": None, "metric": "accuracy", "protocol": EVIL, "value": 0.5})
            listener({"event": "round", "round": 1, "seconds": 0.1})
    spoilt(write_run(tmp_path / "run", "fedavg", 0), EVIL)
    watch(tmp_path / "run", console, once=True)
    assert "]0;owned\x07" not in stream.getvalue()
    assert "[/bold][red]x" in stream.getvalue()


def test_tables_for_papers_and_spreadsheets_hold_text_only() -> None:
    sheet = Sheet(EVIL, ("method", EVIL), ((Cell(EVIL, best=True), Cell("50%")),), EVIL)
    latex = as_latex([sheet])
    assert r"\input" not in latex.replace(r"\textbackslash{}input", "")
    assert all(line.startswith(("%", r"\begin", r"\end", "  ")) for line in latex.splitlines())
    assert latex.count("{") == latex.count("}")
    assert "<script" not in as_markdown([sheet])
    assert len([line for line in as_markdown([sheet]).splitlines() if line.startswith("|")]) == 3
    assert as_csv([{"method": "=cmd()", "x": -1.0}]) == "method,x\n'=cmd(),-1.0\n"


def spoilt(folder: Path, payload: str) -> Path:
    """Every name in a ledger with a payload before it."""

    def spoil(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {name: spoil(each, name) for name, each in value.items()}
        if isinstance(value, list):
            return [spoil(each, key) for each in value]
        return payload + value if isinstance(value, str) and key in NAMED else value

    path = folder / "ledger.jsonl"
    events = [spoil(json.loads(line)) for line in path.read_text().splitlines()]
    for event in events:
        if event["event"] == "partition":
            event |= {"domains": [payload, "b"], "domain_of": [index % 2 for index in range(event["clients"])]}
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    return folder


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium, or name one in $CHROMIUM")
def test_a_page_of_hostile_names_runs_nothing(tmp_path) -> None:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (it is in the dev extra)")
    foreign = "[...document.querySelectorAll('script')].length + ' ' + document.querySelectorAll('img[src=x], [onerror], [onload]').length"
    links = "[...document.querySelectorAll('a')].map((a) => a.outerHTML).filter((text) => /href=.https/.test(text))"
    with sync_api.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        asked: list[str] = []
        for number, payload in enumerate(PAYLOADS):
            folder = tmp_path / str(number)
            for method in ("fedavg", "fedprox", "local"):
                spoilt(write_run(folder / method, method, 0), payload)
            page = browser.new_page()
            page.set_default_timeout(PATIENCE)
            page.on("dialog", lambda dialog: (asked.append("a dialog"), dialog.dismiss()))
            page.on("request", lambda request: asked.append(request.url))
            page.goto(write_page(gather([folder]), tmp_path / f"{number}.html").as_uri())
            page.wait_for_selector("html[data-ready=yes]")
            assert page.evaluate("window.owned") is None, payload
            assert page.evaluate(foreign) == "3 0", payload
            assert page.evaluate(links) == [], payload
            page.close()
        browser.close()
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
