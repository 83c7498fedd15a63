"""Recipes: data in, our number beside the paper's out, a verdict on each claim."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests.forms import rest_is_long

from coterie.cli import main as cli
from coterie.cli.sentences import console
from coterie.data.partitions import IID
from coterie.models import CNN
from coterie.studies.claims import papers
from coterie.studies.judging import Measured, judge
from coterie.studies.recipe import Claim, Comparison, Key, Recipe, cells_of, key_of, recipes, settings_of

RECIPE = """
title = "Digits"
paper = "Nobody, 2026"
numbers = "Made up."
columns = ["few", "many"]

[experiment]
name = "tiny"
data = { source = "digits", train = 300, test = 100 }
partition = { name = "iid", clients = 5 }
model = { name = "mlp", hidden = [16] }
method = "fedavg"
training.optimiser = { name = "sgd", lr = 0.1 }
engine = { name = "inline" }  # the bits are those of any

[[tables]]
name = "MLP"
rows = [{ name = "fedavg", paper = [0.5, "-"] }, { name = "local" }]

[[changes]]
measure = "last"
protocol = "global"

[[changes]]
row = "local"
protocol = "local_post"
set.method = "local"

[[changes]]
column = "few"
set.rounds = 1

[[changes]]
column = "many"
set.rounds = 3
set.partition.clients = 3

[scales.smoke]
seeds = [0, 1]
takes = "seconds"
differs = ["everything"]

[scales.paper]
seeds = [0]
takes = "longer"

[[scales.paper.changes]]
row = "local"
skip = true

[[claims]]
text = "More rounds are better."
comparisons = [{ left = "MLP / fedavg / many", relation = ">", right = "MLP / fedavg / few" }]

[[claims]]
text = "Phones get warm."
untestable = "we have no phones"
"""


@pytest.fixture
def call(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("coterie.running.provenance._own_code", lambda: "fixed")  # sources may be edited while tests run

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["coterie", "reproduce", *words])
        monkeypatch.setattr(console, "_width", 160)
        try:
            cli.main()
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
        return code, *capsys.readouterr()

    return run


def rounds(*values: float | None) -> Measured:
    return Measured(None, "rounds", values, 100)


def accuracies(*values: float) -> Measured:
    return Measured(None, "last", values, 100)


def verdict(claim: Claim, cells: dict[str, Measured]) -> str:
    return judge([claim], {Key("t", row, "c"): found for row, found in cells.items()})[0].verdict


def claim(*comparisons: Comparison, number: str = "") -> Claim:
    return Claim(text="", number=number, comparisons=comparisons)


def compared(left: str, relation: str, right: str | float, **more: float) -> Comparison:
    sides = {"left": f"t / {left} / c", "right": f"t / {right} / c" if isinstance(right, str) else right}
    return Comparison.model_validate({**sides, "relation": relation, **more})


@pytest.mark.parametrize(
    ("relation", "right", "more", "found"),
    [
        ("<", "b", {}, "shown"),
        (">", "b", {}, "shown contrary"),
        ("<", "b", {"factor": 0.6}, "shown"),
        ("<", "b", {"factor": 0.4}, "shown contrary"),
        ("<", 60.0, {}, "shown"),
        ("~", "b", {"margin": 0.1}, "shown contrary"),
        ("~", "a", {"margin": 0.1}, "shown"),
        ("~", "b", {"margin": 0.1, "factor": 0.5}, "shown"),
        ("~", 40.0, {"margin": 0.1}, "shown"),
        ("<", "missing", {}, "not run"),
        ("<", "c", {"factor": 0.5}, "shown"),
        ("<", "c", {"factor": 0.3}, "not shown"),  # more than 100 rounds may be any number
    ],
)
def test_rounds_are_compared_by_their_ratio(relation, right, more, found) -> None:
    cells = {"a": rounds(*[40.0] * 6), "b": rounds(*[80.0] * 6), "c": rounds(*[None] * 6)}
    assert verdict(claim(compared("a", relation, right, **more)), cells) == found


@pytest.mark.parametrize(
    ("relation", "right", "more", "found"),
    [
        (">", "b", {}, "shown"),
        ("<", "b", {}, "shown contrary"),
        (">", "near", {}, "not shown"),
        ("~", "near", {"margin": 0.05}, "shown"),
        ("~", "near", {"margin": 0.001}, "not shown"),
        ("~", 0.9, {"margin": 0.05}, "shown"),
        ("~", 0.5, {"margin": 0.05}, "shown contrary"),
        (">", 0.8, {}, "shown"),
        (">", 0.95, {}, "shown contrary"),
    ],
)
def test_accuracies_are_compared_by_their_paired_difference(relation, right, more, found) -> None:
    cells = {"a": accuracies(0.9, 0.89, 0.91), "b": accuracies(0.5, 0.48, 0.51), "near": accuracies(0.89, 0.9, 0.91)}
    assert verdict(claim(compared("a", relation, right, **more)), cells) == found


def test_gaps_are_compared_as_differences_of_differences() -> None:
    cells = {"all": accuracies(0.7, 0.71, 0.72), "few": accuracies(0.5, 0.5, 0.52), "most": accuracies(0.68, 0.7, 0.71)}
    wide, narrow = ("t / all / c", "t / few / c"), ("t / all / c", "t / most / c")
    assert verdict(claim(Comparison(left=wide, relation=">", right=narrow)), cells) == "shown"
    assert verdict(claim(Comparison(left=narrow, relation="<", right=0.05)), cells) == "shown"


@pytest.mark.parametrize(
    ("rights", "found"),
    [
        (("b", "b"), "shown"),
        (("b", "better"), "shown contrary"),
        (("b", "near"), "not shown"),
        (("b", "missing"), "not shown"),
        (("missing", "missing"), "not run"),
        ((), "not testable"),
    ],
)
def test_a_claim_needs_all_its_comparisons_and_is_refuted_by_one(rights, found) -> None:
    cells = {"a": accuracies(0.9, 0.89, 0.91), "b": accuracies(0.5, 0.48, 0.51), "near": accuracies(0.89, 0.9, 0.91)}
    cells["better"] = accuracies(0.99, 0.99, 0.98)
    assert verdict(claim(*(compared("a", ">", right) for right in rights)), cells) == found


def test_questions_of_our_own_do_not_count_in_the_correction_of_the_papers_claims() -> None:
    cells = {"a": accuracies(0.9, 0.89, 0.91), "b": accuracies(0.5, 0.48, 0.51)}
    ours, papers = claim(*[compared("a", ">", "b")] * 9), claim(compared("a", ">", "b"), number="000.1")
    judged = judge([ours, papers], {Key("t", row, "c"): found for row, found in cells.items()})
    assert judged[1].findings[0].confidence == pytest.approx(0.95)
    assert judged[0].findings[0].confidence == pytest.approx(1 - 0.05 / 9)


def test_what_is_not_shown_says_what_could_have_been_seen() -> None:
    cells = {"a": accuracies(0.9, 0.89, 0.91), "b": accuracies(0.89, 0.9, 0.91)}
    [judged] = judge([claim(compared("a", ">", "b"))], {Key("t", row, "c"): found for row, found in cells.items()})
    assert judged.detail == "none shown; could have seen 2.5 points"


def test_what_could_have_been_seen_is_told_apart_for_rounds_and_accuracies() -> None:
    cells = {"a": accuracies(*[0.9, 0.89, 0.91] * 3), "b": accuracies(*[0.89, 0.9, 0.91] * 3)}
    cells |= {"fast": rounds(*[40.0, 60.0, 50.0] * 3), "slow": rounds(*[50.0] * 9)}
    both = claim(compared("a", ">", "b"), compared("fast", "<", "slow"))
    [judged] = judge([both], {Key("t", row, "c"): found for row, found in cells.items()})
    assert judged.detail == "none shown; could have seen x0.82 and 0.8 points"


def test_a_recipe_of_ones_own_from_file_to_page(call, tmp_path) -> None:
    Path("mine.toml").write_text(RECIPE)
    code, _, err = call("mine.toml", "--scale", "smoke", "--out", "results")
    assert (code, err) == (0, "")
    result = json.loads(Path("results/result.json").read_text())
    cells = {(each["row"], each["column"]): each for each in result["cells"]}
    assert len(cells) == 4
    assert cells["fedavg", "few"]["paper"] == 0.5
    assert cells["fedavg", "many"]["paper"] is None
    runs = {path.parent: json.loads(path.read_text()) for path in Path("runs/reproduce/mine").glob("*/summary.json")}
    last = sorted(s["protocols"]["global"]["accuracy"]["last"] for s in runs.values() if s["rounds"] == 3 and "global" in s["protocols"])
    assert sorted(cells["fedavg", "many"]["values"]) == last
    assert [each["verdict"] for each in result["claims"]] == ["not judged", "not testable"]
    assert "More rounds are better." in Path("results/result.html").read_text()
    page = Path("results/result.md").read_text()
    assert "| fedavg | 50.00% |" in page
    assert "- everything" in page
    assert "we have no phones" in page
    assert "| not judged | smoke scale only shows that the recipe runs |" in page
    assert "what the verdicts rest on" not in page
    assert "not run" in call("mine.toml", "--scale", "paper")[1]
    assert len(list(Path("runs/reproduce/mine").glob("*/summary.json"))) == len(runs)  # all of it was there


SHARED = """
title = "Digits"
paper = "Nobody, 2026"
numbers = "Made up."
columns = ["last", "private", "rounds", "new_clients"]

[experiment]
name = "tiny"
rounds = 2
data = { source = "digits", train = 300, test = 100 }
partition = { name = "iid", clients = 5, validation = 0.2 }
model = { name = "mlp", hidden = [16] }
method = "fedavg"
new_clients = { count = 2, epochs = 3 }
training.optimiser = { name = "sgd", lr = 0.1 }
engine = { name = "inline" }  # the bits are those of any
evaluation = { protocols = ["global", "local_val"], targets = [0.15] }

[[tables]]
name = "MLP"
rows = [{ name = "run", paper = [0.5, 0.75, 12, 0.25] }, { name = "skipped", paper = [0.5, 0.75, 12, 0.25] }]

[[changes]]
protocol = "global"
measure = "last"

[[changes]]
column = "private"
protocol = "local_val"

[[changes]]
column = "rounds"
measure = "rounds"
target = 0.15

[[changes]]
column = "new_clients"
measure = "new client accuracy"
epoch = 2

[[changes]]
row = "skipped"
skip = true

[scales.smoke]
seeds = [0]
takes = "seconds"

[[claims]]
text = "Phones get warm."
untestable = "we have no phones"
"""


def test_cells_of_one_experiment_share_a_run_whatever_they_measure(call) -> None:
    Path("mine.toml").write_text(SHARED)
    assert call("mine.toml", "--scale", "smoke", "--out", "results")[0] == 0
    (summary,) = [json.loads(path.read_text()) for path in Path("runs/reproduce/mine").glob("*/summary.json")]
    found = {cell["column"]: cell["values"] for cell in json.loads(Path("results/result.json").read_text())["cells"]}
    assert found["last"] == [summary["protocols"]["global"]["accuracy"]["last"]]
    assert found["private"] == [summary["protocols"]["local_val"]["accuracy"]["last"]]
    assert found["rounds"] == [None]  # two rounds have no mean of five
    curves = [new_client["accuracy"] for new_client in summary["new_clients"]]
    assert found["new_clients"] == [pytest.approx((curves[0][2] + curves[1][2]) / 2)]
    assert len({tuple(curve) for curve in curves}) == 2
    page = Path("results/result.md").read_text()
    assert "| skipped | 50.00% | not run | 75.00% | not run | 12 (1.0×) | not run | 25.00% | not run |" in page


def test_rounds_are_those_of_the_mean_of_five_evaluations(call) -> None:
    Path("mine.toml").write_text(SHARED.replace("rounds = 2", "rounds = 6").replace("target = 0.15", "target = 0.05"))
    assert call("mine.toml", "--scale", "smoke", "--out", "results")[0] == 0
    found = {cell["column"]: cell["values"] for cell in json.loads(Path("results/result.json").read_text())["cells"]}
    assert found["rounds"] == [5.0]


def test_one_client_and_another_metric_can_be_asked_for(call) -> None:
    one = '[[changes]]\ncolumn = "private"\nclient = 1\nmetric = "top5"\n'
    Path("mine.toml").write_text(SHARED.replace("[scales.smoke]", f"{one}\n[scales.smoke]"))
    assert call("mine.toml", "--scale", "smoke", "--out", "results")[0] == 0
    [ledger] = Path("runs/reproduce/mine").glob("*/ledger.jsonl")
    wanted = {"protocol": "local_val", "client": 1, "metric": "top5"}
    seen = [event for line in ledger.read_text().splitlines() if wanted.items() <= (event := json.loads(line)).items()]
    found = {cell["column"]: cell["values"] for cell in json.loads(Path("results/result.json").read_text())["cells"]}
    assert found["private"] == [seen[-1]["value"]]


def test_what_is_done_can_be_looked_at_before_the_rest_is(call) -> None:
    Path("mine.toml").write_text(RECIPE)
    code, _, err = call("mine.toml", "--scale", "smoke", "--done")
    assert code == 2
    assert "leave out --done to run them" in err
    call("mine.toml", "--scale", "smoke")
    Path("mine.toml").write_text(RECIPE.replace("seeds = [0, 1]", "seeds = [0, 1, 2]"))
    result = json.loads(call("mine.toml", "--scale", "smoke", "--done", "--json")[1])
    assert (result["seeds"], result["planned"]) == ([0, 1], [0, 1, 2])
    assert {len(cell["values"]) for cell in result["cells"]} == {2}


def test_a_resumed_or_repeated_recipe_gives_the_same_table_to_the_last_digit(call) -> None:
    Path("mine.toml").write_text(RECIPE)
    tables = [json.loads(call("mine.toml", "--scale", "smoke", "--runs", folder, "--json")[1])["cells"] for folder in ("a", "b")]
    assert tables[0] == tables[1]


def test_seeds_of_an_earlier_result_are_not_run_again(call) -> None:
    Path("mine.toml").write_text(RECIPE)
    call("mine.toml", "--scale", "smoke", "--runs", "a", "--out", "first")
    Path("mine.toml").write_text(RECIPE.replace("seeds = [0, 1]", "seeds = [0, 1, 2]"))
    whole = json.loads(call("mine.toml", "--scale", "smoke", "--runs", "a", "--json")[1])
    joined = json.loads(
        call("mine.toml", "--scale", "smoke", "--runs", "b", "--earlier", "first/result.json", "--out", "second", "--json")[1]
    )
    assert joined["seeds"] == [0, 1, 2]
    assert all("-s2-" in each.name for each in Path("b").glob("*-s*"))
    assert (joined["cells"], joined["claims"], joined["runs"]) == (whole["cells"], whole["claims"], whole["runs"])
    assert joined["about"]["of an earlier result"].startswith("seeds 0, 1: ")
    again = json.loads(call("mine.toml", "--scale", "smoke", "--runs", "c", "--earlier", "second/result.json", "--json")[1])
    assert again["cells"] == whole["cells"]
    assert not Path("c").exists() or not list(Path("c").glob("*-s*"))


def test_an_earlier_result_of_something_else_is_refused(call, monkeypatch) -> None:
    Path("mine.toml").write_text(RECIPE)
    call("mine.toml", "--scale", "smoke", "--out", "first")
    Path("mine.toml").write_text(RECIPE.replace("rounds = ", "rounds = 1"))
    code, _, err = call("mine.toml", "--scale", "smoke", "--earlier", "first/result.json")
    assert code == 2
    assert "of seed 0 its runs are not those of this code, recipe and data" in err
    for wrong, said in (("nothere.json", "cannot be read"), ("mine.toml", "expected the result.json of this recipe")):
        code, _, err = call("mine.toml", "--scale", "smoke", "--earlier", wrong)
        assert code == 2
        assert said in err


def test_new_clients_accuracy_is_after_some_epoch(call) -> None:
    Path("mine.toml").write_text(SHARED.replace("epoch = 2\n", ""))
    code, _, err = call("mine.toml", "--scale", "smoke")
    assert code == 2
    assert "for new client accuracy an epoch" in err


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('left = "MLP / fedavg / many"', 'left = "MLP / fedavg / mny"', "is no cell, did you mean 'MLP / fedavg / many'"),
        ('row = "local"\nprotocol', 'row = "locl"\nprotocol', "a change is for no cell"),
        ('paper = [0.5, "-"]', "paper = [0.5]", "needs a number, or '-', for each of the 2 columns"),
        ('measure = "last"\n', "", "give every cell a measure"),
        ('relation = ">"', 'relation = "="', "relation"),
        ('relation = ">"', 'relation = "~"', "'~' needs a margin"),
        ("rows = [", "rwos = [", "no such key here, did you mean 'rows'? Valid: name, rows"),
        ("title", "titel", "titel = 'Digits': no such key here, did you mean 'title'?"),
    ],
)
def test_mistakes_in_a_recipe_are_sentences(call, old, new, sentence) -> None:
    Path("mine.toml").write_text(RECIPE.replace(old, new))
    code, _, err = call("mine.toml", "--scale", "smoke")
    assert code == 2
    assert sentence in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("mcmahan",), "did you mean 'mcmahan-table2'"),
        (("mcmahan-table2", "--scale", "stdy"), "did you mean 'study'"),
        ((), "either the name of a recipe or --list"),
    ],
)
def test_mistakes_on_the_command_line(call, words, sentence) -> None:
    code, _, err = call(*words)
    assert code == 2
    assert sentence in err


@pytest.mark.parametrize("name", list(recipes()))
def test_every_recipe_is_whole_at_every_scale(name) -> None:
    recipe = Recipe.load(name)
    assert set(recipe.scales) == {"smoke", "study", "paper"}
    for scale in recipe.scales:
        assert list(cells_of(recipe, scale))


@pytest.mark.parametrize("name", list(recipes()))
def test_every_setting_of_the_papers_scale_says_whose_it_is(name) -> None:
    recipe = Recipe.load(name)
    settings = settings_of(recipe)
    under = {key: [each for each in settings if each == key or each.startswith(f"{key}.")] for key in recipe.origin}
    assert [key for key, found in under.items() if not found] == []
    assert settings - {each for found in under.values() for each in found} == set()


@pytest.mark.parametrize("name", list(recipes()))
def test_a_study_has_the_seeds_that_its_power_calculation_asks_for(name) -> None:
    recipe = Recipe.load(name)
    study, ran = recipe.scales["study"], dict(cells_of(recipe, "study")).keys()
    family = [each for claim in recipe.claims if claim.number for each in claim.comparisons if ran >= set(map(key_of, each.cells))]
    assert all(each.comparisons == len(family) for each in study.power)  # those that the correction is for
    assert all(each.seeds <= len(study.seeds) for each in study.power)
    assert not any(seed >= 900 for seed in study.seeds)  # those are the pilots'


@pytest.mark.parametrize("name", list(recipes()))
def test_every_claim_of_a_paper_is_one_that_it_makes(name) -> None:
    known = {claim.number for paper in papers() for claim in paper.claims}
    assert {claim.number for claim in Recipe.load(name).claims if claim.number} <= known


def test_every_table_and_figure_of_the_five_papers_has_a_recipe_or_a_reason() -> None:
    covered = {item for name in recipes() for item in Recipe.load(name).covers}
    listed = {item for paper in papers() for item in paper.items}
    assert covered == listed


def test_the_paper_scale_is_as_published_whatever_was_asked_before() -> None:
    recipe = Recipe.load("mcmahan-table2")
    list(cells_of(recipe, "study"))
    plan = dict(cells_of(recipe, "paper"))[Key("CNN", "E=5, B=10", "IID")]
    assert plan.target == 0.99
    assert plan.experiment.partition == IID(clients=100)
    assert (plan.experiment.model, plan.experiment.cohort, plan.experiment.data.train) == ((CNN(),), 10, None)
    assert (plan.experiment.training.epochs, plan.experiment.training.batch) == (5, 10)


ONE_OF_EACH_PAPER = ("fedmmd-figure4d", "fedfusion-table2", "split-tables", "fccl-table3", "fml-table1")


@pytest.mark.parametrize("name", rest_is_long(recipes(), short=ONE_OF_EACH_PAPER))
def test_the_smoke_scale_runs(call, name) -> None:
    code, out, _ = call(name, "--scale", "smoke", "--json")
    assert code == 0
    result = json.loads(out)
    assert len(result["cells"]) == len(list(cells_of(Recipe.load(name), "smoke")))
    assert {each["verdict"] for each in result["claims"]} <= {"not judged", "not testable"}


def test_the_list_lists(call) -> None:
    assert "mcmahan-table2" in call("--list")[1]
    rows = {row["name"]: row for row in json.loads(call("--list", "--json")[1])}
    assert list(rows) == list(recipes())
    assert rows["fedmmd-figure4d"]["covers"] == "000 Figure 4d; claims 000.7, 000.1"
    assert rows["mcmahan-table2"]["covers"] == ""
