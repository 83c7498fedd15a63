"""The arms of a comparison: which methods, with which settings, at which points of a grid, with which seeds; and what each is called.

An arm is one run. Its folder is named by the digests of its experiment, of the code and of the data, so that what is found there is what
would be computed. Its label is its own: settings that were said for it, that a grid changes or in which arms of one method differ are in
it, and where two classes have one name, where they come from.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from coterie.errors import UserError, nearest
from coterie.ledger import LEDGER
from coterie.method import Method
from coterie.methods import METHODS
from coterie.own import no_file
from coterie.running.experiment import Experiment
from coterie.running.files import assign, toml_value
from coterie.running.provenance import origin

__all__ = ["Arm", "arm", "arms_of", "check_keys", "grid_of", "leaves", "split", "unreached"]

OPENING, CLOSING = "([{", ")]}"


@dataclass(frozen=True, eq=False)
class Arm:
    """One run of a comparison."""

    experiment: Experiment
    folder: Path
    label: str
    """What is compared: the method, and its settings as far as they tell it from others."""
    digests: tuple[str, str, str]
    """Of the experiment, the code and the data: two arms with the same ones have the same result."""
    point: Mapping[str, Any] = field(default_factory=dict)
    """Where it is on the grid."""

    @property
    def title(self) -> str:
        """What a person calls it."""
        return f"{self.label} seed {self.experiment.seed}"


def arm(experiment: Experiment, folder: Path, label: str, data: Path | None = None) -> Arm:
    """An arm in a folder named after all that decides its result; `data` is the data folder."""
    made_of = origin(experiment, data)
    digests = made_of["digest"], made_of["code"], made_of["data"]
    name = "-".join([re.sub(r"[^\w.-]", "-", experiment.method.name), f"s{experiment.seed}", *(digest[:8] for digest in digests)])
    return Arm(experiment, folder / name, label, digests)


def arms_of(
    experiment: Experiment,
    methods: Sequence[Any],
    seeds: Sequence[int],
    folder: Path,
    grid: Mapping[str, Sequence[Any]] | None = None,
    *,
    overrides: Mapping[str, Any] | None = None,
    data: Path | None = None,
) -> list[Arm]:
    """Every method with every seed, at every point of a grid.

    Args:
        experiment: what all arms share. A method has the settings that it has there, in `method` or in the table `methods`.
        methods: names, names with settings (`"fedprox(mu=0.1)"`), tables (`{"name": "fedprox", "mu": 0.1}`) or instances.
        seeds: of each of them.
        folder: where the runs go.
        grid: keys and their values; `method.key` is for the methods that have such a key.
        overrides: further keys and their values, the same for all arms; `method.key` is for the methods that have such a key, unless
            they come with one of their own.
        data: the data folder.

    >>> experiment = Experiment.load("digits-two-class")
    >>> arms = arms_of(experiment, ["local", "fedprox"], [0, 1], Path("runs"), {"method.mu": [0.1, 1.0]})
    >>> [arm.title for arm in arms][:4]
    ['local seed 0', 'local seed 1', 'fedprox mu=0.1 seed 0', 'fedprox mu=0.1 seed 1']
    >>> [arm.label for arm in arms_of(experiment, ["fedprox(mu=0.1)", {"name": "fedprox", "mu": 1.0}], [0], Path("runs"))]
    ['fedprox mu=0.1', 'fedprox mu=1.0']
    """
    _check_folder(folder)
    grid, shared, own = grid or {}, *_parted(overrides or {})
    base = experiment.overridden(shared) if shared else experiment
    chosen = [_chosen(base, each, own) for each in methods]
    check_keys({**own, **grid}, [each.method for each in chosen])
    _check_grid(grid)
    _check_protocols(base.evaluation.protocols, [each.method for each in chosen])
    arms: dict[Path, Arm] = {}
    for each in chosen:
        planned = base.with_method(each.method)
        for point in _points(grid, each.method):
            at_point = planned.overridden(point) if point else planned
            label = _label(each, chosen, point)
            for one in (arm(at_point.replace(seed=seed), folder, label, data) for seed in seeds):
                arms.setdefault(one.folder, replace(one, point=point))
    return _stopping_alike(list(arms.values()))


def grid_of(axes: Sequence[str], option: str = "--grid") -> dict[str, list[Any]]:
    """Axes like `training.batch=10,all` as keys and their values; `option` is what messages call them.

    >>> grid_of(["method.mu=0.01,0.1", "training.batch=10,all"])
    {'method.mu': [0.01, 0.1], 'training.batch': [10, 'all']}
    """
    grid = {}
    for axis in axes:
        key, equals, text = axis.partition("=")
        if not (key.strip() and equals and text.strip()):
            raise UserError(f"{option} {axis}: expected key=value,value, such as method.mu=0.01,0.1")
        grid[key.strip()] = [toml_value(part) for part in split(text)]
    return grid


def split(text: str) -> list[str]:
    """The parts of a text between commas, but for those within brackets or quotes.

    >>> split("fedprox(mu=0.1, weighting=uniform), fedavg")
    ['fedprox(mu=0.1, weighting=uniform)', 'fedavg']
    """
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if letter in ("'", '"') and quote in ("", letter):
            quote = "" if quote else letter
        depth += (letter in OPENING) - (letter in CLOSING) if not quote else 0
        if letter == "," and depth == 0 and not quote:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def unreached(experiment: Experiment, methods: Sequence[Any], overrides: Mapping[str, Any]) -> list[str]:
    """Sentences on the methods that an override of `method.key` does not reach.

    >>> unreached(Experiment.load("digits-two-class"), ["local", "fedprox", "fedavg"], {"method.mu": 0.01})
    ['method.mu = 0.01 is for fedprox; local, fedavg have no such key']
    """
    found = [_chosen(experiment, each, {}).method for each in methods]
    sentences = []
    for key, value in overrides.items():
        names = {has: dict.fromkeys(each.name for each in found if _has(each, key) == has) for has in (True, False)}
        if names[False]:
            verb = "has" if len(names[False]) == 1 else "have"
            sentences.append(f"{key} = {_plain(value)} is for {', '.join(names[True])}; {', '.join(names[False])} {verb} no such key")
    return sentences


@dataclass(frozen=True)
class _Chosen:
    """A method that is compared, and the keys that were said for it, with its name or for all."""

    method: Method
    said: tuple[str, ...] = ()

    @property
    def settings(self) -> dict[str, Any]:
        """By their paths, nested tables as they are written."""
        return dict(leaves({key: value for key, value in METHODS.dump(self.method).items() if key != "name"}))


def _chosen(experiment: Experiment, entry: Any, overrides: Mapping[str, Any]) -> _Chosen:
    """A method with its settings: the experiment's, then the overrides that it has a key for, then those that it came with."""
    if isinstance(entry, Method):
        base, given = entry, {}
    else:
        given = _table(entry)
        base = experiment.method_named(given.pop("name"))
    settings = {key.removeprefix("method."): value for key, value in overrides.items() if _has(base, key)} | dict(leaves(given))
    table = METHODS.dump(base)
    for path, value in settings.items():
        assign(table, path, value)
    return _Chosen(METHODS.resolve(table, "method") if settings else base, tuple(settings))


def _table(entry: Any) -> dict[str, Any]:
    """`fedprox(mu=0.1)`, or a table, as a table."""
    if not isinstance(entry, str):
        if not (isinstance(entry, Mapping) and isinstance(entry.get("name"), str)):
            raise UserError(f"methods = {entry!r}: expected a name, name(key=value), a table with a name, or a method")
        return dict(entry)
    name, bracket, text = entry.partition("(")
    table: dict[str, Any] = {"name": name.strip()}
    if bracket and not text.rstrip().endswith(")"):
        raise UserError(f"--methods {entry}: expected name(key=value, ...), such as fedprox(mu=0.1)")
    for part in split(text.rstrip().removesuffix(")")):
        key, equals, value = part.partition("=")
        if not (equals and key.strip()):
            raise UserError(f"--methods {entry}: expected name(key=value, ...), such as fedprox(mu=0.1)")
        assign(table, key.strip(), toml_value(value))
    return table


def _parted(overrides: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is for the experiment, and what is for every method."""
    own = {key: value for key, value in overrides.items() if key.startswith("method.")}
    return {key: value for key, value in overrides.items() if key not in own}, own


def _has(method: Method, key: str) -> bool:
    """Whether a key is meant for a method: any key but those of other methods."""
    section, _, rest = key.partition(".")
    return section != "method" or rest.partition(".")[0] in _keys(method)


def _keys(method: Method) -> list[str]:
    return [field.name for field in fields(method)]  # type: ignore[arg-type]


def check_keys(wanted: Mapping[str, Any], methods: Sequence[Method]) -> None:
    """Raise a UserError for a `method.key` that none of the methods has.

    >>> check_keys({"method.muu": [0.1, 1.0]}, [METHODS.resolve("fedprox")])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    coterie.errors.UserError: method.muu = [0.1, 1.0]: none of fedprox has such a key, did you mean 'mu'? Valid: ...
    """
    for key, value in wanted.items():
        if not any(_has(method, key) for method in methods):
            known = {name for method in methods for name in _keys(method)}
            names = ", ".join(dict.fromkeys(method.name for method in methods))
            raise UserError(f"{key} = {_plain(value)}: none of {names} has such a key, {nearest(key.split('.')[1], known)}")


def _check_protocols(asked: Sequence[str], methods: Sequence[Method]) -> None:
    """Who offers nothing of what is asked for is measured by its own headline; if that is all methods, nothing asked for is left."""
    offered = dict.fromkeys(protocol for method in methods for protocol in method.protocols)
    if asked and methods and offered.keys().isdisjoint(asked):
        named = ", ".join(dict.fromkeys(method.name for method in methods))
        raise UserError(f"evaluation.protocols = {list(asked)}: none of {named} offers any of these, expected some of {', '.join(offered)}")


def _stopping_alike(arms: list[Arm]) -> list[Arm]:
    """Arms, if what one of them stops by is what the others stop by; else an error."""
    stops = [arm for arm in arms if arm.experiment.evaluation.stop_at is not None]
    judged = {arm.experiment.protocols[0]: arm for arm in reversed(stops)}
    if len(judged) > 1:
        told = ", ".join(f"{arm.label} by '{protocol}'" for protocol, arm in reversed(judged.items()))
        what = f"evaluation.stop_at = {stops[0].experiment.evaluation.stop_at}: these would not stop by the same ({told})"
        raise UserError(f"{what}, expected evaluation.protocols to begin with one that all of them offer")
    return arms


def _check_folder(folder: Path) -> None:
    """Runs go into a folder, and not into one of a single run."""
    no_file(folder, "a folder for the runs of a comparison")
    if single := next((each for each in (folder, *folder.parents) if (each / LEDGER).is_file()), None):
        raise UserError(f"the folder {single} holds a single run: expected another one for the runs of a comparison")


def _check_grid(grid: Mapping[str, Any]) -> None:
    for key in grid:
        if key in ("method", "seed"):
            raise UserError(f"--grid {key}=...: a comparison has --{key}s for that")


def _points(grid: Mapping[str, Sequence[Any]], method: Method) -> Iterator[dict[str, Any]]:
    axes = {key: values for key, values in grid.items() if _has(method, key)}
    return (dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values()))


def _label(each: _Chosen, chosen: Sequence[_Chosen], point: Mapping[str, Any]) -> str:
    """A method's name, and what tells it from the others."""
    cls = type(each.method)
    settings, alike = each.settings, [other.settings for other in chosen if type(other.method) is cls]
    said = [key for key in settings if any(f"{path}.".startswith(f"{key}.") for path in each.said)]
    shown = [key for key in settings if key in said or any(other.get(key) != settings[key] for other in alike)]
    values = {f"method.{key}": settings[key] for key in shown} | dict(point)
    last = [key.rpartition(".")[2] for key in values]
    words = [key.rpartition(".")[2] if last.count(key.rpartition(".")[2]) == 1 else key for key in values]
    one_name = all(type(other.method) is cls for other in chosen if other.method.name == each.method.name)
    name = each.method.name if one_name else METHODS.path(cls)
    return " ".join([name, *(f"{word}={_plain(value)}" for word, value in zip(words, values.values(), strict=True))])


def leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted paths and values; a table with a name is a value."""
    for key, value in table.items():
        if isinstance(value, Mapping) and value and "name" not in value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
