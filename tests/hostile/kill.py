"""Runs of every method, killed at random moments, also while they resume; each must end with the bits of an undisturbed run.

    python -m tests.hostile.kill [--tries 20] [--seed 0] [--methods fedavg,local]

A strike hits the run, one worker (which is replaced), all workers or everybody, by SIGKILL or SIGTERM, after a random time or
the moment a file is half-written. After up to three strikes the run is resumed to its end, and its digest, every line of its ledger
that has no time in it and every file name are compared.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path

from tests.digests import CASES
from tests.hostile.victims import differences, go_on, plan, undisturbed, victim

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["sklearn.datasets", "coterie.engines.processes", "tests.hostile.victims"])
LONGEST = 120.0
"""Seconds for which nobody of a run may be working before it counts as hung, and seconds of the processor that it may take."""


def workers(folder: Path, run: int) -> list[int]:
    """The workers of a run: whoever else has its data mapped."""
    found = []
    for path in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):
            if str(folder) in path.read_text() and path.parent.name not in (str(run), str(os.getpid())):
                found.append(int(path.parent.name))
    return found


def strike(process: BaseProcess, folder: Path, how: str) -> None:
    """Hit a run."""
    run = process.pid or 0
    others = workers(folder, run)
    targets = {"run": [run], "everybody": [run, *others], "a worker": others[-1:], "all workers": others, "SIGTERM": [run]}[how]
    for target in targets:
        with suppress(ProcessLookupError):
            os.kill(target, signal.SIGTERM if how == "SIGTERM" else signal.SIGKILL)


def moment(folder: Path, process: BaseProcess, rng: random.Random, seconds: float) -> None:
    """Wait for a random time, or until a file is half-written."""
    until, writing = time.monotonic() + rng.uniform(0, seconds), rng.random() < 0.5
    while process.is_alive() and time.monotonic() < until:
        time.sleep(0.001)
    while writing and process.is_alive() and time.monotonic() < until + seconds:
        if any(folder.rglob(".*.part")):
            return


def family(pid: int) -> list[tuple[str, float]]:
    """Of a process and all that descend from it: the state, and the seconds of the processor."""
    found: dict[int, list[str]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            found[int(path.parent.name)] = path.read_text().rpartition(")")[2].split()
    members, size = {pid} & set(found), -1
    while len(members) > size:
        size, members = len(members), members | {each for each, fields in found.items() if int(fields[1]) in members}
    ticks = os.sysconf("SC_CLK_TCK")
    return [(found[each][0], (int(found[each][11]) + int(found[each][12])) / ticks) for each in members]


def hung(process: BaseProcess) -> bool:
    """Wait for a run. It hangs where nobody of it works for `LONGEST` seconds, or does and takes longer of the processor: that it is
    given little of it, on a machine that is busy or stopped for a measurement, does not count."""
    used, since = -1.0, time.monotonic()
    while process.is_alive():
        process.join(1.0)
        states = family(process.pid or 0)
        now = sum(seconds for _, seconds in states)
        if now > LONGEST:
            return True
        if now != used or any(state in "RDT" for state, _ in states):
            used, since = now, time.monotonic()
        if time.monotonic() - since > LONGEST:
            return process.is_alive()
    return False


def attempt(case: str, engine: str, rng: random.Random, seconds: float) -> tuple[list[str], Counter[str]]:
    """One run, struck up to three times and then resumed to its end; what is wrong with it, and what it went through."""
    strikes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as root:
        folder, table = Path(root) / "run", plan(case, engine).resolved()
        for _ in range(rng.randint(1, 3)):
            process = CONTEXT.Process(target=victim, args=(table, folder))
            process.start()
            moment(folder, process, rng, seconds)
            how = rng.choice(["run", "run", "SIGTERM", *(["everybody", "a worker", "all workers"] if engine == "processes" else [])])
            if process.is_alive():
                strikes[how] += 1
                strike(process, folder, how)
            if hung(process):
                strike(process, folder, "everybody")
                return ["it hung"], strikes
            if (folder / "summary.json").exists():
                break
        go_on(table, folder)
        return differences(folder, case), strikes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--methods", default="", help="cases of tests/digests.py, separated by commas; by default all")
    options = parser.parse_args()
    cases = options.methods.split(",") if options.methods else list(CASES)
    rng, strikes, failures, began = random.Random(options.seed), Counter[str](), [], time.monotonic()
    for number in range(options.tries):
        case, engine = cases[number % len(cases)], rng.choice(["inline", "processes"])
        start = time.monotonic()
        undisturbed(case)
        wrong, struck = attempt(case, engine, rng, max(0.5, min(4.0, time.monotonic() - start)))
        strikes += struck
        if wrong:
            failures.append(f"try {number}, {case}, {engine}: {wrong}")
            sys.stderr.write(failures[-1] + "\n")
        if (number + 1) % 10 == 0 or number + 1 == options.tries:  # a soak is long, and may be stopped
            found = {"tries": number + 1, "strikes": sum(strikes.values()), "of": dict(strikes), "failures": len(failures)}
            print(json.dumps({**found, "seconds": round(time.monotonic() - began)}), flush=True)
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
