"""What a reproduced table draws of its cells."""

from __future__ import annotations

from coterie.results.report.reproduced import figure_of


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


def test_the_verdicts_stand_below() -> None:
    claims = [{"number": "004.3", "verdict": "shown"}, {"number": "", "verdict": "not shown"}]
    [legend] = figure_of({"cells": [cell("a", [0.5])], "claims": claims}).legends
    assert legend.get_title().get_text() == "004.3 shown"
