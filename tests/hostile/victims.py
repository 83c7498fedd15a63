"""Runs that are made to be harmed: every method on a small experiment, what an undisturbed run of each leaves, and how to tell."""

from __future__ import annotations

import functools
import itertools
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from tests.digests import BASE, CASES

from coterie.errors import UserError
from coterie.ledger import LEDGER, events
from coterie.running.experiment import Experiment
from coterie.running.rounds import Result, resume, run

TIMED = {"start", "resume", "round"}
"""Events that differ between two runs of the same bits: when, where, how often it was begun."""


def plan(case: str, engine: str = "inline") -> Experiment:
    """One of the small experiments, on an engine."""
    workers = {"workers": 2} if engine == "processes" else {}
    return Experiment.parse({**BASE, **CASES[case], "engine": {"name": engine, **workers}})


def go_on(table: dict[str, Any], folder: Path) -> Result:
    """Begin a run, or go on with it where it has begun."""
    try:
        return resume(folder)
    except UserError as error:
        if "no ledger" not in str(error) and "no first line" not in str(error):
            raise
    (folder / LEDGER).unlink(missing_ok=True)
    return run(Experiment.parse(table), folder)


def victim(table: dict[str, Any], folder: Path) -> None:
    """What the process to be killed does; its last words, and its workers', are of no use to anybody."""
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    go_on(table, folder)


def traces(folder: Path) -> dict[str, Any]:
    """All that must be the same however often a run was stopped."""
    summary = json.loads((folder / "summary.json").read_text())
    lines = [event for event in events(folder / LEDGER) if event["event"] not in TIMED]
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return {"digest": summary["digest"], "bytes": summary["bytes"], "protocols": summary["protocols"], "lines": lines, "files": files}


@functools.cache
def undisturbed(case: str) -> dict[str, Any]:
    """What a run that nobody disturbs leaves behind; engines and stops must not matter."""
    with tempfile.TemporaryDirectory() as folder:
        run(plan(case), Path(folder) / "run")
        return traces(Path(folder) / "run")


def differences(folder: Path, case: str) -> list[str]:
    """In what a run differs from an undisturbed one."""
    found, expected = traces(folder), undisturbed(case)
    return [f"{key}: {_first(found[key], expected[key])}"[:2000] for key in expected if found[key] != expected[key]]


def _first(found: Any, expected: Any) -> str:
    """The first difference between two lists, or the whole of what is none."""
    if isinstance(expected, list):
        pairs = itertools.zip_longest(found, expected)
        found, expected = next((mine, other) for mine, other in pairs if mine != other)
    return f"{found} instead of {expected}"
