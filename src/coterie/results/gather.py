"""Which runs belong together: folders are searched, runs that differ only in their seed become one arm, and arms get short names."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coterie.errors import UserError
from coterie.results.comparison import ArmRuns, measured, stopped_early, unequal_work, unlike_clients
from coterie.results.read import LEDGER, Run, read_run
from coterie.results.tally import Tally

__all__ = ["Report", "find_runs", "flatten", "gather"]

DEPTHS = (".", "*", "*/*", "*/*/*")
"""Where ledgers lie below a folder that is named."""
WITHIN = ("seed", "engine", "evaluation.protocols")
"""Keys in which runs of one arm may differ: engines give the same bits, and a method is measured under those protocols it offers."""
TASK = ("data", "partition.name")
"""Keys in which all runs of a report must agree: without that, an accuracy is of another problem."""


@dataclass
class Report:
    """Everything that one report shows."""

    name: str
    arms: list[ArmRuns]
    notices: list[str] = field(default_factory=list)
    """What a reader must know about the runs: what is missing, damaged or not alike."""

    @property
    def runs(self) -> list[Run]:
        """All runs, arm by arm."""
        return [run for arm in self.arms for run in arm.runs]

    @property
    def tallies(self) -> list[Tally]:
        """What their ledgers come to."""
        return [run.tally for run in self.runs]


def gather(paths: Iterable[Path]) -> Report:
    """Read every run in and below some folders, and sort them into arms."""
    notices: list[str] = []
    runs = [read_run(folder) for folder in find_runs(paths)]
    for run in runs:
        notices += [f"{run.folder.name}: {sentence}." for sentence in (*run.missing, *_changed(run))]
    _must_be_one_task(runs)
    arms = _arms(runs, notices)
    notices += [*_unlike(runs), *_unequal(arms)]
    names = list(dict.fromkeys(str(run.tally.experiment["name"]) for run in runs if "name" in run.tally.experiment))
    return Report(" and ".join(names) or runs[0].folder.name, arms, notices)


def find_runs(paths: Iterable[Path]) -> list[Path]:
    """The run folders in and below some folders, each once, in order.

    >>> import tempfile
    >>> find_runs([Path(tempfile.mkdtemp(prefix="nothing"))])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    coterie.errors.UserError: the folder /...nothing... is empty: expected a run, or folders with runs in them
    """
    found: dict[Path, Path] = {}
    for path in paths:
        here = _ledgers(path)
        if not here:
            raise UserError(_why_nothing(path))
        found |= {ledger.resolve(): ledger.parent for ledger in here}
    return list(found.values())


def _ledgers(path: Path) -> list[Path]:
    if path.name == LEDGER and path.is_file():
        return [path]
    return [ledger for depth in DEPTHS for ledger in sorted(path.glob(f"{depth}/{LEDGER}")) if ledger.is_file()]


def _why_nothing(path: Path) -> str:
    if not path.exists():
        return f"there is no folder {path}: expected a run, or folders with runs in them"
    if not path.is_dir():
        return f"{path} is not a run: expected a folder with a file {LEDGER}, or with such folders in it"
    if not any(path.iterdir()):
        return f"the folder {path} is empty: expected a run, or folders with runs in them"
    return f"the folder {path} holds something else: neither it nor any folder in it has a file {LEDGER}"


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one, keys joined by dots.

    >>> flatten({"method": {"name": "fedprox", "mu": 0.1}, "seed": 0})
    {'method.name': 'fedprox', 'method.mu': 0.1, 'seed': 0}
    """
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) and value else {f"{prefix}{key}": value}
    return flat


def _below(key: str, roots: Sequence[str]) -> bool:
    return any(key == root or key.startswith(f"{root}.") for root in roots)


def _must_be_one_task(runs: Sequence[Run]) -> None:
    known = [run for run in runs if run.tally.experiment]
    for run in known[1:]:
        here, there = flatten(known[0].tally.experiment), flatten(run.tally.experiment)
        for key in dict.fromkeys([*here, *there]):
            if _below(key, TASK) and here.get(key) != there.get(key):
                ours, theirs = json.dumps(here.get(key)), json.dumps(there.get(key))
                raise UserError(
                    f"these runs are of different experiments: {key} is {ours} in {known[0].folder} and {theirs} in {run.folder}; "
                    "accuracies on different problems do not compare, so report them apart"
                )


def _arms(runs: Sequence[Run], notices: list[str]) -> list[ArmRuns]:
    alike: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        flat = {key: value for key, value in flatten(run.tally.experiment).items() if not _below(key, WITHIN)}
        alike[json.dumps(flat, sort_keys=True) if flat else str(run.folder)].append(run)
    groups = [_one_per_seed(group, notices) for group in alike.values()]
    tables = [flatten(group[0].tally.experiment) for group in groups]
    names = [str(table.get("method.name", group[0].folder.name)) for table, group in zip(tables, groups, strict=True)]
    return [ArmRuns(label, group) for label, group in zip(_labels(names, tables), groups, strict=True)]


def _one_per_seed(runs: Sequence[Run], notices: list[str]) -> list[Run]:
    """Of two runs with the same seed, the longer; a seed must not count twice."""
    by_seed: dict[int, Run] = {}
    for run in runs:
        other = by_seed.get(run.tally.seed)
        if other is not None:
            less = run if run.tally.rounds <= other.tally.rounds else other
            notices.append(f"{less.folder}: left out, because another run has the same settings and the same seed {run.tally.seed}.")
        by_seed[run.tally.seed] = run if other is None or run.tally.rounds > other.tally.rounds else other
    return [by_seed[seed] for seed in sorted(by_seed)]


def _labels(names: Sequence[str], tables: Sequence[Mapping[str, Any]]) -> list[str]:
    """A method's name, and the keys in which its arms differ.

    >>> _labels(["fedavg", "fedprox", "fedprox"], [{}, {"method.mu": 0.1}, {"method.mu": 1.0}])
    ['fedavg', 'fedprox mu=0.1', 'fedprox mu=1.0']
    """
    keys = [key for key in dict.fromkeys(key for table in tables for key in table) if not _below(key, (*WITHIN, "name", "method.name"))]
    common = {key for key in keys if not _below(key, ["method"]) and _differs(key, [t for t in tables if t])}
    labels = []
    for name, table in zip(names, tables, strict=True):
        mine = [other for other_name, other in zip(names, tables, strict=True) if other_name == name]
        shown = [key for key in keys if key in common or (_below(key, ["method"]) and _differs(key, mine))]
        parts = [f"{key.removeprefix('method.')}={_short(table[key])}" for key in shown if key in table]
        labels.append(" ".join([name, *parts]))
    return labels


def _differs(key: str, tables: Sequence[Mapping[str, Any]]) -> bool:
    return len({json.dumps(table.get(key), sort_keys=True) for table in tables}) > 1


def _short(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def _changed(run: Run) -> list[str]:
    """Sentences on what somebody changed while it ran."""
    words = {"changed_code": "its code was changed when it went on", "changed_data": "its data were changed when it went on"}
    return [f"{words[key]} after round {event['round']}" for event in run.tally.resumes for key in words if event.get(key)]


def _unlike(runs: Sequence[Run]) -> list[str]:
    """Sentences on what differs although it should not."""
    found = []
    known = [flatten(run.tally.experiment) for run in runs if run.tally.experiment]
    for key in dict.fromkeys(key for table in known for key in table):
        if _below(key, ["partition", "model"]) and _differs(key, known):
            found.append(f"The runs differ in {key}: their accuracies are of different problems.")
    versions = [run.tally.start.get("versions", {}) for run in runs if run.tally.start]
    for package in dict.fromkeys(name for each in versions for name in each):
        if _differs(package, versions):
            found.append(
                f"The runs were made with different versions of {package}: {', '.join(sorted({v.get(package, '?') for v in versions}))}."
            )
    return found


def _unequal(arms: Sequence[ArmRuns]) -> list[str]:
    """Sentences on what makes arms less comparable than they look."""
    clients = [sentence for protocol in measured(arms) if (sentence := unlike_clients(arms, protocol))]
    unmeasured = [
        f"{run.folder.name}: nothing was measured under '{protocol}', which was asked for"
        for arm in arms
        for run in arm.runs
        for protocol in run.tally.asked
        if run.tally.ended and protocol not in run.tally.means
    ]
    return [f"{sentence[0].upper()}{sentence[1:]}." for sentence in (*clients, *stopped_early(arms), *unequal_work(arms))] + [
        f"{each}." for each in unmeasured
    ]
