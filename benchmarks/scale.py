"""How a run grows: with clients registered, with clients that keep something, with rounds, with the cohort and with the network.

    python -m benchmarks.scale registered [--clients 1000,10000,100000]    100 a round; seconds a round, checkpoint, memory
    python -m benchmarks.scale stateful [--clients 400] [--rounds 12]      200,000 floats each, all in memory against all spilled
    python -m benchmarks.scale long --clients 10000 --rounds 1000          personal models: seconds, memory, files and disk over rounds
    python -m benchmarks.scale model                                       seconds and bytes against cohort and network: a fitted cost model

Data are random images of 8x8 pixels, four to a client: what is measured is the machinery. Each command prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

import numpy as np

from coterie import Experiment, run
from coterie.data.pool import Pool
from coterie.data.sources.base import Source
from coterie.ledger import Event
from coterie.settings import Count, spec

EACH = 4
"""Samples of a client."""


@spec
class Noise(Source):
    """Random images, `EACH` for every client."""

    name: ClassVar[str] = "noise"
    package: ClassVar[str] = "numpy"
    clients: Count = 1000

    def reads(self, folder: Path) -> Iterator[Path]:
        return iter(())

    def load(self, folder: Path) -> Pool:
        rng = np.random.default_rng(0)
        total = EACH * self.clients + 100
        return Pool(rng.integers(0, 256, (total, 1, 8, 8), dtype=np.uint8), rng.integers(0, 10, total), train=total - 100, classes=10)


def experiment(clients: int, rounds: int, **changes: Any) -> Experiment:
    """Small clients of a small network, a hundred a round."""
    table = {
        "name": "scale",
        "data": {"source": {"name": "benchmarks.scale:Noise", "clients": clients}},
        "partition": {"name": "iid", "clients": clients},
        "model": {"name": "mlp", "hidden": [32]},
        "method": "fedavg",
        "rounds": rounds,
        "cohort": 100,
        "training": {"batch": EACH, "optimiser": {"name": "sgd", "lr": 0.01}},
        "evaluation": {"every": rounds, "protocols": ["global"], "final": 1},
    }
    return Experiment.parse({**table, **changes})


def measured(plan: Experiment, looked: list[dict[str, float]] | None = None) -> dict[str, Any]:
    """Run it: seconds from round to round, its checkpoint in between included, the memory of this process, and sizes of files.

    `looked` is given what all its processes hold and all its files, after every round: that takes time of its own.
    """
    ended, resident, handles = list[float](), list[float](), list[int]()
    folder = Path(tempfile.mkdtemp()) / "run"

    def hear(event: Event) -> None:
        if event["event"] == "round":
            ended.append(time.perf_counter())
            resident.append(_resident(os.getpid()))
            handles.append(len(os.listdir("/proc/self/fd")))
            if looked is not None:
                looked.append(_looked(folder))

    began = time.perf_counter()
    run(plan, folder, callbacks=[hear])
    rounds = np.diff(ended[:-1]).tolist()
    return {
        "start": ended[0] - began,
        "round": median(rounds),
        "rounds": rounds,
        "parent_mb": resident,
        "open_files": handles,
        "checkpoint_bytes": (folder / "checkpoint.safetensors").stat().st_size,
        "ledger_bytes": (folder / "ledger.jsonl").stat().st_size,
        "memory_bytes": sum(path.stat().st_size for path in (folder / "memory").glob("*")),
    }


def _resident(process: int) -> float:
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 2**20


def _looked(folder: Path) -> dict[str, float]:
    """Megabytes of the workers, and how many memories of clients there are in how many megabytes."""
    workers = [each.pid for each in multiprocessing.active_children() if each.pid]
    sizes = [each.stat().st_size for each in os.scandir(folder / "memory")]
    return {"workers_mb": sum(map(_resident, workers)), "memories": len(sizes), "memories_mb": sum(sizes) / 2**20}


def registered(options: argparse.Namespace) -> dict[str, Any]:
    """The same hundred a round, of more and more registered clients; twice, so that the order does not decide."""
    counts = [int(each) for each in options.clients.split(",")]
    turns = [{count: measured(experiment(count, options.rounds)) for count in counts} for _ in range(2)]
    best = {count: min((turn[count] for turn in turns), key=lambda found: found["round"]) for count in counts}
    kept = ("start", "round", "checkpoint_bytes", "ledger_bytes")
    ratio = best[counts[-1]]["round"] / best[counts[0]]["round"]
    return {"ratio": ratio, **{str(count): {key: best[count][key] for key in kept} for count in counts}}


def stateful(options: argparse.Namespace) -> dict[str, Any]:
    """FML on the MLP of 199,210 parameters; what clients keep is all in the workers' memory, or all on the disk."""
    clients = int(options.clients.split(",")[0])
    changes = {"model": "mlp", "method": "fml", "data": {"source": {"name": "benchmarks.scale:Noise", "clients": clients}, "size": 28}}
    found = {}
    for name, budget in (("in memory", 8192), ("spilled", 1)):
        looked = list[dict[str, float]]()
        one = measured(experiment(clients, options.rounds, **changes, engine={"memory_mb": budget}), looked)
        found[name] = {
            "round": one["round"],
            "workers_mb": max(each["workers_mb"] for each in looked),
            "memories_mb": looked[-1]["memories_mb"],
        }
    return {"clients": clients, "ratio": found["spilled"]["round"] / found["in memory"]["round"], **found}


def long(options: argparse.Namespace) -> dict[str, Any]:
    """Every client keeps its model, 16 MB of them in memory: what a round takes and leaves behind, ten times over the run."""
    clients, looked = int(options.clients.split(",")[0]), list[dict[str, float]]()
    changes = {"method": "local", "engine": {"memory_mb": 16}, "evaluation": {"every": options.rounds, "protocols": []}}
    found = measured(experiment(clients, options.rounds, **changes), looked)
    tenth = max(len(found["rounds"]) // 10, 1)
    ends = range(tenth - 1, 10 * tenth, tenth)
    return {
        "clients": clients,
        "round": [at + 1 for at in ends],
        "seconds": [median(found["rounds"][at + 1 - tenth : at + 1]) for at in ends],
        "parent_mb": [found["parent_mb"][at] for at in ends],
        "open_files": [found["open_files"][at] for at in ends],
        **{key: [looked[at][key] for at in ends] for key in ("workers_mb", "memories", "memories_mb")},
        "checkpoint_bytes": found["checkpoint_bytes"],
        "ledger_bytes_a_round": found["ledger_bytes"] / options.rounds,
    }


def model(options: argparse.Namespace) -> dict[str, Any]:
    """Seconds a round = fixed + clients * (each + parameters * per parameter), by least squares over nine points."""
    points = []
    for cohort in (10, 50, 200):
        for hidden in (32, 256, 1024):
            plan = experiment(1000, options.rounds, cohort=cohort, model={"name": "mlp", "hidden": [hidden]})
            points.append((cohort, 64 * hidden + hidden + hidden * 10 + 10, measured(plan)["round"]))
    table = np.array([(1, cohort, cohort * size) for cohort, size, _ in points], float)
    seconds = np.array([each for _, _, each in points])
    weights = 1 / seconds  # relative errors count
    fixed, each, parameter = np.linalg.lstsq(table * weights[:, None], seconds * weights, rcond=None)[0]
    error = np.abs(table @ [fixed, each, parameter] / seconds - 1)
    return {"points": points, "fixed": fixed, "each_client": each, "each_parameter": parameter, "largest_relative_error": error.max()}


COMMANDS = {"registered": registered, "stateful": stateful, "long": long, "model": model}


def main() -> None:
    """Measure one thing and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("--clients", default="1000,10000,100000")
    parser.add_argument("--rounds", type=int, default=12)
    options = parser.parse_args()
    print(json.dumps(COMMANDS[options.command](options), indent=1))


if __name__ == "__main__":
    main()
