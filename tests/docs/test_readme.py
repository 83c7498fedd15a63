"""The README's table has every method, its commands are the Makefile's, links lead to files, and the citation is of this version."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import coterie
from coterie.methods import METHODS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_table_has_every_method() -> None:
    table = README.split("\n## Methods")[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert sorted(name for row in rows for name in re.findall(r"`([\w-]+)`", row)) == sorted(METHODS.specs)


def test_it_says_how_many_methods_take_different_architectures() -> None:
    mixing = [name for name, method in METHODS.specs.items() if method.mixes_architectures and name != "local"]
    assert f"| {len(mixing)} methods above |" in README


def test_links_lead_to_files() -> None:
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")):
        links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
        assert [link for link in links if not (page.parent / link).exists()] == [], page.name


def test_the_two_commands_exist() -> None:
    targets = (ROOT / "Makefile").read_text()
    assert all(f"\n{target}:" in targets for target in ("demo", "test"))


def test_the_citation_is_of_this_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    cited = (ROOT / "CITATION.cff").read_text(encoding="utf-8").splitlines()
    assert {f"version: {coterie.__version__}", f"license: {project['license']}"} <= set(cited)


def test_the_changelog_begins_with_this_version() -> None:
    first = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert first is not None
    assert first.group(1) == coterie.__version__
