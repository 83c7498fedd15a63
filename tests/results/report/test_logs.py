"""What a report and a reproduced table draw of models on domains, and of cells."""

from __future__ import annotations

from coterie.results.report.exhibits import exhibits_of
from coterie.results.report.gather import gather

from coterie.engines import Inline
from coterie.ledger import events
from coterie.results.report.reproduced import figure_of
from coterie.running.experiment import Experiment
from coterie.running.rounds import run

STYLES = ["plain", "inverted", "turned", "noisy"]


def test_the_matrix_of_models_by_domains(tmp_path) -> None:
    """Every number of the heat map is the ledger's of the last round; rows say whose model it is."""
    changes = ["rounds=2", 'method={name="local",pretraining=1}', "data.test=80"]
    run(Experiment.load("digit-styles", changes), tmp_path / "run", engine=Inline())
    shown = {each["title"]: each for each in exhibits_of(gather([tmp_path / "run"]))}
    matrix = shown["Every model on every domain: accuracy"]
    assert (matrix["columns"], matrix["rows"]) == (STYLES, [f"{client}: {style}" for client, style in enumerate(STYLES)])
    assert "Every model on every domain: top-5 accuracy" in shown
    last = {
        (e["client"], e["domain"]): e["value"]
        for e in events(tmp_path / "run" / "ledger.jsonl")
        if e["event"] == "evaluation" and e["protocol"] == "domain" and e["metric"] == "accuracy" and e["round"] == 2
    }
    assert matrix["values"] == [[100 * last[client, style] for style in STYLES] for client in range(4)]


def test_without_foreign_domains_there_is_no_matrix(tmp_path) -> None:
    changes = ["rounds=1", "method=local", "data.test=80", 'evaluation.protocols=["intra"]']
    run(Experiment.load("digit-styles", changes), tmp_path / "run", engine=Inline())
    assert exhibits_of(gather([tmp_path / "run"])) == []


def cell(row: str, values: list[float | None], measure: str = "last", paper: float | None = None) -> dict[str, object]:
    return {"table": "t", "row": row, "column": "c", "measure": measure, "paper": paper, "values": values, "rounds": 9}


def test_a_panel_has_every_seed_the_mean_and_the_paper() -> None:
    [panel] = figure_of({"cells": [cell("a", [0.5, 0.7], paper=0.9), cell("b", [0.1, 0.2])]}).axes
    drawn = [list(line.get_xdata()) for line in panel.lines if len(line.get_xdata())]
    assert [50.0, 70.0] in drawn
    assert [60.0] in drawn
    assert [90.0] in drawn
    assert [label.get_text() for label in panel.get_yticklabels()] == ["a", "b"]


def test_what_did_not_get_there_stands_where_it_stopped_and_has_no_mean() -> None:
    [panel] = figure_of({"cells": [cell("a", [4, None], "rounds")]}).axes
    marks = {line.get_marker(): list(line.get_xdata()) for line in panel.lines if len(line.get_xdata())}
    assert marks == {"o": [4], ">": [9]}
    assert panel.get_xscale() == "log"


def test_cells_that_were_not_run_are_left_out() -> None:
    assert len(figure_of({"cells": [cell("a", [0.5]), {**cell("b", []), "table": "other"}]}).axes) == 1
