"""The pages tell the truth: methods.md has a section for every method, architecture.md names functions and tests that exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from coterie.methods import METHODS

ROOT = Path(__file__).parents[2]
METHODS_PAGE, ARCHITECTURE = ((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("methods.md", "architecture.md"))
HEADINGS = re.findall(r"^## (.+)$", METHODS_PAGE, flags=re.MULTILINE)


def anchor(heading: str) -> str:
    """How GitHub addresses a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_every_registered_method_has_a_section() -> None:
    named = {name for heading in HEADINGS for name in re.findall(r"\(`([\w-]+)`\)$", heading)}
    assert set(METHODS.specs) <= named


def test_the_contents_lead_to_every_section_of_a_method() -> None:
    links = set(re.findall(r"\]\(#([^)]+)\)", METHODS_PAGE))
    assert links == {anchor(heading) for heading in HEADINGS if heading.endswith("`)")}


def defined(node: ast.AST, inside: str = "") -> Iterator[str]:
    """Functions and classes of a module, and what is in its classes as `Class.name`."""
    for each in ast.iter_child_nodes(node):
        if isinstance(each, ast.FunctionDef | ast.ClassDef):
            yield inside + each.name
        if isinstance(each, ast.ClassDef):
            yield from defined(each, f"{each.name}.")


def names_in(path: Path) -> set[str]:
    return set(defined(ast.parse(path.read_text(encoding="utf-8"))))


def test_the_functions_that_the_architecture_page_names_exist() -> None:
    source = ROOT / "src" / "coterie"
    named = re.findall(r"`([\w/]+\.py):([\w.]+)`", ARCHITECTURE)
    assert len(named) > 30
    assert [f"{path}:{name}" for path, name in named if name not in names_in(source / path)] == []
    everywhere = {name for path in source.rglob("*.py") for name in names_in(path)}
    assert set(re.findall(r"`([A-Z]\w+\.\w+)`", ARCHITECTURE)) <= everywhere


def test_the_tests_that_the_architecture_page_names_exist() -> None:
    named = set(re.findall(r"`(test_\w+)`", ARCHITECTURE))
    assert len(named) > 20
    assert named <= {name for path in (ROOT / "tests").rglob("test_*.py") for name in names_in(path)}


def test_the_tests_that_the_deployment_page_names_exist() -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")))
    assert len(named) > 12
    assert named <= {name for path in (ROOT / "tests").rglob("test_*.py") for name in names_in(path)}
