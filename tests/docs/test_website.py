"""The site builds without a warning, has a page for everything, and asks nothing of another host."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs.pages import ROOT

import coterie
from coterie.engines import Inline
from coterie.ledger import events
from coterie.methods import METHODS, FedAvg
from coterie.running.rounds import run
from coterie.testing import small_experiment

pytest.importorskip("mkdocs", reason="mkdocs is not installed (it is in the docs extra)")
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_public_name_and_every_setting_of_every_method_has_its_place(site) -> None:
    python = (site / "reference" / "python.html").read_text(encoding="utf-8")
    assert [name for name in coterie.__all__ if not name.startswith("_") and f'id="coterie.{name}"' not in python] == []
    settings = (site / "reference" / "settings.html").read_text(encoding="utf-8")
    for name, method in METHODS.specs.items():
        section = settings.split(f'id="methods-{name}"')[1].split("<h3")[0]
        assert [field.name for field in dataclasses.fields(method) if f"<code>{field.name}</code>" not in section] == []


ASKS = re.compile(
    r"""<(?:script|img|iframe|source)[^>]*\ssrc=["']?(?:https?:)?//"""
    r"""|<link[^>]*(?:stylesheet|preconnect|icon)[^>]*href=["']?(?:https?:)?//"""
    r"""|url\(\s*["']?(?:https?:)?//"""
)


def test_nothing_is_asked_of_another_host(site) -> None:
    pages = [path for path in site.rglob("*") if path.suffix in (".html", ".css")]
    assert len(pages) > 15
    assert [path.name for path in pages if ASKS.search(path.read_text(encoding="utf-8"))] == []


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium, or name one in $CHROMIUM")
def test_search_works_on_a_site_that_is_opened_from_a_folder(site) -> None:
    with pytest.importorskip("playwright.sync_api").sync_playwright() as running:
        browser = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        said: list[str] = []
        page.on("console", lambda message: said.append(message.text))
        page.goto((site / "index.html").as_uri())
        page.fill(".md-search__input", "scaffold")
        found = page.locator(".md-search-result__item a")
        for _ in range(60):
            page.press(".md-search__input", "End")  # whenever the search is ready, it looks at the next key
            page.wait_for_timeout(500)
            if found.count():
                break
        assert "methods.html" in str(found.first.get_attribute("href"))
        assert said == []
        browser.close()


def test_the_page_of_the_ledger_has_every_event_and_field(tmp_path) -> None:
    table = (ROOT / "docs" / "reference" / "ledger.md").read_text(encoding="utf-8")
    said = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", table, flags=re.MULTILINE))
    run(small_experiment(FedAvg(), rounds=2, new_clients={"count": 2, "epochs": 1}), tmp_path / "run", engine=Inline())
    seen = list(events(tmp_path / "run" / "ledger.jsonl"))
    assert {event["event"] for event in seen} <= set(said)
    missing = {(event["event"], field) for event in seen for field in event if field != "event" and field not in said[event["event"]]}
    assert missing == set()
