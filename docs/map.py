"""Writes docs/map.md: every module in one line, which is the first sentence of its docstring.

    python docs/map.py

A test holds the committed map against what this writes, so run it after adding, moving or renaming a module.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "coterie"
BESIDE = ("examples", "studies", "benchmarks", "docs")
"""Folders of scripts beside the package."""
SENTENCE = re.compile(r".+?(?<!et al)(?<!e\.g)(?<!i\.e)\.(?=\s|$)")
"""Up to the first full stop that ends a sentence and not an abbreviation."""


def first_sentence(path: Path) -> str:
    """The first sentence of a module's docstring, on one line, without its full stop."""
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    paragraph = " ".join(text.split("\n\n")[0].split())
    found = SENTENCE.match(paragraph)
    return (found.group() if found else paragraph).rstrip(".:")


def packages() -> list[Path]:
    """The package and every package in it, outer ones first."""
    return sorted((path.parent for path in PACKAGE.rglob("__init__.py")), key=lambda folder: folder.relative_to(ROOT).parts)


def section(title: str, files: list[Path]) -> Iterator[str]:
    """A heading and a line for each file."""
    yield from ("", f"## {title}", "")
    for path in files:
        yield f"- [`{path.name}`](../{path.relative_to(ROOT).as_posix()}): {first_sentence(path)}"


def written() -> str:
    """The whole map."""
    lines = ["# Every module in one line", "", "Written by `python docs/map.py` from the modules' docstrings."]
    for folder in packages():
        inside = sorted(path for path in folder.glob("*.py") if path.name != "__init__.py")
        name = ".".join(folder.relative_to(PACKAGE.parent).parts)
        lines += section(f"`{name}`", [folder / "__init__.py", *inside])
    for beside in BESIDE:
        lines += section(f"`{beside}/`", sorted((ROOT / beside).glob("*.py")))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    (ROOT / "docs" / "map.md").write_text(written(), encoding="utf-8")
