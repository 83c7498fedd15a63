"""docs/results.md is what docs/results.py makes of the committed results, and has every claim of the five papers."""

from __future__ import annotations

import json

import pytest
from docs import results as page

from coterie.studies.claims import papers
from coterie.studies.judging import Measured, judge
from coterie.studies.recipe import Key, Recipe


def test_the_committed_page_is_current() -> None:
    assert page.PAGE.read_text(encoding="utf-8") == page.written(), "run python docs/results.py"


def test_no_claim_is_without_a_row() -> None:
    text = page.written()
    for claim in (each for paper in papers() for each in paper.claims):
        assert f"| {claim.number} | {claim.text} |" in text


@pytest.mark.parametrize("name", list(page.results()))
def test_a_committed_result_is_of_this_edition_and_its_verdicts_are_what_its_values_give(name) -> None:
    result = json.loads((page.RESULTS / name / "result.json").read_text(encoding="utf-8"))
    assert "coterie 0.1" not in result["about"]["versions"]
    recipe = Recipe.load(name)
    cells = {
        Key(cell["table"], cell["row"], cell["column"]): Measured(
            cell["paper"], cell["measure"], tuple(cell["values"]), cell["rounds"], cell["target"]
        )
        for cell in result["cells"]
    }
    assert [each.verdict for each in judge(recipe.claims, cells)] == [each["verdict"] for each in result["claims"]]
    assert cells.keys() <= dict(recipe.numbered()).keys()
    assert {key: found.paper for key, found in cells.items()}.items() <= dict(recipe.numbered()).items()


def test_a_claim_in_several_parts_is_as_good_as_its_worst() -> None:
    assert page.worst(["shown", "not shown"]) == "not shown"
    assert page.worst(["not shown", "shown contrary"]) == "shown contrary"
