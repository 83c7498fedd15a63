"""The README's tree has every package, its commands are the Makefile's, links lead to files, and the citation is of this version."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import coterie

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_tree_has_every_package_and_no_folder_that_is_gone() -> None:
    tree = README.split("## Where things are")[1].split("| page |")[0]
    inside = re.findall(r"^      (\w+)/", tree, flags=re.MULTILINE)
    folders = [path.name for path in (ROOT / "src" / "coterie").iterdir() if path.is_dir() and path.name != "__pycache__"]
    assert sorted(inside) == sorted(folders)
    beside = re.findall(r"^    (\w+)/ .*   (\w+)/ ", tree, flags=re.MULTILINE)
    assert len(beside) == 2
    assert all((ROOT / name).is_dir() for pair in beside for name in pair)


def test_links_lead_to_files() -> None:
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")):
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
