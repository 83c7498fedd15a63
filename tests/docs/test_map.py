"""The committed map of modules is what docs/map.py writes today."""

from __future__ import annotations

from pathlib import Path

import pytest
from docs import map as modules

ROOT = Path(__file__).parents[2]


def test_the_committed_map_is_current() -> None:
    assert (ROOT / "docs" / "map.md").read_text(encoding="utf-8") == modules.written(), "run python docs/map.py"


def test_every_module_is_on_it_once_and_says_what_it_is() -> None:
    lines = [line for line in modules.written().splitlines() if line.startswith("- ")]
    for path in sorted((ROOT / "src").rglob("*.py")):
        (line,) = [line for line in lines if f"(../{path.relative_to(ROOT).as_posix()})" in line]
        assert line.split("): ", 1)[1].strip(), path


@pytest.mark.parametrize(
    ("docstring", "sentence"),
    [
        ("One. Two.", "One"),
        ("After Li et al. 2020, in\nour words. More.", "After Li et al. 2020, in our words"),
        ("No full stop", "No full stop"),
        ("Ends in a colon:\n\n    code. here", "Ends in a colon"),
        ("Version 1.2 of it. More.", "Version 1.2 of it"),
    ],
)
def test_the_first_sentence(docstring, sentence, tmp_path) -> None:
    (tmp_path / "module.py").write_text(f'"""{docstring}"""\n', encoding="utf-8")
    assert modules.first_sentence(tmp_path / "module.py") == sentence
