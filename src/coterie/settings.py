"""Things an experiment can name: a frozen dataclass each, validated once, written as a table in TOML.

A method, a partition, a model, a data source is a `Spec`: its fields are its settings, its class carries the name
by which a file refers to it. A `Registry` turns `{name = "fedprox", mu = 0.1}` into `FedProx(mu=0.1)` and back.
`package.module:Name` names a class outside Coterie.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from coterie.errors import UserError, nearest

__all__ = ["STRICT", "Registry", "Spec", "explain"]

STRICT = ConfigDict(extra="forbid", strict=True, arbitrary_types_allowed=True)
"""What every settings dataclass is declared with: no unknown keys, no silent conversions."""


class Spec:
    """Base of everything with a name and settings; subclasses are frozen dataclasses."""

    name: ClassVar[str] = ""


S = TypeVar("S", bound=Spec)


class Registry(Generic[S]):
    """The named specs of one kind.

    >>> from dataclasses import dataclass
    >>> class Fruit(Spec): ...
    >>> @dataclass(frozen=True)
    ... class Apple(Fruit):
    ...     name = "apple"
    ...     weight: float = 1.0
    >>> fruits = Registry("fruit", Fruit, [Apple])
    >>> fruits.resolve({"name": "apple", "weight": 2.0})
    Apple(weight=2.0)
    >>> fruits.dump(Apple())
    {'name': 'apple', 'weight': 1.0}
    >>> fruits.resolve("aple")
    Traceback (most recent call last):
    ...
    coterie.errors.UserError: fruit 'aple' is unknown: did you mean 'apple'? Valid: apple (or package.module:Name)
    """

    def __init__(self, kind: str, base: type[S], specs: Iterable[type[S]]) -> None:
        self.kind = kind
        self.base = base
        self.specs: dict[str, type[S]] = {spec.name: spec for spec in specs}

    def __iter__(self) -> Iterator[str]:
        return iter(self.specs)

    def resolve(self, value: Any, key: str = "") -> S:
        """An instance from an instance, a name, or a table with a `name` and settings."""
        key = key or self.kind
        if isinstance(value, self.base):
            return value
        if isinstance(value, str):
            value = {"name": value}
        if not isinstance(value, dict) or not isinstance(value.get("name"), str):
            raise UserError(f"{key} = {value!r} must be a name or a table with a name; valid: {', '.join(sorted(self))}")
        settings = dict(value)
        spec = self.find(settings.pop("name"))
        try:
            return TypeAdapter(spec).validate_json(json.dumps(settings), strict=True)
        except ValidationError as error:
            raise UserError(explain(error, key, _keys(spec, error.errors(include_url=False)[0]["loc"]))) from None

    def find(self, name: str) -> type[S]:
        """The class behind a registered name or `package.module:Name`."""
        if ":" in name:
            module, _, attribute = name.partition(":")
            try:
                found = getattr(importlib.import_module(module), attribute)
            except (ImportError, AttributeError) as error:
                raise UserError(f"{self.kind} '{name}' cannot be imported: {error}") from None
            if not (isinstance(found, type) and issubclass(found, self.base)):
                raise UserError(f"{self.kind} '{name}' is not a subclass of {self.base.__module__}.{self.base.__name__}")
            return found
        if name not in self.specs:
            raise UserError(f"{self.kind} '{name}' is unknown: {nearest(name, self)} (or package.module:Name)")
        return self.specs[name]

    def dump(self, spec: S) -> dict[str, Any]:
        """The table that `resolve` turns back into `spec`."""
        cls = type(spec)
        name = cls.name if self.specs.get(cls.name) is cls else f"{cls.__module__}:{cls.__qualname__}"
        return {"name": name, **json.loads(TypeAdapter(cls).dump_json(spec))}


def _keys(spec: Any, where: tuple[int | str, ...]) -> list[str]:
    """The valid keys of the table that a place lies in: the spec's own, or those of settings nested in it."""
    for part in where[:-1]:
        spec = next((field.default for field in dataclasses.fields(spec) if field.name == part), None)
        if not dataclasses.is_dataclass(spec):
            return []
    return [field.name for field in dataclasses.fields(spec)]


def explain(error: ValidationError, prefix: str = "", fields: Iterable[str] = ()) -> str:
    """One sentence for the first thing wrong: key, value, what was expected, nearest valid name."""
    first = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in (prefix, *first["loc"]) if part != "")
    if first["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"{key} = {first['input']!r}: no such key here, {nearest(str(first['loc'][-1]), fields)}"
    if isinstance(cause := first.get("ctx", {}).get("error"), UserError):
        return str(cause)
    if first["type"] in ("missing", "missing_argument"):
        return f"{key} is missing"
    message = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
    return f"{key} = {first['input']!r}: {message}"
