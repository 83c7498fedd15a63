"""Recipes: data in, our number beside the paper's out, a verdict on each claim."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from coterie.cli import main as cli
from coterie.cli.sentences import console
from coterie.data.partitions import IID
from coterie.models import CNN
from coterie.studies.recipe import Claim, Comparison, Key, Recipe, cells_of, recipes
from coterie.studies.reproduce import Measured, judge

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


def cell(*values: float | None, rounds: int = 100) -> Measured:
    return Measured(None, "rounds", values, rounds)


@pytest.mark.parametrize(
    ("left", "right", "factor", "found"),
    [
        (cell(10.0), cell(20.0), 1.0, True),
        (cell(20.0), cell(10.0), 1.0, False),
        (cell(10.0), cell(10.0), 1.0, False),
        (cell(9.0, 13.0), cell(10.0, 14.0), 1.0, True),
        (cell(10.0), cell(50.0), 0.1, False),
        (cell(10.0), cell(None), 1.0, True),
        (cell(10.0), cell(None), 0.05, None),
        (cell(None), cell(90.0), 1.0, False),
        (cell(None), cell(None), 1.0, None),
        (cell(10.0, None, rounds=20), cell(30.0, 30.0), 1.0, None),
    ],
)
def test_a_comparison_knows_what_a_limit_of_rounds_leaves_open(left, right, factor, found) -> None:
    cells = {Key("t", "l", "c"): left, Key("t", "r", "c"): right}
    less = Comparison(left="t / l / c", relation="<", right="t / r / c", factor=factor)
    assert judge(Claim(text="", comparisons=(less,)), cells).comparisons == (found,)


def test_more_is_less_turned_round_and_a_number_will_do() -> None:
    cells = {Key("t", "a", "c"): cell(10.0)}
    claim = Claim(text="", comparisons=tuple(Comparison(left="t / a / c", relation=r, right=n) for r, n in ((">", 9.0), ("<", 9.0))))
    assert judge(claim, cells).comparisons == (True, False)


@pytest.mark.parametrize(
    ("rows", "verdict"),
    [
        ("aa", "holds"),
        ("ab", "holds in part"),
        ("bb", "does not hold here"),
        ("ax", "holds in part"),
        ("bx", "does not hold here"),
        ("xx", "not testable here"),
        ("", "not testable here"),
    ],
)
def test_verdicts(rows, verdict) -> None:
    cells = {Key("t", "a", "c"): cell(10.0), Key("t", "b", "c"): cell(30.0)}
    comparisons = tuple(Comparison(left=f"t / {row} / c", relation="<", right=20.0) for row in rows)
    assert judge(Claim(text="", comparisons=comparisons), cells).verdict == verdict


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
    assert [each["verdict"] for each in result["claims"]] == ["not judged", "not testable here"]
    page = Path("results/result.md").read_text()
    assert "| fedavg | 50.00% |" in page
    assert "- everything" in page
    assert "we have no phones" in page
    assert "| not judged | smoke scale only shows that the recipe runs |" in page
    assert "hold" not in page.partition("the paper's claims")[2].partition("we have no phones")[0]
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
    assert found["rounds"] == [summary["targets"]["global"]["0.15"]["first_crossing"]["round"]]
    curves = [new_client["accuracy"] for new_client in summary["new_clients"]]
    assert found["new_clients"] == [pytest.approx((curves[0][2] + curves[1][2]) / 2)]
    assert len({tuple(curve) for curve in curves}) == 2
    page = Path("results/result.md").read_text()
    assert "| skipped | 50.00% | not run | 75.00% | not run | 12 (1.0×) | not run | 25.00% | not run |" in page


def test_a_target_that_is_not_listed_stops_a_run_under_its_own_protocol(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(SHARED.replace(", targets = [0.15]", ""))
    plans = {key.column: plan.experiment for key, plan in cells_of(Recipe.load("mine.toml"), "smoke")}
    assert plans["rounds"].evaluation.protocols == ("global",)
    assert plans["rounds"].evaluation.stop_at == 0.15
    assert plans["last"] == plans["private"] == plans["new_clients"] != plans["rounds"]


def test_new_clients_accuracy_is_after_some_epoch(call) -> None:
    Path("mine.toml").write_text(SHARED.replace("epoch = 2\n", ""))
    code, _, err = call("mine.toml", "--scale", "smoke")
    assert code == 2
    assert "for new client accuracy, an epoch" in err


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('left = "MLP / fedavg / many"', 'left = "MLP / fedavg / mny"', "is no cell, did you mean 'MLP / fedavg / many'"),
        ('row = "local"\nprotocol', 'row = "locl"\nprotocol', "a change is for no cell"),
        ('paper = [0.5, "-"]', "paper = [0.5]", "needs a number, or '-', for each of the 2 columns"),
        ('measure = "last"\n', "", "give every cell a measure"),
        ('relation = ">"', 'relation = "~"', "relation"),
        ("title", "titel", "title is missing"),
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
        (("mcmahan-table2", "--scale", "laptp"), "did you mean 'laptop'"),
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
    assert {"smoke", "laptop", "paper"} <= set(recipe.scales)
    for scale in recipe.scales:
        assert list(cells_of(recipe, scale))


def test_the_paper_scale_is_as_published_whatever_was_asked_before() -> None:
    recipe = Recipe.load("mcmahan-table2")
    list(cells_of(recipe, "laptop"))
    plan = dict(cells_of(recipe, "paper"))[Key("CNN", "E=5, B=10", "IID")]
    assert plan.target == 0.99
    assert plan.experiment.partition == IID(clients=100)
    assert (plan.experiment.model, plan.experiment.cohort, plan.experiment.data.train) == ((CNN(),), 10, None)
    assert (plan.experiment.training.epochs, plan.experiment.training.batch) == (5, 10)


@pytest.mark.parametrize("name", list(recipes()))
def test_the_smoke_scale_runs(call, name) -> None:
    code, out, _ = call(name, "--scale", "smoke", "--json")
    assert code == 0
    result = json.loads(out)
    assert len(result["cells"]) == len(list(cells_of(Recipe.load(name), "smoke")))
    assert {each["verdict"] for each in result["claims"]} <= {"not judged", "not testable here"}


def test_the_list_lists(call) -> None:
    assert "mcmahan-table2" in call("--list")[1]
    assert [row["name"] for row in json.loads(call("--list", "--json")[1])] == list(recipes())
