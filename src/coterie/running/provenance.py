"""Where a result comes from: digests of all that decides it, and the versions of what it stands on.

The settings are in the experiment's own digest. Here are the other two: the code, which is Coterie's own and that of every module that the
experiment's classes import, from wherever they are, but for installed packages; and the data, which are the bytes of every file that a
source reads.

What these digests cannot see: installed packages and compiled libraries below them (their versions are in the ledger, beside the
digests), environment variables, files that a method opens by itself, modules imported by a name that is only made at run time, and a
class that was typed into an interpreter and lies in no file. Whoever changes one of those starts in another folder.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import json
import platform
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

import torch

from coterie.data.folder import data_folder
from coterie.data.hashes import digest_of
from coterie.data.pool import Pool
from coterie.data.sources import Source
from coterie.errors import UserError
from coterie.running.experiment import Experiment

__all__ = ["code_digest", "continued", "data_digest", "origin", "pretraining_digest", "processor", "versions"]

LENGTH = 12
"""Hexadecimal digits of a digest that people look at."""
PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
"""How a class from elsewhere is named in an experiment."""
OWN = "coterie"


def origin(experiment: Experiment, folder: Path | None = None) -> dict[str, Any]:
    """What a ledger says about where its numbers come from.

    >>> sorted(origin(Experiment.load("digits-two-class")))
    ['code', 'data', 'digest', 'modules']
    """
    modules = module_digests(experiment)
    return {"digest": experiment.digest(), "code": _of_modules(modules), "modules": modules, "data": data_digest(experiment, folder)}


def code_digest(experiment: Experiment) -> str:
    """SHA-256, shortened, of the code that computes a result: Coterie's own, and that of what the experiment names from elsewhere.

    >>> len(code_digest(Experiment.load("digits-two-class")))
    12
    """
    return _of_modules(module_digests(experiment))


def data_digest(experiment: Experiment, folder: Path | None = None) -> str:
    """SHA-256, shortened, of the data that an experiment learns from; files are hashed once, and remembered by size and time.

    >>> data_digest(Experiment.load("digits-two-class")) == data_digest(Experiment.load("digits-two-class", ["rounds=3"]))
    True
    """
    public = experiment.data.public
    sources = (*experiment.data.source, *(() if public is None else (public.source,)))
    return _short(f"{source.name}:{_source_digest(source, data_folder(folder))}" for source in sources)


def pretraining_digest(experiment: Experiment, folder: Path | None = None) -> str:
    """SHA-256, shortened, of all that decides what clients' models are after their pretraining: runs that agree in it share it.

    >>> plan = Experiment.load("digit-styles")
    >>> pretraining_digest(plan) == pretraining_digest(plan.replace(rounds=3)) != pretraining_digest(plan.replace(seed=1))
    True
    """
    keys = ("data", "partition", "model", "models_by", "noisy_labels", "seed", "pretraining", "training", "float64")
    settings = {key: value for key, value in experiment.resolved().items() if key in keys}
    networks = [repr(experiment.method.network(each, 0)) for each in experiment.model]
    return _short([json.dumps([settings, networks], sort_keys=True), code_digest(experiment), data_digest(experiment, folder)])


def continued(
    ledger: Path,
    length: int | None,
    experiment: Experiment,
    folder: Path | None = None,
    *,
    changed_code: bool = False,
    changed_data: bool = False,
) -> dict[str, Any]:
    """What a ledger says about where its numbers come from when a run goes on.

    Args:
        ledger: the run's.
        length: the bytes of it that are kept; None for its first line.
        experiment: the run's.
        folder: of the data.
        changed_code: whether the code may be another than it was so far; if not, that is an error.
        changed_data: the same for the data.
    """
    now = origin(experiment, folder)
    found = _changes(_said(ledger, length), now)
    for what, meant in (("code", changed_code), ("data", changed_data)):
        if what in found and not meant:
            raise UserError(
                f"the {what} changed since the run in {ledger.parent} was begun ({found[what]}): run it again in another folder, or go on "
                f"with --changed-{what} (in Python changed_{what}=True), which the ledger and the report will say"
            )
    return now | {f"changed_{what}": True for what in found}


def _said(ledger: Path, length: int | None) -> dict[str, Any]:
    """Where the part of a ledger that is kept says that it comes from: its start, or the last time that the run went on."""
    kept = ledger.read_bytes().splitlines()[:1] if length is None else ledger.read_bytes()[:length].splitlines()
    lines = (line for line in kept if line.startswith((b'{"event":"start"', b'{"event":"resume"')))
    return {key: value for line in lines for key, value in json.loads(line).items()}


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, str]:
    """What of code and data is not as it was, each in words; what was not written down then cannot be told.

    >>> _changes({"code": "1", "modules": {"mine": "a"}, "data": "2"}, {"code": "3", "modules": {"mine": "b"}, "data": "2"})
    {'code': 'mine'}
    """
    found = {}
    if before.get("code", now["code"]) != now["code"]:
        old, new = before.get("modules", {}), now["modules"]
        found["code"] = ", ".join(sorted(name for name in {**old, **new} if old.get(name) != new.get(name)))
    if before.get("data", now["data"]) != now["data"]:
        found["data"] = f"their digest was {before['data']} and is {now['data']}"
    return found


def module_digests(experiment: Experiment) -> dict[str, str]:
    """Coterie and every other module that is not installed, by name, with the digest of its file."""
    files = _files(module for text in _texts(experiment.resolved()) if PATH.fullmatch(text) for module in [text.partition(":")[0]])
    return {OWN: _own_code()} | {name: _short([path.read_bytes()]) for name, path in sorted(files.items())}


def versions() -> dict[str, str]:
    """What it stands on."""
    packages = {name: metadata.version(name) for name in ("coterie", "torch", "numpy", "scikit-learn")}
    return {**packages, "python": platform.python_version(), "platform": platform.platform()}


def processor() -> str:
    """What bits depend on beside the code: which kernels torch takes on this machine, and the processor's name."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor() or "unknown")
    return f"{torch.backends.cpu.get_cpu_capability()}, {name}"


def _of_modules(modules: Mapping[str, str]) -> str:
    return _short(f"{name}:{digest}" for name, digest in sorted(modules.items()))


def _short(parts: Iterable[str | bytes]) -> str:
    sha = hashlib.sha256()
    for part in parts:
        sha.update(part.encode() + b"\n" if isinstance(part, str) else part)
    return sha.hexdigest()[:LENGTH]


@functools.cache
def _own_code() -> str:
    package = Path(__file__).parents[1]
    return _short(f"{path.relative_to(package).as_posix()}\0".encode() + path.read_bytes() for path in sorted(package.rglob("*.py")))


def _source_digest(source: Source, folder: Path) -> str:
    """Of its files; of the package that it ships in; or, where a user's source names neither, of all that it loads."""
    paths = list(source.reads(folder))
    if paths:
        return digest_of(paths)
    return f"{source.package} {metadata.version(source.package)}" if source.package else _pool_digest(source.load(folder))


def _pool_digest(pool: Pool) -> str:
    arrays = [array for array in (pool.x, pool.y, pool.domain, pool.writer) if array is not None]
    about = (pool.train, pool.classes, pool.mean, pool.std, pool.domains)
    return _short([repr(about), *(array.tobytes() for array in arrays)])


def _texts(value: Any) -> Iterator[str]:
    """Every string in nested tables and lists."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(each)


def _files(names: Iterable[str]) -> dict[str, Path]:
    """The files of modules and of all that they import, as far as they are neither Coterie's nor installed."""
    found: dict[str, Path] = {}
    waiting = [name for each in names for name in _with_parents(each)]
    while waiting:
        name = waiting.pop()
        path = None if name in found else _file(name)
        if path is not None:
            found[name] = path
            waiting += _imports(path.read_bytes(), _package(name, path)) if path.suffix == ".py" else []
    return found


def _file(name: str) -> Path | None:
    """The file of a module that is neither Coterie's nor installed."""
    if name.split(".")[0] == OWN:
        return None
    loaded = sys.modules.get(name)
    place = getattr(loaded, "__file__", None) or getattr(_spec(name), "origin", None)
    path = Path(place) if isinstance(place, str) else None
    return path if path is not None and path.is_file() and not _installed(path) else None


def _spec(name: str) -> ModuleSpec | None:
    """Where a module would be imported from; nothing is imported for that."""
    path: Any = None
    for part in _with_parents(name):
        spec = PathFinder.find_spec(part, path)
        if spec is None:
            return None
        path = spec.submodule_search_locations or []
    return spec


def _installed(path: Path) -> bool:
    library = Path(sysconfig.get_path("stdlib"))
    return path.is_relative_to(library) or not {"site-packages", "dist-packages"}.isdisjoint(path.parts)


def _package(name: str, path: Path) -> str:
    """The package that relative imports in a module start from."""
    return name if path.name == "__init__.py" else name.rpartition(".")[0]


def _with_parents(name: str) -> list[str]:
    """A module and the packages that it is in, outermost first."""
    parts = name.split(".")
    return [".".join(parts[: count + 1]) for count in range(len(parts))]


@functools.cache
def _imports(source: bytes, package: str) -> list[str]:
    """The modules that a file may import, and names in them, which may be modules too."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError):  # then nobody can import it either
        return []
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            found |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
    return sorted({parent for name in found if name and name[0] != "." for parent in _with_parents(name)})
