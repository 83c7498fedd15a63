"""The recipes of CONTRIBUTING.md work as they are written: each block of code becomes a file, each block of TOML an experiment."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

import coterie
from coterie import Experiment, FedAvg, check_method, run
from coterie.engines import Inline
from coterie.ledger import events

PAGE = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
BASE: dict[str, Any] = {
    "name": "recipe",
    "rounds": 2,
    "data": {"source": "digits"},
    "partition": {"name": "iid", "clients": 4},
    "model": {"name": "mlp", "hidden": [16]},
    "method": "fedavg",
    "training": {"epochs": 2, "batch": 16},
    "engine": {"name": "inline"},
}
MODEL = 4 * (64 * 16 + 16 + 16 * 10 + 10)
"""Payload bytes of the conformance suite's network: float32 weights and biases of 64-16-10."""


class Recipe(NamedTuple):
    """The code of a recipe, and how an experiment names what it makes."""

    code: str
    toml: str

    @property
    def module(self) -> str:
        """The name of the file in its first line."""
        return re.match(r"# (\w+)\.py\n", self.code).group(1)

    def experiment(self, **changes: Any) -> dict[str, Any]:
        """A small experiment on digits with what the recipe makes."""
        return {**BASE, **tomllib.loads(self.toml), **changes}


def _recipe(section: str) -> Recipe:
    return Recipe(*(re.search(rf"```{kind}\n(.*?)```", section, flags=re.DOTALL).group(1) for kind in ("python", "toml")))


SECTIONS = PAGE.split("## Adding things")[1].split("\n### ")[1:]
RECIPES = {section.partition("\n")[0]: _recipe(section) for section in SECTIONS}


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Writes a recipe's file where it can be imported, and imports it."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(name: str) -> ModuleType:
        recipe = RECIPES[name]
        (tmp_path / f"{recipe.module}.py").write_text(recipe.code, encoding="utf-8")
        monkeypatch.delitem(sys.modules, recipe.module, raising=False)
        return importlib.import_module(recipe.module)

    yield make
    for recipe in RECIPES.values():
        if recipe.code.startswith("# "):
            sys.modules.pop(recipe.module, None)


def test_everything_that_can_be_added_has_a_recipe() -> None:
    assert list(RECIPES) == ["A method", "A model", "A data set", "A partition", "A protocol", "An engine"]


def test_what_the_page_names_is_there() -> None:
    root = Path(coterie.__file__).parent
    dotted = set(re.findall(r"`(coterie\.[\w.]+)", PAGE))
    assert dotted
    for module, _, name in (each.rpartition(".") for each in dotted):
        assert hasattr(importlib.import_module(module), name) or importlib.import_module(f"{module}.{name}"), name
    assert [path for path in re.findall(r"`src/coterie/([\w/.]+)`", PAGE) if not (root / path).exists()] == []


@pytest.mark.parametrize("name", ["A method", "A model", "A data set", "A partition", "An engine"])
def test_what_a_recipe_makes_is_named_by_its_path_and_runs(name, made, tmp_path) -> None:
    made(name)
    plan = Experiment.parse(RECIPES[name].experiment())
    assert Experiment.parse(plan.resolved()) == plan
    assert run(plan, tmp_path / "run").accuracy() > 0.3


def test_the_recipes_method_keeps_the_contract_and_the_recipes_engine_has_the_same_bits(made) -> None:
    method, engine = made("A method").FedAvgM(beta=0.5), made("An engine").Backwards
    check_method(method, up=MODEL, down=MODEL, engines=[engine])


def test_the_recipes_method_without_momentum_is_fedavg(made, tmp_path) -> None:
    plans = [Experiment.parse(BASE).replace(method=method) for method in (made("A method").FedAvgM(beta=0.0), FedAvg())]
    still, plain = (run(plan, tmp_path / plan.method.name, engine=Inline()).state.group("model") for plan in plans)
    assert still == plain


def test_the_recipes_partition_halves(made) -> None:
    made("A partition")
    population = Experiment.parse(RECIPES["A partition"].experiment()).population()
    assert population.partition.train.sizes.tolist() == [721, 361, 180, 90, 90]


def test_a_file_among_the_methods_and_a_row_among_the_protocols_are_all_it_takes(tmp_path) -> None:
    """In a copy of the package: nothing else is touched, and an experiment names both by their names."""
    package = tmp_path / "src" / "coterie"
    shutil.copytree(Path(coterie.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "methods" / "fedavgm.py").write_text(RECIPES["A method"].code, encoding="utf-8")
    table = package / "protocols.py"
    first = "        Protocol(\n"
    row = f"        {RECIPES['A protocol'].code.strip()},\n"
    table.write_text(table.read_text(encoding="utf-8").replace(first, row + first, 1), encoding="utf-8")
    plan = RECIPES["A protocol"].experiment(method={"name": "fedavgm", "beta": 0.5})
    code = f"import coterie; coterie.run(coterie.Experiment.parse({plan!r}), {str(tmp_path / 'run')!r})"
    done = subprocess.run([sys.executable, "-c", code], cwd=package.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = [event for event in events(tmp_path / "run" / "ledger.jsonl") if event["event"] == "evaluation"]
    assert {event["protocol"] for event in lines} == {"start_val"}
    means = [event for event in lines if event["client"] is None and event["metric"] == "accuracy"]
    assert {event["clients"] for event in means} == {4}
