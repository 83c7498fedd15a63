"""What durability costs: rounds with and without waiting for the disk, in turns, in one run of this script.

    python benchmarks/durability.py [--rounds 60] [--repeats 5] [--folder FOLDER]

Two workloads on scikit-learn's digits, both of tiny rounds, where the share of the disk is largest: FedAvg, whose clients keep
nothing (a round syncs the ledger, the checkpoint and a folder), and personal models at ten clients a round (also ten memories).
Of each, runs with `engine.durable` on and off take turns; printed are the medians of a round's seconds and their difference.
`--folder` says on which disk: what a sync costs is the disk's to say.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
import time
from pathlib import Path
from statistics import median

from coterie import Experiment, run
from coterie.ledger import Event

WORKLOADS = {"fedavg": "fedavg", "local, ten memories a round": "local"}


def seconds_a_round(method: str, durable: bool, rounds: int, folder: Path) -> float:
    """From one round's last line to the next's: the checkpoint between them is in it."""
    settings = [f"method={method}", f"rounds={rounds}", "cohort=1.0", "evaluation.protocols=[]", "evaluation.every=1000000"]
    times: list[float] = []

    def clock(event: Event) -> None:
        if event["event"] == "round":
            times.append(time.perf_counter())

    settings += ["engine.name=inline", f"engine.durable={str(durable).lower()}"]
    run(Experiment.load("digits-two-class", settings), folder, callbacks=[clock])
    return median(after - before for before, after in itertools.pairwise(times))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=None, help="where to run; by default the system's temporary folder")
    options = parser.parse_args()
    for name, method in WORKLOADS.items():
        found: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(options.repeats):
            for durable in (True, False):
                with tempfile.TemporaryDirectory(dir=options.folder) as folder:
                    found[durable].append(seconds_a_round(method, durable, options.rounds, Path(folder) / "run"))
        with_syncs, without = median(found[True]), median(found[False])
        line = {"workload": name, "durable_ms": 1e3 * with_syncs, "not_durable_ms": 1e3 * without, "cost_ms": 1e3 * (with_syncs - without)}
        print(json.dumps({key: round(value, 2) if isinstance(value, float) else value for key, value in line.items()}))


if __name__ == "__main__":
    main()
