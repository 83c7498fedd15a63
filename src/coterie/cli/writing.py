"""Experiments as TOML files: all that is set, or all that can be, with a sentence for each key."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from textwrap import wrap
from typing import Any

from coterie.cli.catalogue import REQUIRED, Setting, settings_of

__all__ = ["as_toml", "commented"]

SECTIONS = {
    "data": ("coterie.running.sections", "Data"),
    "training": ("coterie.training.settings", "Training"),
    "evaluation": ("coterie.running.sections", "Evaluation"),
    "admission": ("coterie.running.admission", "Admission"),
    "engine": ("coterie.running.sections", "EngineSettings"),
}
"""The tables of an experiment whose keys are always the same."""
ABOUT = {
    "name": "What runs of it are called.",
    "partition": "Who holds what: a name or a table, see `coterie list partitions`.",
    "model": "The network: a name or a table, or a list of them for clients that differ; see `coterie list models`.",
    "method": "What is run: a name or a table, see `coterie list methods`; `coterie list methods fedprox` has its settings.",
    "methods": "Settings of methods that this one is compared with, by name: methods.fedprox.mu = 0.1",
    "source": "Where samples come from: a name or a table, or a list of them that become domains; see `coterie list datasets`.",
    "seed": "Decides all that is drawn; runs with different seeds are independent.",
    "rounds": "How often clients are asked.",
    "new_clients": "Clients held out of training that join at the end: { count = 2, epochs = 10 }",
}
"""What the source does not say below a key."""
WIDTH = 118


def as_toml(table: Mapping[str, Any]) -> str:
    """An experiment as `Experiment.resolved` has it, as a file.

    >>> print(as_toml({"name": "demo", "seed": None, "training": {"epochs": 2}}), end="")
    name = "demo"
    <BLANKLINE>
    [training]
    epochs = 2
    """
    plain = {key: value for key, value in table.items() if value is not None and not _is_section(key, value)}
    lines = [f"{key} = {_value(value)}" for key, value in plain.items()]
    for key, value in table.items():
        if _is_section(key, value):
            lines += ["", f"[{key}]", *(f"{name} = {_value(each)}" for name, each in value.items() if each is not None)]
    return "\n".join(lines) + "\n"


def commented(table: Mapping[str, Any], file: str) -> str:
    """An experiment with every key that there is: what it does not set is a comment with the default."""
    lines = [f"# An experiment of Coterie. Run it: coterie run {file}. Compare: coterie compare {file} --methods fedavg,fedprox"]
    lines += ["# A key that is commented out has the value that it has anyway. All keys as they are used: coterie show " + file, ""]
    own = [each for each in settings_of("coterie.running.experiment", "Experiment") if each.name not in SECTIONS]
    lines += [line for each in own for line in _lines(each, table)]
    for key, where in SECTIONS.items():
        lines += [f"[{key}]", *(line for each in settings_of(*where) for line in _lines(each, table.get(key, {})))]
    return "\n".join(lines)


def _lines(setting: Setting, table: Mapping[str, Any]) -> Iterator[str]:
    """A sentence, and below it the key with its value."""
    sentence = (
        setting.sentence if setting.what else f"{ABOUT.get(setting.name, '')} ({setting.type})" if setting.type else ABOUT[setting.name]
    )
    yield from (f"# {line}" for line in wrap(sentence.strip().removesuffix("()").strip(), WIDTH))
    if setting.name in table:
        yield f"{setting.name} = {_value(table[setting.name])}"
    elif setting.default not in ("not set", REQUIRED, ""):
        yield f"# {setting.name} = {setting.default}"
    else:
        yield f"# {setting.name} ="
    yield ""


def _is_section(key: str, value: Any) -> bool:
    return key in SECTIONS and isinstance(value, Mapping)


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        inner = ", ".join(f"{_key(key)} = {_value(each)}" for key, each in value.items() if each is not None)
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_value(each) for each in value)}]"
    return json.dumps(value, ensure_ascii=False)


def _key(key: str) -> str:
    return key if key.replace("-", "").replace("_", "").isalnum() else json.dumps(key)
