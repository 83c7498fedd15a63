"""docs/results.md is what docs/results.py makes of the committed results, and has every claim of the five papers."""

from __future__ import annotations

import json

import pytest
from docs import results as page

from coterie.studies.claims import papers
from coterie.studies.judging import Measured, judge
from coterie.studies.recipe import Key, Recipe
from coterie.studies.reproduce import Reproduction


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


@pytest.fixture
def dynamic() -> Reproduction:
    """A made-up result of a recipe: clear, vague and contrary differences, and a table that was not run."""
    recipe, seeds = Recipe.load("fml-dynamic"), (1, 2, 3, 4, 5, 6)
    gains = {"CIFAR-10 cnn1, IID": {"global": 0.05, "local": 0.0}, "CIFAR-10 cnn1, two classes": {"global": -0.05, "local": 0.05}}
    cells = {}
    for key, paper in recipe.numbered():
        if key.table in gains:
            gain = gains[key.table][key.column] if key.row == "dynamic" else 0.0
            noise = 0.01 if key.row == "dynamic" else 0.0
            cells[key] = Measured(paper, "last", tuple(0.5 + gain + noise * (seed % 3 - 1) for seed in seeds), 15)
    about = {"command": "coterie reproduce fml-dynamic --scale study", "commit": "abc", "versions": "coterie 0.2.0"}
    return Reproduction(recipe, "study", seeds, cells, judge(recipe.claims, cells), about)


def test_a_row_has_the_comparison_that_decides_its_interval_verdict_command_and_commit(dynamic) -> None:
    [claim] = [each.model_copy(update={"some": False}) for paper in papers() for each in paper.claims if each.number == "004.8"]
    result = json.loads(json.dumps(dynamic.table(), allow_nan=False))
    cells = [cell.strip() for cell in page.row(claim, "fml-dynamic", result).strip("|").split("|")]
    assert cells[3].startswith("-5.0 [-6.")
    assert cells[3].endswith("points: CIFAR-10 cnn1, two classes, dynamic, global > CIFAR-10 cnn1, two classes, fixed, global")
    assert cells[4] == "**shown contrary** (2 of 2 not run; 1 of 2 shown; could have seen 1.2 points; 1 of 2 shown; 1 of 2 shown contrary)"
    assert cells[5:] == ["`coterie reproduce fml-dynamic --scale study`", "abc"]


def test_verdict_and_interval_are_the_same_in_table_page_and_data(dynamic) -> None:
    text, data = dynamic.markdown(), dynamic.table()
    told = [each for each in data["claims"] if each["number"] == "004.8"]
    assert [each["verdict"] for each in told] == ["not run", "not shown", "shown contrary"]
    for each in told:
        assert f"| 004.8 | {each['claim']} | {each['verdict']} | {each['detail']} |" in text
    assert "| 004.8 | CIFAR-10 cnn1, IID / dynamic / global > CIFAR-10 cnn1, IID / fixed / global | +5.0 [+" in text


def test_a_claim_in_several_parts_is_as_good_as_its_worst() -> None:
    assert page.worst(["shown", "not shown"]) == "not shown"
    assert page.worst(["not shown", "shown contrary"]) == "shown contrary"


def test_a_claim_of_some_case_is_as_good_as_its_best_part_and_the_row_tells_of_that_part() -> None:
    recipe = Recipe.load("fml-catfish")
    seeds = recipe.scales["study"].seeds
    levels = {("MNIST", "strong"): 0.55, ("CIFAR-10", "strong"): 0.45}
    cells = {}
    for key, paper in recipe.numbered():
        noise = 0.001 if key.row.startswith("strong") else 0.0
        cells[key] = Measured(paper, "last", tuple(levels.get((key.table, key.row), 0.5) + noise * (seed % 3 - 1) for seed in seeds), 20)
    found = Reproduction(recipe, "study", seeds, cells, judge(recipe.claims, cells), {"command": "", "commit": ""}).table()
    [claim] = [each for paper in papers() for each in paper.claims if each.number == "004.6"]
    row = page.row(claim, "fml-catfish", json.loads(json.dumps(found, allow_nan=False)))
    assert "MNIST, strong, last accuracy > MNIST, weak, last accuracy | **shown** (1 of 1 shown; 1 of 1 shown contrary; " in row
    assert page.best(["not shown", "shown contrary"]) == "not shown"
