"""The page of methods has a section for every registered method, and its contents lead to them."""

from __future__ import annotations

import re
from pathlib import Path

from coterie.methods import METHODS

PAGE = (Path(__file__).parents[1] / "docs" / "methods.md").read_text(encoding="utf-8")
HEADINGS = re.findall(r"^## (.+)$", PAGE, flags=re.MULTILINE)


def anchor(heading: str) -> str:
    """How GitHub addresses a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_every_registered_method_has_a_section() -> None:
    named = {name for heading in HEADINGS for name in re.findall(r"\(`([\w-]+)`\)$", heading)}
    assert set(METHODS.specs) <= named


def test_the_contents_lead_to_every_section_of_a_method() -> None:
    links = set(re.findall(r"\]\(#([^)]+)\)", PAGE))
    assert links == {anchor(heading) for heading in HEADINGS if heading.endswith("`)")}
