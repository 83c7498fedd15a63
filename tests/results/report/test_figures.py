"""Figures for papers: the same numbers as the page, the same bytes twice."""

from __future__ import annotations

from itertools import islice

import pytest
from tests.results.ledgers import write_run

from coterie.results.gather import gather
from coterie.results.report import write_figures
from coterie.results.report.content import content
from coterie.results.report.figures import _clients, _figures
from coterie.style import styled


def test_figures_of_everything(comparison_folder) -> None:
    with styled():
        names = {name for name, _ in _figures(gather([comparison_folder]))}
    assert {f"accuracy-{protocol}-by-{x}" for protocol in ("global", "local-post") for x in ("rounds", "bytes", "seconds")} <= names
    assert {"rounds-to-85-global", "communication", "clients-local-post", "training-loss", "worst-client-local-post-by-rounds"} <= names
    assert {f"log-fedavg-{name}" for name in ("alpha-and-beta", "fusion", "public-correlation", "chosen")} <= names


def test_a_box_is_the_same_on_the_page_and_in_the_figure(comparison_folder) -> None:
    """Once the page let its library find quartiles, and the figure another: the same box began 0.35 points apart."""
    report = gather([comparison_folder])
    with styled():
        lines = _clients(report, "local_post").axes[0].lines
    for box in content(report)["clients"]["local_post"]["boxes"]:
        drawn = {round(float(x), 12) for line in lines for x in line.get_xdata()}
        assert {round(value, 12) for value in box.values()} <= drawn


def test_a_run_without_measurements_has_figures(tmp_path) -> None:
    write_run(tmp_path / "run", "fedavg", 0)
    path = tmp_path / "run" / "ledger.jsonl"
    path.write_text("".join(line for line in path.read_text().splitlines(keepends=True) if '"event":"evaluation"' not in line))
    assert list(_figures(gather([tmp_path])))


def test_three_formats_and_the_same_bytes_twice(comparison_folder, tmp_path, monkeypatch) -> None:
    made = _figures
    monkeypatch.setattr("coterie.results.report.figures._figures", lambda found: islice(made(found), 1))
    found = gather([comparison_folder / "fedavg-s0"])
    paths, again = write_figures(found, tmp_path / "one"), write_figures(found, tmp_path / "two")
    assert [path.name for path in paths] == [f"accuracy-global-by-rounds.{form}" for form in ("pdf", "svg", "png")]
    assert [path.read_bytes()[:4] for path in paths] == [b"%PDF", b"<?xm", b"\x89PNG"]
    assert [path.read_bytes() for path in paths] == [path.read_bytes() for path in again]


def test_legends_have_names_and_no_numbers(comparison_folder) -> None:
    with styled():
        figures = dict(_figures(gather([comparison_folder])))
    legend = figures["log-fedavg-alpha-and-beta"].axes[0].get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["alpha", "beta"]


@pytest.mark.parametrize("name", ["accuracy-local-post-by-rounds", "training-loss"])
def test_rounds_are_whole_numbers(comparison_folder, name) -> None:
    with styled():
        figure = dict(_figures(gather([comparison_folder])))[name]
    assert all(float(tick).is_integer() for tick in figure.axes[0].get_xticks())
