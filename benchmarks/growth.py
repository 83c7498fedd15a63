"""What a long run of many clients costs as it goes on: a round's processor time, memory, open files and disk, by tenths of the run.

    python benchmarks/growth.py [--rounds 1000] [--clients 10000] [--cohort 10] [--folder FOLDER]

Every client of a round trains a tiny network of its own on its few digits of MNIST and keeps it, so that memories grow in number until
every client has one, and nothing else should. Nothing is evaluated. One JSON line a tenth: means of its rounds, and what is there at
its end. Times are of the processor, so that a busy machine does not count.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

from coterie import Experiment, run
from coterie.ledger import Event
from coterie.running.checkpoint import CHECKPOINT


def experiment(rounds: int, clients: int, cohort: int) -> Experiment:
    return Experiment.parse(
        {
            "name": "growth",
            "rounds": rounds,
            "cohort": cohort,
            "method": "local",
            "data": {"source": "mnist"},
            "partition": {"name": "iid", "clients": clients},
            "model": {"name": "mlp", "hidden": [8]},
            "training": {"epochs": 1, "batch": 10, "optimiser": {"name": "sgd", "lr": 0.1}},
            "evaluation": {"protocols": [], "every": 10 * rounds},
            "engine": {"name": "inline"},
        }
    )


def look(folder: Path) -> dict[str, int]:
    """What a run uses now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    sizes = [entry.stat().st_size for entry in os.scandir(folder / "memory")]
    return {
        "rss_mb": pages * os.sysconf("SC_PAGE_SIZE") // 2**20,
        "open_files": len(os.listdir("/proc/self/fd")),
        "memories": len(sizes),
        "memories_kb": sum(sizes) // 1024,
        "checkpoint_kb": (folder / CHECKPOINT).stat().st_size // 1024,
        "ledger_kb": (folder / "ledger.jsonl").stat().st_size // 1024,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--cohort", type=int, default=10)
    parser.add_argument("--folder", type=Path, default=None, help="where to run; by default the system's temporary folder")
    options = parser.parse_args()
    tenth = max(1, options.rounds // 10)
    times = [time.process_time()]
    with tempfile.TemporaryDirectory(dir=options.folder) as root:
        folder = Path(root) / "run"

        def count(event: Event) -> None:
            if event["event"] == "round" and event["round"] % tenth == 0:
                times.append(time.process_time())
                print(
                    json.dumps({"round": event["round"], "cpu_ms": round(1e3 * (times[-1] - times[-2]) / tenth, 1), **look(folder)}),
                    flush=True,
                )

        run(experiment(options.rounds, options.clients, options.cohort), folder, callbacks=[count])


if __name__ == "__main__":
    main()
