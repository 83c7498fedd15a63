"""The page in a real browser: switches, numbers, keyboard, phone, themes, silence on the network and on the console.

Uses Debian's Chromium (`apt-get install chromium`), or what `$CHROMIUM` names; skipped where there is none.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean

import pytest
from tests.forms import rest_is_long
from tests.results.ledgers import CLIENTS, ROUNDS, accuracy, keep_rounds, of_client, write_run

from coterie.results.gather import gather
from coterie.results.report import write_page
from coterie.results.report.several import Chapter, write_pages
from coterie.results.statistics import box
from coterie.results.summary import summarise
from coterie.results.tally import Tally

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (it is in the dev extra)")

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
PATIENCE = 200_000
"""Milliseconds: machines are shared, and to be slow is no fault."""
SEEDS = (0, 1, 2)
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--no-first-run"]

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium, or name one in $CHROMIUM")


@dataclass
class View:
    """An open page, and everything it asked for or complained of."""

    page: playwright.Page
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def listen(self) -> None:
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def text(self, selector: str) -> str:
        return " ".join(self.page.inner_text(selector).split())

    def traces(self, chart: str) -> list[dict]:
        return self.page.evaluate("id => document.getElementById(id).data.map(({name, x, y, type}) => ({name, x, y, type}))", chart)

    def line(self, name: str) -> dict:
        return next(trace for trace in self.traces("chart-curves") if trace["name"] == name)


@pytest.fixture(scope="module")
def browser() -> Iterator[playwright.Browser]:
    with playwright.sync_playwright() as running:
        launched = running.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def report(comparison_folder, tmp_path_factory) -> Path:
    return write_page(gather([comparison_folder]), tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture
def show(browser):
    """Opens a page; at the end it must have asked for nothing but itself and said nothing."""
    views: list[View] = []

    def opened(path: Path, width: int = 1280, theme: str = "light", ready: str = "html[data-ready=yes]", **options) -> View:
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=theme, accept_downloads=True, **options)
        context.set_default_timeout(PATIENCE)
        view = View(context.new_page())
        view.listen()
        view.page.goto(path.as_uri())
        view.page.wait_for_selector(ready)
        views.append(view)
        return view

    yield opened
    for view in views:
        view.page.wait_for_timeout(50)
        assert [url for url in view.requests if not re.match(r"file://|data:|blob:", url)] == []
        assert view.complaints == []
        view.page.context.close()


def last_accuracy(folder: Path) -> float:
    return summarise(Tally.read(folder / "ledger.jsonl"))["protocols"]["global"]["accuracy"]["last"]


def percent(value: float) -> str:
    return f"{100 * value:.2f}%"


def test_numbers_on_the_page_are_the_ledgers(show, report, comparison_folder) -> None:
    view = show(report)
    methods = ("fedavg", "fedprox")
    last = {method: mean(last_accuracy(comparison_folder / f"{method}-s{seed}") for seed in SEEDS) for method in methods}
    view.page.select_option("#protocol", "global")
    assert view.text("#cards .card:nth-child(1) .value") == "fedprox"
    assert view.text("#cards .card:nth-child(2) .value") == percent(last["fedprox"])
    for row, method in enumerate(methods, 1):
        assert percent(last[method]) in view.text(f"#table-scores tbody tr:nth-child({row})")
        curve = [mean(accuracy(method, seed, round) for seed in SEEDS) for round in range(1, ROUNDS + 1)]
        assert view.line(method)["y"] == pytest.approx(curve, abs=1e-6)
    assert "288.00 kB" in view.text("#table-traffic")


def test_switches_switch(show, report) -> None:
    view = show(report)
    page = view.page
    page.select_option("#protocol", "local_post")
    assert {trace["name"] for trace in view.traces("chart-curves") if trace["name"]} >= {"fedavg", "fedprox", "local"}
    page.select_option("#protocol", "global")
    assert "local" not in {trace["name"] for trace in view.traces("chart-curves")}
    page.select_option("#metric", "loss")
    assert view.line("fedavg")["y"][-1] == pytest.approx(1 - mean(accuracy("fedavg", s, ROUNDS) for s in SEEDS), abs=1e-6)
    page.click("#x button[data-value=bytes]")
    assert view.line("fedavg")["x"] == [5000 + 48_000 * r for r in range(1, ROUNDS + 1)]
    page.click("#x button[data-value=seconds]")
    assert view.line("fedavg")["x"] == pytest.approx([0.5 * r for r in range(1, ROUNDS + 1)])
    page.click("#spread button[data-value=seeds]")
    assert sum(trace["name"] == "fedavg" for trace in view.traces("chart-curves")) == 4
    page.click("#scale button[data-value=log]")
    assert page.evaluate("document.getElementById('chart-curves').layout.xaxis.type") == "log"
    page.click("#curves .legend button[data-arm='0']")
    assert "fedavg" not in {trace["name"] for trace in view.traces("chart-curves")}
    assert page.get_attribute("#curves .legend button[data-arm='0']", "aria-pressed") == "false"


def test_sections_of_their_own_switches(show, report) -> None:
    view = show(report)
    page = view.page
    page.select_option("#protocol", "global")
    page.select_option("#target", "85%")
    first = [next(r for r in range(1, 99) if accuracy("fedprox", s, r) >= 0.85) for s in SEEDS]
    bars = {trace["name"]: trace["x"][0] for trace in view.traces("chart-targets")}
    assert bars["fedprox"] == pytest.approx(mean(first))
    page.click("#cost button[data-value=bytes]")
    bars = {trace["name"]: trace["x"][0] for trace in view.traces("chart-targets")}
    assert bars["fedprox"] == pytest.approx(5000 + 48_000 * mean(first))
    page.select_option("#rule", "running_mean")
    page.click("#way button[data-value=up]")
    assert {trace["name"]: trace["x"][0] for trace in view.traces("chart-traffic")}["weights"] == 4000 * 6 * ROUNDS
    page.select_option("#partition-seed", "2")
    page.click("text=Samples by client and class")
    assert view.text("#table-partition tbody tr:nth-child(1)") == "0 12 7 2 2 23"
    assert "6 replies were dropped" in view.text("#rejected")
    assert "not finite <script>alert(1)</script>" in view.text("#table-reasons")
    assert page.evaluate("[...document.querySelectorAll('#logs .chart')].map(e => e.data[0].type)") == [
        "scatter",
        "image",
        "heatmap",
        "heatmap",
    ]
    page.select_option("#logs-arm", "1")
    assert "fedprox, up to round 2" in view.text("#logs .panel:nth-of-type(2) .note")
    page.select_option("#baseline", "1")
    assert "lower" in view.text("#table-differences tbody tr:nth-child(1)")


def test_tables_copy_and_figures_save(show, report) -> None:
    view = show(report, permissions=["clipboard-read", "clipboard-write"])
    page = view.page
    for button in page.query_selector_all("button:has-text('Copy CSV')"):
        button.click()
    page.click(".panel:has(#table-runs) button")
    page.wait_for_timeout(100)
    copied = page.evaluate("navigator.clipboard.readText()").splitlines()
    assert copied[0] == "method,seed,rounds,state,sent up,sent down,setup,seconds,experiment,folder"
    assert len(copied) == 10
    charts = page.query_selector_all(".chart")
    assert len(charts) == len(page.query_selector_all("button:has-text('Save SVG')"))
    for chart in ("chart-curves", "chart-partition"):
        with page.expect_download() as saved:
            page.click(f".panel:has(#{chart}) button:has-text('Save SVG')")
        text = Path(saved.value.path()).read_text()
        assert saved.value.suggested_filename == f"toy-{chart}.svg"
        assert text.startswith("<svg")
        assert "</svg>" in text


@pytest.mark.parametrize(
    ("width", "theme"),
    rest_is_long([(1280, "light"), (1280, "dark"), (360, "light"), (360, "dark")], short=[(1280, "light"), (360, "dark")]),
)
def test_it_fits_and_reads(show, report, width, theme) -> None:
    view = show(report, width=width, theme=theme)
    assert view.page.evaluate("document.documentElement.scrollWidth") <= width
    assert view.page.get_attribute("html", "data-theme") == theme
    view.page.click("#theme")
    other = "dark" if theme == "light" else "light"
    assert view.page.get_attribute("html", "data-theme") == other
    contrasts = view.page.evaluate(CONTRASTS)
    assert min(contrasts["text"]) >= 4.5
    assert min(contrasts["lines"]) >= 3


@pytest.mark.parametrize(
    ("before", "after"), rest_is_long([(1280, 1000), (600, 380), (380, 1280), (700, 665)], short=[(600, 380), (380, 1280)])
)
def test_charts_follow_a_window_that_changes(show, report, before, after) -> None:
    page = show(report, width=before).page
    page.set_viewport_size({"width": after, "height": 800})
    page.wait_for_function(FITTING)


FITTING = """() => [...document.querySelectorAll('.chart')].filter((each) => each.offsetParent).every((each) => {
  const drawn = each.querySelector('.main-svg').getBoundingClientRect(), place = each.getBoundingClientRect();
  const near = (side) => Math.abs(drawn[side] - place[side]) < 1;
  return near('height') && (each.layout.width ? drawn.width <= place.width : near('width'));
})"""
CONTRASTS = """() => {
  const light = ([r, g, b]) => { const f = (v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
    return 0.2126 * f(r) + 0.7152 * f(g) + 0.0722 * f(b); };
  const ratio = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + 0.05) / (y + 0.05); };
  const parse = (text) => [1, 3, 5].map((i) => parseInt(text.slice(i, i + 2), 16));
  const token = (name) => parse(getComputedStyle(document.documentElement).getPropertyValue('--' + name).trim());
  const text = [['ink', 'bg'], ['ink', 'surface'], ['muted', 'bg'], ['muted', 'surface'], ['accent', 'surface'], ['ink', 'warn-bg']]
    .map(([a, b]) => ratio(token(a), token(b)));
  const drawn = document.getElementById('chart-curves').data.filter((trace) => trace.line.width > 0);
  const lines = drawn.map((trace) => ratio(parse(trace.line.color), token('surface')));
  return { text, lines };
}"""


def test_the_keyboard_reaches_every_switch(show, report) -> None:
    page = show(report).page
    seen: set[str] = set()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the results"
    for _ in range(45):
        page.keyboard.press("Tab")
        seen.add(page.evaluate("document.activeElement.id || document.activeElement.parentElement.id"))
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
    assert {"theme", "protocol", "metric", "x", "spread", "scale", "target", "rule", "cost"} <= seen
    page.focus("#x button[data-value=bytes]")
    page.keyboard.press("Enter")
    assert page.evaluate("document.getElementById('chart-curves').layout.xaxis.title.text") == "sent so far, up and down"


def test_a_damaged_run_says_so_on_the_page(show, comparison_folder, tmp_path) -> None:
    folder = write_run(tmp_path / "fedavg-broken", "fedavg", 0)
    data = (folder / "ledger.jsonl").read_bytes()
    (folder / "ledger.jsonl").write_bytes(data[: len(data) // 2])
    view = show(write_page(gather([folder]), tmp_path / "report.html"))
    assert "fedavg-broken: its last line is only half written" in view.text("#notices")
    assert "unfinished" in view.text("#table-runs")


def test_a_run_without_measurements_has_a_page(show, tmp_path) -> None:
    folder = write_run(tmp_path / "run", "fedavg", 0)
    path = folder / "ledger.jsonl"
    path.write_text("".join(line for line in path.read_text().splitlines(keepends=True) if '"event":"evaluation"' not in line))
    view = show(write_page(gather([folder]), tmp_path / "report.html"))
    assert "No model was measured" in view.text("#notices")


def test_the_page_draws_the_boxes_that_it_is_given(show, report) -> None:
    view = show(report)
    values = [of_client("fedavg", seed, ROUNDS, client) for seed in SEEDS for client in range(CLIENTS)]
    drawn = view.page.evaluate("document.getElementById('chart-clients').calcdata[0].map(({q1, med, q3, lf, uf}) => [lf, q1, med, q3, uf])")
    five = box(values)
    assert drawn == [pytest.approx([five.lowest, five.first, five.median, five.third, five.highest])]
    assert len(view.page.query_selector_all("#chart-clients .trace.boxes path.point")) == 3 * len(values)


def test_one_round_is_drawn_between_nothing_and_everything(show, tmp_path) -> None:
    folder = keep_rounds(write_run(tmp_path / "run", "fedavg", 0), 1)
    page = show(write_page(gather([folder]), tmp_path / "report.html")).page
    low, high = page.evaluate("document.getElementById('chart-curves')._fullLayout.yaxis.range")
    assert (low, high) == (pytest.approx(0, abs=0.05), pytest.approx(1, abs=0.05))


def test_no_clear_winner_is_the_largest_word_where_nothing_is_shown(show, comparison_folder, tmp_path) -> None:
    runs = [comparison_folder / f"{method}-s{seed}" for method in ("fedavg", "fedprox") for seed in (0, 1)]
    view = show(write_page(gather(runs), tmp_path / "report.html"))
    assert view.text("#cards .card:nth-child(1) .value") == "no clear winner"
    assert "too few seeds" in view.text("#table-differences")


def test_the_theme_is_remembered(show, report) -> None:
    page = show(report, theme="light").page
    page.click("#theme")
    page.reload()
    page.wait_for_selector("html[data-ready=yes]")
    assert page.get_attribute("html", "data-theme") == "dark"


def test_a_long_table_can_be_searched_and_keeps_its_head_in_view(show, report) -> None:
    page = show(report).page
    page.click("text=Resolved settings")
    box, rows = page.locator("#table-settings input[type=search]"), page.locator("#table-settings tbody tr")
    box.scroll_into_view_if_needed()
    total = rows.count()
    assert total > 15
    box.fill("training epochs")
    shown = [row for row in rows.all() if row.is_visible()]
    assert [row.inner_text().split()[0] for row in shown] == ["training.epochs"]
    assert page.inner_text("#table-settings .find .count") == f"1 of {total} rows"
    box.fill("")
    page.evaluate("document.querySelector('#table-settings .tall').scrollTop = 200")
    region, head = page.locator("#table-settings .tall").bounding_box(), page.locator("#table-settings thead th").first.bounding_box()
    assert abs(region["y"] - head["y"]) < 6
    assert page.locator("#table-scores input").count() == 0


def test_on_paper_it_is_light_and_nothing_is_cut_off(show, report, tmp_path) -> None:
    page = show(report, theme="dark").page
    page.emulate_media(media="print")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert page.get_attribute("html", "data-theme") == "light"
    assert not page.locator("nav").is_visible()
    assert page.evaluate("[...document.querySelectorAll('.scroll')].every((each) => each.scrollHeight <= each.clientHeight + 1)")
    page.pdf(path=tmp_path / "report.pdf")
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert page.get_attribute("html", "data-theme") == "dark"
    assert (tmp_path / "report.pdf").stat().st_size > 10_000


@pytest.fixture
def both(show, report, comparison_folder, tmp_path) -> playwright.Page:
    """Two reports on one page, drawn."""
    chapters = [Chapter(name, [], gather([comparison_folder / f"{name}-s0"])) for name in ("fedavg", "local")]
    page = show(write_pages("both", chapters, tmp_path / "both.html"), ready="html[data-theme]").page
    for frame in page.frames[1:]:
        frame.wait_for_selector("html[data-ready=yes]")
    return page


def test_reports_on_one_page_have_one_scroll_bar(both) -> None:
    for width in (1280, 500):
        both.set_viewport_size({"width": width, "height": 800})
        for frame in both.frames[1:]:
            frame.wait_for_function("innerHeight > 3000 && document.documentElement.scrollHeight <= innerHeight")
    both.frames[2].click("#nav a[href='#traffic']")
    both.wait_for_function("scrollY > 3000")


def test_reports_on_one_page_wear_one_theme(both) -> None:
    for button in (both, both.frames[2], both.frames[1]):
        theme = "light" if both.get_attribute("html", "data-theme") == "dark" else "dark"
        button.click("#theme")
        for frame in both.frames:
            frame.wait_for_selector(f"html[data-theme={theme}]")


def test_reports_on_one_page_are_whole_on_paper(both) -> None:
    for frame in both.frames:
        frame.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    both.emulate_media(media="print")
    for frame in both.frames[1:]:
        high, wide = frame.evaluate("['Height', 'Width'].map((way) => document.documentElement[`scroll${way}`] <= window[`inner${way}`])")
        assert high
        assert wide
        assert frame.evaluate("innerHeight - document.body.offsetHeight") < 50
