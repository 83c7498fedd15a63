"""The pages of `examples/` run as they are, and say what they promise."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from coterie import run, small_experiment
from coterie.engines import Inline
from coterie.methods import Ditto

FOLDER = Path(__file__).parents[1] / "examples"


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("01_fedavg_from_scratch.py", ["round 30  test accuracy 0."]),
        ("02_your_own_method.py", ["my-ditto keeps the contract", "\nlocal ", "\nfedavg ", "\nmy-ditto 0 ", "\nmy-ditto 1 "]),
    ],
)
def test_a_page_runs_as_a_script(page, said, tmp_path) -> None:
    done = subprocess.run([sys.executable, str(FOLDER / page)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [sentence for sentence in said if sentence not in done.stdout] == []
    assert list(tmp_path.iterdir()) == []


def test_every_page_is_run() -> None:
    (mark,) = test_a_page_runs_as_a_script.pytestmark
    here = {page for page, _ in mark.args[1]}
    assert here | {"03_three_hospitals.py"} == {path.name for path in FOLDER.glob("*.py")}  # that one by the tutorial of docs/deploy.md


def own_method() -> ModuleType:
    spec = importlib.util.spec_from_file_location("your_own_method", FOLDER / "02_your_own_method.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["your_own_method"] = module  # where a run looks for its class
    spec.loader.exec_module(module)
    return module


def test_the_method_of_the_page_has_the_bits_of_ours(tmp_path) -> None:
    theirs, ours = own_method().MyDitto(lam=0.5), Ditto(lam=0.5)
    results = [run(small_experiment(method), tmp_path / method.name, engine=Inline()) for method in (theirs, ours)]
    assert results[0].summary["digest"] == results[1].summary["digest"]


def test_the_page_needs_nothing_but_the_public_surface() -> None:
    tree = ast.parse((FOLDER / "02_your_own_method.py").read_text(encoding="utf-8"))
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert modules == {"coterie", "tempfile", "typing"}
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Import)]
