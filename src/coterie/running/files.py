"""Experiment files: where they are, what is in them, and how a key in a table of tables is set."""

from __future__ import annotations

import re
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

from coterie.errors import UserError, nearest

__all__ = ["assign", "embedded", "find", "load_toml", "parse_override", "toml_value", "without_nothing"]

BARE = re.compile(r"""(?<![\w."'-])(?!true\b|false\b)([A-Za-z][\w.:-]*)(?=\s*[],}])""")
"""A word in a list or at the end of an entry of a table, which TOML wants in quotes."""


def embedded() -> dict[str, Path]:
    """The experiments that come with Coterie, by name.

    >>> "digits-two-class" in embedded()
    True
    """
    folder = Path(str(resources.files("coterie"))) / "experiments"
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def find(path: str | Path) -> Path:
    """The file meant: a path, or the name of an embedded experiment."""
    if Path(path).is_file():
        return Path(path)
    known = embedded()
    if str(path) in known:
        return known[str(path)]
    if Path(path).is_dir():
        raise UserError(f"experiment '{path}' is a folder, expected a file or the name of an experiment: {', '.join(known)}")
    files = (str(file) for file in Path(path).parent.glob("*.toml") if file.is_file())
    raise UserError(f"experiment '{path}' is neither a file nor the name of one: {nearest(str(path), [*files, *known])}")


def load_toml(path: Path) -> dict[str, Any]:
    """A TOML file as a table."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not TOML: {error}") from None


def toml_value(text: str) -> Any:
    """A value as TOML writes it, or else a plain string.

    >>> toml_value("0.01"), toml_value("fedprox")
    (0.01, 'fedprox')
    """
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text.strip()


def parse_override(override: str) -> tuple[str, Any]:
    """The key and the value of `a.b=value`; the value is TOML, or else a plain string.

    >>> parse_override("method.mu=0.01")
    ('method.mu', 0.01)
    """
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise UserError(f"--set {override}: expected key=value, such as method.mu=0.01")
    value = toml_value(text)
    if isinstance(value, str) and text.lstrip().startswith(("{", "[")):
        quoted = BARE.sub(r'"\1"', value)
        mended = isinstance(toml_value(quoted), dict | list)
        expected = f"strings in quotes, as in {key.strip()}={quoted}" if mended else "a table or a list, closed, with strings in quotes"
        raise UserError(f"--set {override}: not TOML, expected {expected}")
    return key.strip(), value


def assign(table: dict[str, Any], path: str, value: Any) -> None:
    """Set the key at a dotted path, making tables on the way; a name on the way becomes a table with that name.

    >>> table = {"method": "fedprox"}
    >>> assign(table, "method.mu", 0.01)
    >>> table
    {'method': {'name': 'fedprox', 'mu': 0.01}}
    """
    *parents, last = path.split(".")
    for parent in parents:
        inner = table.get(parent, {})
        table[parent] = inner = {"name": inner} if isinstance(inner, str) else inner
        if not isinstance(inner, dict):
            raise UserError(f"{path} = {value!r}: '{parent}' is {inner!r}, not a table")
        table = inner
    table[last] = value


def without_nothing(table: dict[str, Any]) -> dict[str, Any]:
    """A table without keys that hold None, which TOML does not have."""
    return {key: without_nothing(value) if isinstance(value, dict) else value for key, value in table.items() if value is not None}
