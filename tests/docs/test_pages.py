"""What the pages tell a reader to do works, and prints what they show."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.docs.pages import ROOT, blocks, differences, played
from tests.forms import rest_is_long

FIRST = [ROOT / "README.md", ROOT / "docs" / "index.md", ROOT / "docs" / "tutorials" / "first-comparison.md"]
"""What everybody reads; the short form does no more."""
PAGES = [*FIRST[:2], *sorted((ROOT / "docs" / "tutorials").glob("*.md"))]


@pytest.mark.parametrize("page", rest_is_long(PAGES, short=FIRST), ids=lambda page: page.stem)
def test_a_page_does_what_it_says(page: Path, tmp_path: Path) -> None:
    for block, printed in played(page.read_text(encoding="utf-8"), tmp_path):
        assert block.text.strip(), f"{page.name} shows nothing of what was printed: {printed}"
        assert differences(block.text, printed) == [], printed


def test_another_word_is_noticed_and_another_number_is_not() -> None:
    printed = "method   global\nfedavg   87.98%  no difference shown\nditto  90%"
    assert differences("method global\n...\nditto  12.5%", printed) == []
    assert differences("method global\nfedprox  87.98%", printed) == ["fedprox  87.98%"]
    assert differences("ditto  90%\nmethod global", printed) == ["method global"]


def test_every_block_of_a_tutorial_is_run_or_shown() -> None:
    for page in PAGES:
        assert {block.language for block in blocks(page.read_text(encoding="utf-8"))} <= {"bash", "python", "sh", "toml", "text", "csv"}, (
            page.name
        )
