"""What a comparison and a run say in their tables."""

from __future__ import annotations

import csv
import io
import json

import pytest
from rich.console import Console
from tests.results.arms import ARMS, arm
from tests.results.ledgers import write_run

from coterie.results.comparison import contrast, read_arms
from coterie.results.sheets import comparison, formatted, outcome, spent, wide
from coterie.results.summary import summarise
from coterie.results.tables import as_csv, as_latex, as_markdown
from coterie.results.tally import Tally


def text_of(arms) -> str:
    return as_markdown(comparison("t", contrast(arms)))


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    folder = tmp_path_factory.mktemp("four")
    names = ("fedavg", "fedprox", "local", "centralised")
    return read_arms((name, write_run(folder / f"{name}-{seed}", name, seed)) for name in names for seed in (0, 1, 2))


def test_the_number_of_clients_stands_beside_a_mean_over_clients(four) -> None:
    assert "| method | global | local_post (6 clients) |" in text_of(four)


def test_where_arms_differ_in_clients_each_mean_says_its_own_and_none_is_best() -> None:
    text = text_of([arm("fedavg", (0.9, 0.9), clients=5), arm("local", (0.8, 0.8), clients=10)])
    assert "90.00% ± 0.00 (5 clients) |" in text
    assert "80.00% ± 0.00 (10 clients) |" in text
    assert "**90.00% ± 0.00 (5 clients)**" not in text
    assert "means under local_post are not over the same clients" in text


def test_fairness_local_work_and_bytes_stand_in_the_comparison(four) -> None:
    text = text_of(four)
    assert "| method | worst client | worst tenth | spread |" in text
    assert "| method | sent up | sent down | setup | steps | seconds |" in text
    assert "| fedavg | 288.00 kB | 288.00 kB | 5.00 kB | 770 | 6.0 ± 0.0 s |" in text
    assert "measuring personal models took 480 further steps" in text


def test_unequal_work_is_said_under_the_accuracies() -> None:
    text = text_of([arm("local", (0.5, 0.5), steps=2400), arm("fedmd", (0.6, 0.6), steps=8400), arm("fccl", (0.6, 0.6), steps=8400)])
    assert "note: local work differs: local 2,400 steps, others 8,400" in text


def test_a_bound_is_never_the_best(four) -> None:
    text = text_of(four)
    assert "| centralised | 96.06% ± 0.40 |" in text
    assert "| fedprox | **92.11% ± 0.40** |" in text
    assert "centralised: all data in one place, a bound and no rival" in text


def test_words_for_what_seeds_show() -> None:
    text = text_of(ARMS)
    assert "| better | global | +2.33 | +0.90 to +3.77 | higher |" in text
    assert "| noise | 90% |" not in text
    assert "| global | 90% | noise | 1 of 3 seeds |" in text
    two, one = (text_of([arm("a", values[0]), arm("b", values[1])]) for values in (((0.4, 0.467), (0.95, 0.9)), ((0.4,), (0.9,))))
    assert "| b | global | +49.15 | - | too few seeds |" in two
    assert "no difference shown" not in two
    assert "| b | global | +50.00 | - | one seed: no interval |" in one
    assert "±" not in one


def test_the_formats_hold_the_same_numbers() -> None:
    found = contrast(ARMS)
    rows = list(csv.DictReader(io.StringIO(as_csv(wide(found)))))
    assert [row["method"] for row in rows] == ["fedavg", "better", "noise"]
    assert float(rows[0]["global mean"]) == pytest.approx(0.92)
    assert float(rows[1]["global less fedavg low"]) == pytest.approx(0.0089911, abs=1e-6)
    assert rows[2]["rounds to global 0.9"] == ""
    sheets = comparison("ours_1", found)
    assert "| better | **94.33% ± 3.21** |" in as_markdown(sheets)
    latex = as_latex(sheets)
    assert r"better & \textbf{94.33\% $\pm$ 3.21}" in latex
    assert latex.count(r"\begin{tabular}") == latex.count(r"\end{tabular}") == len(sheets)
    assert json.loads(formatted("json", sheets, found, [{"seed": 0}]))["runs"] == [{"seed": 0}]
    assert formatted("csv", sheets, found, []).startswith("method,seeds,global mean")
    assert formatted("latex", sheets, found, []) == latex
    assert formatted("markdown", sheets, found, []) == as_markdown(sheets)


def test_a_comparison_fits_eighty_columns(four) -> None:
    console = Console(file=io.StringIO(), width=80)
    console.print(*comparison("a title", contrast(four)), sep="\n")
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    assert "centralised" in text
    assert "local_post (6 clients)" in text


def test_one_run(tmp_path) -> None:
    summary = summarise(Tally.read(write_run(tmp_path / "run", "fedprox", 0) / "ledger.jsonl"))
    text = as_markdown(outcome("toy", summary))
    assert "| protocol | clients | worst client | worst tenth | spread |" in text
    assert "| local_post | 6 |" in text
    assert "| global | 91.71% | 91.71% | 90.03% | 3 (149.00 kB) | 7 (341.00 kB) |" in text
    assert spent(summary) == ("sent up 288.00 kB, down 288.00 kB, setup 5.00 kB; 770 steps, 240 more to measure personal models; 6.0 s")


def test_metrics_of_a_users_own_stand_in_the_tables() -> None:
    arms = [arm("fedavg", (0.9, 0.9)), arm("local", (0.8, 0.8))]
    seen = {"event": "evaluation", "round": 1, "protocol": "global", "client": None}
    for run, margin in zip(arms[0].runs, (0.25, 0.75), strict=True):
        run.tally.on_event({**seen, "metric": "margin", "value": margin})
        run.tally.on_event({**seen, "metric": "loss", "value": 1.0})
    found = contrast(arms)
    text = as_markdown(comparison("t", found))
    assert "**metrics of your own, last value**\n\n| method | margin, global |" in text
    assert "| fedavg | 0.5000 ± 0.3536 |" in text
    assert "| local | - |" in text
    assert "loss" not in text
    assert [row.get("global margin mean") for row in wide(found)] == [0.5, None]
    assert "metrics of your own" not in text_of(ARMS)


def test_what_is_no_number_is_a_dash_in_the_table_of_a_run() -> None:
    accuracy = {"last": 0.9, "best": 0.9, "mean_of_last_five": 0.8}
    margin = {"last": None, "best": None, "mean_of_last_five": 0.5}
    summary = {"protocols": {"global": {"accuracy": accuracy, "loss": accuracy, "margin": margin}}, "targets": {"global": {}}}
    [_, own] = outcome("demo", summary)
    assert [cell.text for cell in own.cells[0]] == ["global", "margin", "-", "0.5000"]
