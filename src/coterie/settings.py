"""Things an experiment can name: a frozen dataclass each, validated once, written as a table in TOML.

A method, a partition, a model, a data source is a `Spec`: its fields are its settings, its class carries the name
by which a file refers to it. A `Registry` turns `{name = "fedprox", mu = 0.1}` into `FedProx(mu=0.1)` and back.
`package.module:Name` names a class outside Coterie.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Generic, TypeAlias, TypeVar, cast, dataclass_transform, get_args, overload

import pydantic.dataclasses
from pydantic import BeforeValidator, ConfigDict, Field, GetPydanticSchema, PlainSerializer, TypeAdapter, ValidationError

from coterie.errors import UserError, nearest
from coterie.own import imported

__all__ = [
    "STRICT",
    "Count",
    "NotNegative",
    "Positive",
    "PositiveShare",
    "ProperShare",
    "Registry",
    "Share",
    "ShareBelowOne",
    "Spec",
    "Whole",
    "explain",
    "field_of",
    "fields_of",
    "spec",
]

STRICT = ConfigDict(extra="forbid", strict=True, arbitrary_types_allowed=True)
"""What every settings dataclass is declared with: no unknown keys, no silent conversions."""

Whole = Annotated[int, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
PositiveShare = Annotated[float, Field(gt=0, le=1)]
ProperShare = Annotated[float, Field(gt=0, lt=1)]
ShareBelowOne = Annotated[float, Field(ge=0, lt=1)]

KeyPath: TypeAlias = tuple[int | str, ...]
"""The keys, and the numbers in lists, that lead to a place in a table."""

T = TypeVar("T")


@overload
def spec(cls: type[T]) -> type[T]: ...


@overload
def spec(*, kw_only: bool = False) -> Callable[[type[T]], type[T]]: ...


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field, Field))
def spec(cls: type[T] | None = None, *, kw_only: bool = False) -> Any:
    """Make a class of settings: a frozen dataclass whose values are checked and whose unknown keys are errors.

    >>> @spec
    ... class Apple:
    ...     weight: Positive = 1.0
    >>> Apple(weight=2.0)
    Apple(weight=2.0)
    """

    def made(cls: type[T]) -> type[T]:
        return cast(type[T], pydantic.dataclasses.dataclass(cls, frozen=True, config=STRICT, kw_only=kw_only))

    return made if cls is None else made(cls)


class Spec:
    """Base of everything with a name and settings; subclasses are frozen dataclasses, by `@spec` or by `dataclasses`.

    A subclass without a `name` of its own is called like its class, never like its parent.

    >>> class Apple(Spec):
    ...     name = "apple"
    >>> class Boskoop(Apple): ...
    >>> Boskoop.name
    'boskoop'
    """

    name: ClassVar[str] = ""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "name" not in vars(cls):
            cls.name = cls.__name__.lower()


S = TypeVar("S", bound=Spec)


class Registry(Generic[S]):
    """The named specs of one kind.

    >>> class Fruit(Spec): ...
    >>> @spec
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
        self.specs: dict[str, type[S]] = {}
        for each in specs:
            if each.name in self.specs:
                raise ValueError(f"two specs of {kind} are called '{each.name}': {self.specs[each.name]} and {each}")
            self.specs[each.name] = each

    def __iter__(self) -> Iterator[str]:
        return iter(self.specs)

    @property
    def kinds(self) -> tuple[type, ...]:
        """What a path may lead to."""
        return (self.base,)

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
        found = self.find(settings.pop("name"))
        try:
            made = TypeAdapter(found).validate_json(json.dumps(settings), strict=True)
        except ValidationError as error:
            raise UserError(explain(error, found, key)) from None
        _check_keys(settings, made, key)
        return made

    def find(self, name: str) -> type[S]:
        """The class behind a registered name or `package.module:Name`."""
        if ":" in name:
            found = imported(name, f"{self.kind} '{name}'", self.kinds)
            if not (isinstance(found, type) and issubclass(found, self.base)):
                raise UserError(f"{self.kind} '{name}' is not a subclass of {self.base.__module__}.{self.base.__name__}")
            if not dataclasses.is_dataclass(found):
                raise UserError(f"{self.kind} '{name}' is not a dataclass: write @coterie.spec above its class")
            return found
        if name not in self.specs:
            raise UserError(f"{self.kind} '{name}' is unknown: {nearest(name, self)} (or package.module:Name)")
        return self.specs[name]

    def dump(self, value: S) -> dict[str, Any]:
        """The table that `resolve` turns back into `value`."""
        cls = type(value)
        return {"name": self.path(cls), **json.loads(TypeAdapter(cls).dump_json(value))}

    def path(self, cls: type[S]) -> str:
        """What a file calls a class: its registered name, else where to import it from."""
        return cls.name if self.specs.get(cls.name) is cls else f"{cls.__module__}:{cls.__qualname__}"


def field_of(registry: Registry[Any], key: str, default: type[Spec] | None = None) -> Any:
    """What makes a field one that names a spec, as a name, a table or an instance; `key` is what error messages call it.

    A table without a name has settings of the `default`, where there is one.

    >>> class Fruit(Spec): ...
    >>> @spec
    ... class Apple(Fruit):
    ...     weight: float = 1.0
    >>> fruits = Registry("fruit", Fruit, [Apple])
    >>> @spec
    ... class Pie:
    ...     filling: Annotated[Fruit, field_of(fruits, "pie.filling")]
    >>> Pie(filling="apple")
    Pie(filling=Apple(weight=1.0))
    """

    def resolve(value: Any) -> Any:
        nameless = default is not None and isinstance(value, dict) and "name" not in value
        return registry.resolve({"name": default.name, **value} if default and nameless else value, key)

    return _read_and_written(resolve, registry.dump)


def fields_of(registry: Registry[Any], key: str) -> Any:
    """The same for a field that names one spec or a list of them, and is always read as a tuple."""

    def resolve(value: Any) -> tuple[Any, ...]:
        if value in ([], ()):
            raise UserError(f"{key} = []: expected at least one; valid: {', '.join(sorted(registry))}")
        return tuple(registry.resolve(each, key) for each in (value if isinstance(value, list | tuple) else [value]))

    return _read_and_written(resolve, lambda values: [registry.dump(each) for each in values])


def _read_and_written(read: Callable[[Any], Any], write: Callable[[Any], Any]) -> Any:
    """One mark in place of pydantic's two."""
    return GetPydanticSchema(lambda source, handler: handler(Annotated[source, BeforeValidator(read), PlainSerializer(write)]))


def _check_keys(table: dict[str, Any], made: Any, key: str) -> None:
    """Of a plain dataclass pydantic drops unknown keys without a word; here they are errors, at any depth."""
    known = [field.name for field in dataclasses.fields(made)]
    for name, value in table.items():
        if name not in known:
            raise UserError(_no_such_key(f"{key}.{name}", value, known))
        inner = getattr(made, name)
        if isinstance(value, dict) and dataclasses.is_dataclass(inner) and not isinstance(inner, Spec):
            _check_keys(value, inner, f"{key}.{name}")


def _no_such_key(key: str, value: Any, known: Iterable[str]) -> str:
    return f"{key} = {value!r}: no such key here, {nearest(key.rpartition('.')[2], known)}"


BRANCH = re.compile(r"(constrained|function|lax-or-strict|is-instance)[-\[].*|(tuple|list|dict|literal)\[.*|int|float|str|bool|none")
"""What pydantic calls one of several types that a value may have, in the place of an error."""
WORDS = {
    "valid array": "list",
    "an object": "a table",
    "String should match": "should match",
    "after validation, not 0": "",
    "Tuple should": "should",
}
"""Words of pydantic's that nobody says who writes an experiment."""


NO_SUCH_KEY = ("extra_forbidden", "unexpected_keyword_argument")
"""What pydantic calls a key that is not to be there."""


def explain(error: ValidationError, settings: Any, prefix: str = "") -> str:
    """One sentence for the first thing wrong with a table of such settings: key, value, what was expected, nearest valid name.

    Where a value may be of several types, what each of them expects:

    >>> from typing import Literal
    >>> try:
    ...     TypeAdapter(dict[str, Count | Literal["all"]]).validate_python({"batch": 0})
    ... except ValidationError as error:
    ...     print(explain(error, dict))
    batch = 0: should be greater than or equal to 1, or 'all'
    """
    found = error.errors(include_url=False)
    absent = found[0]["type"] in ("missing", "missing_argument")
    first = next((each for each in found if absent and each["type"] in NO_SUCH_KEY), found[0])  # what is misspelt is missing, too
    where = _key(first["loc"])
    key = ".".join(str(part) for part in (prefix, *where) if part != "")
    if first["type"] in NO_SUCH_KEY:
        return _no_such_key(key, first["input"], _keys_beside(first["loc"], settings))
    if isinstance(cause := first.get("ctx", {}).get("error"), UserError):
        return str(cause)
    if absent:
        return f"{key} is missing"
    ways = [_expectation(each["msg"]) for each in found if _key(each["loc"]) == where]
    expected = ", or ".join([ways[0], *(way.removeprefix("should be ") for way in dict.fromkeys(ways[1:]))])
    return f"{key} = {first['input']!r}: {expected}{_as_list(first['input']) if expected == 'should be a list' else ''}"


def _keys_beside(place: KeyPath, settings: Any) -> list[str]:
    """The valid keys of the table that a place lies in, of such settings or of those nested in them."""
    for part in place[:-1]:
        field = _fields(settings).get(str(part))
        settings = settings if field is None else _settings_in(field.annotation)
    return list(_fields(settings))


def _fields(settings: Any) -> Mapping[str, Any]:
    found: Mapping[str, Any] = getattr(settings, "__pydantic_fields__", {})
    return found


def _settings_in(annotation: Any) -> Any:
    """The first type with keys of its own in one that may be a list, a table or a choice of such; None without."""
    return annotation if _fields(annotation) else next(filter(None, map(_settings_in, get_args(annotation))), None)


def _as_list(given: Any) -> str:
    """How a text that is no list would be one: strings in it have quotes, which a shell takes away that is not told otherwise."""
    if not isinstance(given, str):
        return ""
    words = [word.strip(" '\"") for word in given.strip().strip("[]").split(",")]
    return f" of strings in quotes, such as {json.dumps(words)} (in a shell with ' around it)"


def _key(place: KeyPath) -> KeyPath:
    """A place without what pydantic calls the types that were tried."""
    tried = (number for number, part in enumerate(place) if isinstance(part, str) and BRANCH.fullmatch(part))
    return place[: next(tried, len(place))]


def _expectation(message: str) -> str:
    for theirs, ours in WORDS.items():
        message = message.replace(theirs, ours)
    return message.removeprefix("Value error, ").removeprefix("Input ").strip()
