"""What a reproduced table draws of its cells."""

from __future__ import annotations

import pytest

from coterie.results.report.reproduced import figure_of, intervals_of, study_page
from coterie.results.tables import Sheet


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


def compared(outcome: str, low: float, high: float | None, unit: str = "points") -> dict[str, object]:
    return {
        "comparison": "a > b",
        "outcome": outcome,
        "middle": low + 0.01,
        "low": low,
        "high": high,
        "unit": unit,
        "claimed": [float(unit == "ratio"), None],
    }


def claimed(verdict: str, *comparisons: dict[str, object], number: str = "004.3") -> dict[str, object]:
    return {"number": number, "claim": "a <b> is better", "verdict": verdict, "detail": "1 of 1", "comparisons": list(comparisons)}


def test_differences_and_ratios_have_a_panel_each_with_their_own_nothing() -> None:
    found = [compared("shown", 0.01, 0.03), compared("not shown", 0.5, 1.5, unit="ratio"), compared("not shown", 0.5, None, unit="ratio")]
    differences, ratios = intervals_of({"cells": [], "claims": [claimed("not shown", *found)]}).axes
    assert list(differences.lines[0].get_xdata()) == pytest.approx([1, 3])
    assert list(differences.lines[-1].get_xdata()) == [0, 0]
    assert list(ratios.lines[-1].get_xdata()) == [1, 1]
    assert ratios.get_xscale() == "log"
    assert [line.get_marker() for line in ratios.lines].count(">") == 1, "an end that is open"
    [band] = differences.collections
    assert band.get_paths()[0].get_extents().x0 == 0, "where the claim says that it lies"
    [plain] = intervals_of({"cells": [], "claims": [claimed("shown", compared("shown", 0.5, 0.7, "value"))]}).axes
    assert list(plain.lines[0].get_xdata()) == [0.5, 0.7], "what is no accuracy is not drawn in points"


def test_the_page_has_every_claim_with_its_verdict_and_no_markup_of_theirs() -> None:
    claims = [claimed("shown", compared("shown", 0.01, 0.03)), claimed("not run", number="004.4")]
    sheet = Sheet("t", ("", "c"), (("a", "50%"),))
    page = study_page(
        "A study", ["Nobody, 2026"], {"cells": [cell("a", [0.5])], "claims": claims}, [sheet], {"What differs": ["all"], "Why": []}
    )
    assert '<li class="shown">004.3 <span class="verdict">shown</span>: a &lt;b&gt; is better' in page
    assert '<li class="">004.4 <span class="verdict">not run</span>' in page
    assert page.count("<svg") == 2
    assert "<li>all</li>" in page
    assert "<h2>Why</h2>" not in page
