"""What an experiment can name, read from the source and not imported: names, sentences, every setting with its default.

What a setting means is written below it, where only the source has it; and to read is a hundred times quicker than to import torch.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from coterie.errors import UserError, nearest

__all__ = ["Entry", "Kind", "Setting", "entries", "entry", "settings_of"]

PACKAGE = "coterie"
REQUIRED = "(required)"


class Kind(StrEnum):
    """What can be listed."""

    methods = "methods"
    models = "models"
    datasets = "datasets"
    partitions = "partitions"
    selections = "selections"
    regularisers = "regularisers"
    aggregations = "aggregations"
    optimisers = "optimisers"
    schedules = "schedules"
    engines = "engines"
    protocols = "protocols"
    experiments = "experiments"


REGISTRIES = {
    Kind.models: ("models", "MODELS"),
    Kind.datasets: ("data.sources", "SOURCES"),
    Kind.partitions: ("data.partitions", "PARTITIONS"),
    Kind.selections: ("data.selection", "SELECTIONS"),
    Kind.regularisers: ("methods.regularisers", "REGULARISERS"),
    Kind.aggregations: ("aggregation", "AGGREGATIONS"),
    Kind.optimisers: ("training.optimisers", "OPTIMISERS"),
    Kind.schedules: ("training.optimisers", "SCHEDULES"),
    Kind.engines: ("engines", "ENGINES"),
}
"""Where each kind of thing is listed."""
TYPES = {
    "Whole": "a whole number",
    "Count": "a whole number above 0",
    "NotNegative": "a number of at least 0",
    "Positive": "a number above 0",
    "Share": "from 0 to 1",
    "PositiveShare": "above 0, up to 1",
    "ProperShare": "above 0, below 1",
    "ShareBelowOne": "from 0, below 1",
    "Multiplier": "above 0, up to 16",
    "WeightByRound": "from 0 to 1, or a schedule",
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "Sizes": "a list of whole numbers",
    "Clients": "a list of clients' numbers",
}
"""Types of settings in words."""


@dataclass(frozen=True)
class Setting:
    """One setting: its name, its default as TOML has it, what it is, and what it may be."""

    name: str
    default: str
    what: str
    type: str

    @property
    def sentence(self) -> str:
        """What it is and may be, in one."""
        what = self.what.replace("None for", "not set:").replace("None", "not set")
        return f"{what} ({self.type})" if what and self.type else what or self.type


@dataclass(frozen=True)
class Entry:
    """Something that an experiment can name."""

    name: str
    what: str
    """In one sentence."""
    source: str = ""
    """How its module begins: for a method, the paper."""
    settings: tuple[Setting, ...] = ()


def entries(kind: Kind) -> dict[str, Entry]:
    """Everything of a kind, in the order in which it is registered.

    >>> entries(Kind.optimisers)["sgd"].settings[0].name
    'lr'
    """
    if kind is Kind.experiments:
        folder = Path(__file__).parents[1] / "experiments"
        return {path.stem: Entry(path.stem, _first_line(path)) for path in sorted(folder.glob("*.toml"))}
    if kind is Kind.protocols:
        from coterie.protocols import PROTOCOLS

        return {name: Entry(name, each.sentence) for name, each in PROTOCOLS.items()}
    found = _methods() if kind is Kind.methods else _registered(*REGISTRIES[kind])
    made = {name: _entry(name, *where) for name, where in found.items()}
    return {name: replace(each, settings=()) for name, each in made.items()} if kind is Kind.engines else made


def entry(kind: Kind, name: str) -> Entry:
    """One thing of a kind by its name, or a class of a user's own by `package.module:Name`.

    >>> [setting.default for setting in entry(Kind.methods, "fedprox").settings if setting.name == "mu"]
    ['0.01']
    """
    if ":" in name:
        module, _, attribute = name.partition(":")
        return _entry(name, *_class(module, attribute))
    known = entries(kind)
    if name not in known:
        raise UserError(f"{kind.value}: '{name}' is unknown, {nearest(name, known)}")
    return known[name]


def settings_of(module: str, name: str) -> tuple[Setting, ...]:
    """The settings of a class of settings, those that it inherits first.

    >>> settings_of("coterie.training.settings", "Training")[0].name
    'epochs'
    """
    return tuple(_settings(*_class(module, name)).values())


def _first_line(path: Path) -> str:
    return path.read_text(encoding="utf-8").splitlines()[0].lstrip("# ")


def _methods() -> dict[str, tuple[str, ast.ClassDef]]:
    """Classes in `methods/` that give themselves a name, file by file."""
    modules = [f"{PACKAGE}.methods.{path.stem}" for path in sorted((Path(__file__).parents[1] / "methods").glob("*.py"))]
    classes = [(module, node) for module in modules for node in _tree(module).body if isinstance(node, ast.ClassDef)]
    others = [node for _, node in _registered(*REGISTRIES[Kind.regularisers]).values()]
    return {name: each for each in classes if (name := _own_name(each[1])) and each[1] not in others}


def _registered(home: str, registry: str) -> dict[str, tuple[str, ast.ClassDef]]:
    """The classes that are listed where a registry is made."""
    module = f"{PACKAGE}.{home}"
    value = next(value for target, value in _assigned(module) if target == registry)
    if isinstance(value, ast.Dict):
        return {ast.literal_eval(key): _class(module, ast.unparse(each)) for key, each in zip(value.keys, value.values, strict=True) if key}
    assert isinstance(value, ast.Call)
    listed = next(each for each in value.args if isinstance(each, ast.List))
    found = [_class(module, ast.unparse(each)) for each in listed.elts]
    return {_own_name(node): (where, node) for where, node in found}


def _entry(name: str, module: str, node: ast.ClassDef) -> Entry:
    about = (ast.get_docstring(_tree(module)) or "").split("\n\n")[0].replace("\n", " ")
    return Entry(name, (ast.get_docstring(node) or "").split("\n")[0], about, tuple(_settings(module, node).values()))


def _own_name(node: ast.ClassDef) -> str:
    """The `name` that a class gives itself."""
    for each in node.body:
        if isinstance(each, ast.AnnAssign) and ast.unparse(each.target) == "name" and isinstance(each.value, ast.Constant):
            return str(each.value.value)
    return ""


def _settings(module: str, node: ast.ClassDef) -> dict[str, Setting]:
    """Fields by name: those of the bases, and over them the class's own."""
    found: dict[str, Setting] = {}
    for base in reversed(node.bases):  # as dataclasses do
        if isinstance(base, ast.Name) and base.id not in ("Spec", "ABC", "BaseModel"):
            found |= _settings(*_class(module, base.id))
    for field, after in zip(node.body, [*node.body[1:], ast.Pass()], strict=True):
        if isinstance(field, ast.AnnAssign) and not ast.unparse(field.annotation).startswith("ClassVar"):
            name = ast.unparse(field.target)
            own = _sentence(after) or (found[name].what if name in found else "")
            found[name] = Setting(name, _default(module, field.value), own, _type(module, field.annotation))
    return found


def _sentence(node: ast.stmt) -> str:
    said = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    return " ".join(node.value.value.split()).rstrip(".") if said else ""  # type: ignore[attr-defined]


def _default(module: str, node: ast.expr | None) -> str:
    """A default as an experiment file has it."""
    if node is None:
        return REQUIRED
    if isinstance(node, ast.Name):
        return _constant(_imported(module).get(node.id, module), node.id)
    if isinstance(node, ast.Call):
        factory = next((each.value for each in node.keywords if each.arg == "default_factory"), None)
        if factory is None or ast.unparse(factory) in ("dict", "list", "tuple"):
            return "{}" if factory is not None else _default(module, node.args[0] if node.args else None)
        return json.dumps(_own_name(_class(module, ast.unparse(factory))[1])) if isinstance(factory, ast.Name) else ""
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return ast.unparse(node)
    return "not set" if value is None else json.dumps(value)


def _constant(module: str, name: str) -> str:
    """A constant of a module: the name of the spec that it is made of, else what it is called."""
    value = next((value for target, value in _assigned(module) if target == name), None)
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
        return json.dumps(_own_name(_class(module, value.func.id)[1]))
    return name if value is None else _default(module, value)


def _type(module: str, node: ast.expr) -> str:
    """What a setting may be, in words; nothing where its sentence must do."""
    if isinstance(node, ast.BinOp):
        return " or ".join(filter(None, (_type(module, node.left), _type(module, node.right))))
    if isinstance(node, ast.Subscript):
        match ast.unparse(node.value):
            case "Literal":
                return _or([json.dumps(ast.literal_eval(each)) for each in _elements(node.slice)])
            case "Annotated":
                return _type(module, _elements(node.slice)[0])
            case "tuple" | "list":
                return "a list"
        return ""
    if isinstance(node, ast.Name):
        return TYPES.get(node.id) or _alias(module, node.id)
    return ""


def _or(words: list[str]) -> str:
    """In a sentence.

    >>> _or(["a", "b", "c"])
    'a, b or c'
    """
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _elements(node: ast.expr) -> list[ast.expr]:
    return node.elts if isinstance(node, ast.Tuple) else [node]


def _alias(module: str, name: str) -> str:
    """The type behind a name that a module gives to one, its own or one that it imports."""
    for target, value in _assigned(module):
        if target == name:
            return _type(module, value)
    home = _imported(module).get(name)
    return _alias(home, name) if home and home.startswith(PACKAGE) else ""


@cache
def _tree(module: str) -> ast.Module:
    found = find_spec(module) if not module.startswith(PACKAGE) else None
    path = Path(__file__).parents[2].joinpath(*module.split(".")) if found is None else Path(found.origin or "")
    file = next((each for each in (path, path.with_suffix(".py"), path / "__init__.py") if each.is_file()), None)
    if file is None:
        raise UserError(f"'{module}' cannot be found: expected package.module:Name")
    return ast.parse(file.read_bytes())


def _assigned(module: str) -> Iterator[tuple[str, ast.expr]]:
    for node in _tree(module).body:
        if isinstance(node, ast.Assign):
            yield ast.unparse(node.targets[0]), node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            yield ast.unparse(node.target), node.value


@cache
def _imported(module: str) -> Mapping[str, str]:
    """Names that a module imports, and from where."""
    nodes = [node for node in ast.walk(_tree(module)) if isinstance(node, ast.ImportFrom) and node.module and not node.level]
    return {alias.asname or alias.name: str(node.module) for node in nodes for alias in node.names}


def _class(module: str, name: str) -> tuple[str, ast.ClassDef]:
    """A class, in the module that defines it."""
    for node in _tree(module).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return module, node
    if name not in _imported(module):
        raise UserError(f"'{module}:{name}' cannot be found: there is no class {name} in {module}")
    return _class(_imported(module)[name], name)
