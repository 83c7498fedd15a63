"""`coterie list`: what can be named in an experiment."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from importlib import import_module
from typing import TYPE_CHECKING, Any

from coterie.cli.options import Json
from coterie.cli.sentences import console

if TYPE_CHECKING:
    from coterie.settings import Registry

__all__ = ["Kind", "list_command"]


class Kind(StrEnum):
    """What can be listed."""

    methods = "methods"
    models = "models"
    datasets = "datasets"
    partitions = "partitions"
    selections = "selections"
    regularisers = "regularisers"
    optimisers = "optimisers"
    schedules = "schedules"
    engines = "engines"
    protocols = "protocols"
    experiments = "experiments"


REGISTRIES = {
    Kind.methods: ("methods", "METHODS"),
    Kind.models: ("models", "MODELS"),
    Kind.datasets: ("data.sources", "SOURCES"),
    Kind.partitions: ("data.partitions", "PARTITIONS"),
    Kind.selections: ("data.selection", "SELECTIONS"),
    Kind.regularisers: ("methods.regularisers", "REGULARISERS"),
    Kind.optimisers: ("training.optimisers", "OPTIMISERS"),
    Kind.schedules: ("training.optimisers", "SCHEDULES"),
    Kind.engines: ("engines", "ENGINES"),
}
"""Where each kind of thing is listed: imported when it is asked for."""


def list_command(kind: Kind, as_json: Json = False) -> None:
    """What can be named in an experiment."""
    from coterie.results.tables import simple

    rows = [{"name": name, "what": what} for name, what in _listed(kind).items()]
    if as_json:
        sys.stdout.write(json.dumps(rows) + "\n")
    else:
        console.print(simple(kind.value, ["name", "what it is"], [tuple(row.values()) for row in rows]))


def _listed(kind: Kind) -> dict[str, str]:
    """Names of one kind, with a sentence each."""
    if kind is Kind.experiments:
        from coterie.running.files import embedded

        return {name: path.read_text(encoding="utf-8").splitlines()[0].lstrip("# ") for name, path in embedded().items()}
    if kind is Kind.protocols:
        from coterie.protocols import PROTOCOLS

        return {name: each.sentence for name, each in PROTOCOLS.items()}
    home, name = REGISTRIES[kind]
    registry: Registry[Any] | dict[str, type] = getattr(import_module(f"coterie.{home}"), name)
    classes = registry if isinstance(registry, dict) else registry.specs
    return {name: (each.__doc__ or "").strip().split("\n")[0] for name, each in classes.items()}
