"""The long form of `test_clients.py`: every behaviour in a run of its own, on every engine, some times over; writes a table as it goes.

python -m tests.hostile.clients --tries 3 [behaviour ...]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator

from coterie.engines import Engine, Inline, Processes
from coterie.hostile import BEHAVIOURS
from coterie.testing import try_engine

ENGINES: dict[str, Callable[[], Engine]] = {"inline": Inline, "processes": lambda: Processes(2)}
LET_IN = "let in, and nobody else notices"


def tried(name: str, engine: str, tries: int) -> tuple[str, list[str]]:
    """What became of a client, and what was wrong with it in how many tries."""
    observed, complaints = "", list[str]()
    for _ in range(tries):
        try:
            trial = try_engine(ENGINES[engine], [name], deadline=10.0)
            observed = trial.reasons.get(0, LET_IN).removeprefix("client 0, task 'train', round 1: ")
            complaints += list(trial.complaints())[:1]
        except Exception as error:
            complaints.append(f"{type(error).__name__}: {error}")
    return observed, complaints


def rows(names: list[str], tries: int) -> Iterator[tuple[str, int, int, list[str]]]:
    """For each behaviour a line of the table, how often it was tried, and what went wrong."""
    for name in names:
        behaviour = BEHAVIOURS[name]
        engines = [each for each in ENGINES if each == "processes" or not behaviour.isolated]
        found = {engine: tried(name, engine, tries) for engine in engines}
        observed = next(iter(found.values()))[0].replace("\n", " ").replace("|", "\\|")
        complaints = [f"{name}, {engine}: {each}" for engine, (_, wrong) in found.items() for each in wrong]
        expected = LET_IN if behaviour.reason is None else "dropped, named"
        yield f"| {name} | {expected} | {observed:.110} | {', '.join(engines)} |", tries * len(engines), len(complaints), complaints


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tries", type=int, default=3)
    parser.add_argument("behaviours", nargs="*", default=list(BEHAVIOURS))
    options = parser.parse_args()
    print("| a client | should be | was | engines | tries | failures |\n|---|---|---|---|---|---|", flush=True)
    total, failures = 0, list[str]()
    for line, tries, wrong, complaints in rows(options.behaviours, options.tries):
        print(f"{line} {tries} | {wrong} |", flush=True)
        total, failures = total + tries, failures + complaints
    print(f"\n{len(options.behaviours)} behaviours, {total} tries, {len(failures)} failures", *failures, sep="\n")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
