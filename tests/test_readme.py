"""The README's map has every file of the package, and its commands are the Makefile's."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_file_is_on_the_map() -> None:
    text = (ROOT / "README.md").read_text()
    missing = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "src").rglob("*.py")) if str(path.relative_to(ROOT)) not in text]
    assert missing == []


def test_no_file_on_the_map_is_gone() -> None:
    named = [line.split("`")[1] for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("- `") and ".py`" in line]
    assert [name for name in named if not list(ROOT.glob(name))] == []


def test_the_two_commands_exist() -> None:
    targets = (ROOT / "Makefile").read_text()
    assert all(f"\n{target}:" in targets for target in ("demo", "test"))
