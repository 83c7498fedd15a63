"""The page's data and the figures: the ledger's numbers, in one file that is complete."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import sys
from importlib import resources
from itertools import islice
from statistics import mean, stdev

import pytest
from coterie.results.report.style import styled
from tests.results.ledgers import ROUNDS, accuracy, write_run

from coterie.cli import main as cli
from coterie.ledger import events
from coterie.results.report import gather, render, write_figures
from coterie.results.report.content import content
from coterie.results.report.figures import _figures
from coterie.results.summary import summarise

SHA256 = "79542150855a52c567260e3137095dbe2b744e6d702a5cabe67da246942fba7a"


@pytest.fixture(scope="module")
def page(comparison_folder) -> dict:
    return content(gather([comparison_folder]))


def rows(table: dict) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(table["csv"])))


def test_scores_are_those_of_the_ledgers(page, comparison_folder) -> None:
    for row in rows(page["scores"]["local_post"]["accuracy"]):
        summaries = [summarise(events(comparison_folder / f"{row['method']}-s{seed}" / "ledger.jsonl")) for seed in (0, 1, 2)]
        for column, key in (("last", "last"), ("best", "best"), ("mean of last five", "mean_of_last_five")):
            values = [summary["protocols"]["local_post"]["accuracy"][key] for summary in summaries]
            assert float(row[column]) == pytest.approx(mean(values))
            assert float(row[f"{column} sd"]) == pytest.approx(stdev(values))


def test_curves_are_means_and_extremes_over_seeds(page) -> None:
    curve, axis = page["curves"]["global"]["accuracy"][1], page["axes"][1]
    found = [[accuracy("fedprox", seed, round) for seed in (0, 1, 2)] for round in range(1, ROUNDS + 1)]
    assert curve["mean"] == pytest.approx([mean(values) for values in found], abs=1e-6)
    assert curve["low"] == pytest.approx([min(values) for values in found], abs=1e-6)
    assert curve["high"] == pytest.approx([max(values) for values in found], abs=1e-6)
    assert axis["bytes"] == [5000 + 48_000 * round for round in axis["rounds"]]
    assert axis["seconds"] == pytest.approx([0.5 * round for round in axis["rounds"]])
    assert page["curves"]["global"]["accuracy"][2] is None


def test_targets_are_those_of_the_summary(page, comparison_folder) -> None:
    for target, name in (("0.5", "50%"), ("0.85", "85%")):
        for rule in ("first_crossing", "running_mean"):
            found = page["targets"]["global"][name][rule]
            for index, method in enumerate(("fedavg", "fedprox")):
                summaries = [summarise(events(comparison_folder / f"{method}-s{seed}" / "ledger.jsonl")) for seed in (0, 1, 2)]
                crossed = [each["targets"]["global"][target][rule] for each in summaries]
                reached = [each for each in crossed if each is not None]
                assert found["reached"][index] == [len(reached), 3]
                assert found["bars"][index]["rounds"] == (mean(each["round"] for each in reached) if reached else None)
                assert found["bars"][index]["bytes"] == (5000 + mean(each["bytes"] for each in reached) if reached else None)
            assert found["bars"][2] is None


def test_bytes_by_kind_and_worst_clients(page) -> None:
    found = {(row["method"], row["content"], row["direction"]): int(row["payload bytes"]) for row in rows(page["traffic"]["table"])}
    assert found["fedavg", "weights", "up"] == 4000 * 6 * ROUNDS
    assert found["local", "setup", "down"] == 5000
    worst = rows(page["clients"]["local_post"]["worst"])[0]
    assert (worst["method"], worst["seed"], worst["client"]) == ("fedavg", "0", "5")
    assert float(worst["accuracy"]) == accuracy("fedavg", 0, ROUNDS) - 0.05 * 5 / 6
    assert worst["holds"] == "15 samples of classes 1, 2"


def test_what_else_is_on_the_page(page) -> None:
    assert page["cards"]["global"][0]["value"] == "fedprox"
    assert "over fedavg; 95% interval" in page["cards"]["global"][0]["detail"]
    assert page["rejected"]["counts"] == [0, 6, 0]
    assert len(page["partitions"]) == 3
    assert page["new_clients"]["curves"][0]["mean"] == pytest.approx([0.2, 0.6, 0.71])
    assert {each["draw"] for each in page["exhibits"]} == {"lines", "bars", "heatmap", "images"}
    assert page["seconds"]["places"] == ["waiting for clients", "evaluation", "server and ledger"]
    assert [bar[0] for bar in page["seconds"]["bars"]] == pytest.approx([3.6, 1.2, 1.2])


def test_the_file_is_complete_and_safe(comparison_folder) -> None:
    text = render(gather([comparison_folder]))
    assert len(text.encode()) < 6e6
    assert not re.search(r"<(script|link|img|iframe)[^>]+(src|href)=[\"'](?!data:|#)", text)
    assert "<script>alert" not in text
    assert "{{" not in text.partition('id="data">')[0] + text.rpartition("</script>")[2]
    data = text.partition('<script type="application/json" id="data">')[2].partition("</script>")[0]
    assert json.loads(data)["title"] == "toy"


def test_values_that_are_no_numbers_are_gaps(tmp_path) -> None:
    write_run(tmp_path / "run", "fedavg", 0)
    path = tmp_path / "run" / "ledger.jsonl"
    path.write_text(re.sub(r'("loss","value":)[^}]+', r"\1NaN", path.read_text()))
    page = content(gather([tmp_path]))
    assert page["curves"]["global"]["loss"][0]["mean"] == [None] * ROUNDS
    assert json.dumps(page, allow_nan=False)


def test_a_run_that_measured_nothing_still_has_a_page(tmp_path) -> None:
    write_run(tmp_path / "run", "fedavg", 0)
    path = tmp_path / "run" / "ledger.jsonl"
    path.write_text("".join(line for line in path.read_text().splitlines(keepends=True) if '"evaluation"' not in line))
    assert content(gather([tmp_path]))["protocols"] == {}
    assert render(gather([tmp_path]))
    assert list(_figures(gather([tmp_path])))


def test_the_plotting_library_is_as_published() -> None:
    data = resources.files("coterie.results.report").joinpath("plotly.min.js").read_bytes()
    assert hashlib.sha256(data).hexdigest() == SHA256
    assert "MIT" in resources.files("coterie.results.report").joinpath("plotly.LICENSE").read_text()


def test_figures_of_everything(comparison_folder) -> None:
    with styled():
        names = {name for name, _ in _figures(gather([comparison_folder]))}
    assert {f"accuracy-{protocol}-by-{x}" for protocol in ("global", "local-post") for x in ("rounds", "bytes", "seconds")} <= names
    assert {"rounds-to-85-global", "communication", "clients-local-post"} <= names
    assert {f"exhibit-fedavg-{title}" for title in ("alpha", "weights", "correlation", "chosen")} <= names


def test_figures_in_three_formats_and_the_same_bytes_twice(comparison_folder, tmp_path, monkeypatch) -> None:
    made = _figures
    monkeypatch.setattr("coterie.results.report.figures._figures", lambda found: islice(made(found), 1))
    found = gather([comparison_folder / "fedavg-s0"])
    paths, again = write_figures(found, tmp_path / "one"), write_figures(found, tmp_path / "two")
    assert [path.name for path in paths] == [f"accuracy-global-by-rounds.{form}" for form in ("pdf", "svg", "png")]
    assert [path.read_bytes()[:4] for path in paths] == [b"%PDF", b"<?xm", b"\x89PNG"]
    assert [path.read_bytes() for path in paths] == [path.read_bytes() for path in again]


def test_the_command(comparison_folder, tmp_path, monkeypatch, capsys) -> None:
    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["coterie", "report", *words])
        monkeypatch.setattr(cli, "console", cli.Console(width=200))
        code = 0
        try:
            cli.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        return code, *capsys.readouterr()

    code, out, _ = call(str(comparison_folder / "fedavg-s0"), "--out", str(tmp_path / "page.html"))
    assert code == 0
    assert f"written to {tmp_path / 'page.html'}" in out
    monkeypatch.setattr("coterie.report.write_figures", lambda found, folder: [folder / "one.pdf"])
    assert (
        "1 figures written to" in call(str(comparison_folder / "fedavg-s0"), "--out", str(tmp_path / "page.html"), "--figures", "here")[1]
    )
    (tmp_path / "nothing").mkdir()
    code, _, err = call(str(tmp_path / "nothing"))
    assert code == 2
    assert "is empty: expected a run" in err
    code, _, err = call(str(comparison_folder), "--out", str(tmp_path))
    assert code == 2
    assert "is a folder" in err
