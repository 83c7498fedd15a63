"""What the five papers claim, and which tables and figures they show it with. Data, a TOML file."""

from __future__ import annotations

import json
from importlib import resources

from coterie.running.files import load_toml
from coterie.running.sections import Section

__all__ = ["Paper", "PaperClaim", "papers"]


class PaperClaim(Section):
    """One claim of a paper, in our words."""

    number: str
    text: str
    effect: str
    """As the paper prints it."""
    some: bool = False
    """Whether it is said of some case only, so that one part that is shown is enough."""
    otherwise: str = ""
    """Why no recipe tests it, where none does."""


class Paper(Section):
    """A paper."""

    id: str
    name: str
    citation: str
    items: tuple[str, ...]
    """Its tables and figures with something to be run."""
    claims: tuple[PaperClaim, ...]


def papers() -> list[Paper]:
    """The five papers.

    >>> [paper.id for paper in papers()]
    ['000', '001', '002', '003', '004']
    """
    with resources.as_file(resources.files("coterie.studies") / "claims.toml") as path:
        return [Paper.model_validate_json(json.dumps(each)) for each in load_toml(path)["papers"]]
