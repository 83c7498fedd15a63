"""The same work in Coterie, its peers and a bare loop, side by side in one sitting.

    python benchmarks/peers/environments.py
    COTERIE_DATA=... python benchmarks/peers/run.py [--works W1,W2,W3] [--peers bare,coterie,fedjax,...] [--turns 3] [--out FILE]

Everybody takes a turn, then everybody takes the next: what disturbs the machine disturbs all. Of each turn come the median of its rounds
without the first, its CPU seconds a round, the seconds from the command to the end of the first round (W4), and the peak memory of all
its processes together (W5: the sum of proportional shares, so that what is shared is counted once). Of all turns come medians, and ratios
to the bare loop divided by the cores. W6 has a command of its own: `comparison.py`.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from work import WORKS

HERE = Path(__file__).parent
COMMANDS = {
    "bare": ("coterie", ["bare.py"]),
    "together": ("coterie", ["bare.py", "together"]),
    "coterie": ("coterie", ["ours.py"]),
    "stacked": ("coterie", ["ours.py", "stacked"]),
    "fedjax": ("fedjax", ["with_fedjax.py"]),
    "flower": ("flower", ["with_flower.py"]),
    "pfl": ("pfl", ["with_pfl.py"]),
}
"""Name -> its environment, and its script with what follows the name of the work."""
ONLY = {"W3": {"coterie", "stacked"}}
"""Works that only some can do as they come."""
CORES = len(os.sched_getaffinity(0))
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
"""Whoever wants fewer threads than a machine has says so itself: a peer that uses all would be held back by our habits."""


@dataclass
class Turn:
    """One run of one peer."""

    rounds: list[float] = field(default_factory=list)
    first: float = float("nan")
    """Seconds from the command to the end of the first round."""
    peak: float = 0.0
    """MB of all processes."""
    cpu: list[float] = field(default_factory=list)
    """CPU seconds of all processes so far, at the end of each round: what a busy machine does not change much."""


def take_turn(peer: str, work: str, limit: float) -> Turn:
    """Run a peer once, and watch it."""
    environment, (script, *more) = COMMANDS[peer]
    python = HERE / ".venvs" / environment / "bin" / "python"
    began, turn = time.perf_counter(), Turn()
    process = subprocess.Popen(
        [python, script, work, *more],
        cwd=HERE,
        env={name: value for name, value in os.environ.items() if name not in THREADS},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    threading.Thread(target=_watch, args=(process, turn), daemon=True).start()
    stop = threading.Timer(limit, process.kill)
    stop.start()
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("ROUND "):
            if not turn.rounds:
                turn.first = time.perf_counter() - began
            turn.rounds.append(json.loads(line.removeprefix("ROUND "))["seconds"])
            turn.cpu.append(sum(map(_cpu, _session(process.pid))))
    process.wait()
    stop.cancel()
    if len(turn.rounds) < WORKS[work].rounds:
        print(
            f"{work} {peer}: {len(turn.rounds)} of {WORKS[work].rounds} rounds in {limit:.0f} s, exit code {process.returncode}",
            file=sys.stderr,
        )
    return turn


def _watch(process: subprocess.Popen[str], turn: Turn) -> None:
    while process.poll() is None:
        turn.peak = max(turn.peak, sum(map(_megabytes, _session(process.pid))))
        time.sleep(0.25)


def _session(leader: int) -> list[int]:
    """All processes of a session: who forks, and who was then left alone, is still in it."""
    return [int(entry.name) for entry in Path("/proc").glob("[0-9]*") if _stat(int(entry.name))[3] == str(leader)]


def _stat(pid: int) -> list[str]:
    """What the kernel says of a process, after its name."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["0"] * 50


def _cpu(pid: int) -> float:
    """User and system seconds, those of children that have ended included."""
    return sum(map(int, _stat(pid)[11:15])) / os.sysconf("SC_CLK_TCK")


def _megabytes(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:")), 0.0)


def summed(turns: list[Turn], peer: str) -> dict[str, float]:
    """Medians over turns."""
    share = CORES if peer == "bare" else 1
    rounds = [median(turn.rounds[1:]) / share for turn in turns if len(turn.rounds) > 1]
    return {
        "round": median(rounds) if rounds else float("nan"),
        "fastest": min(min(turn.rounds[1:]) for turn in turns if len(turn.rounds) > 1) / share if rounds else float("nan"),
        "cpu": median(map(_cpu_a_round, turns)),
        "first": median(turn.first for turn in turns),
        "peak_mb": median(turn.peak for turn in turns),
    }


def _cpu_a_round(turn: Turn) -> float:
    return (turn.cpu[-1] - turn.cpu[0]) / (len(turn.cpu) - 1) if len(turn.cpu) > 1 else float("nan")


def shown(works: dict[str, dict[str, dict[str, float]]]) -> str:
    """A table in Markdown."""
    lines = ["| work | who | s a round | of bare / cores | CPU s a round | start to end of round 1, s | peak, MB |"]
    lines.append("|---|---|---|---|---|---|---|")
    for work, peers in works.items():
        floor = peers["bare"]["round"] if "bare" in peers else float("nan")
        for peer, found in peers.items():
            ratio = found["round"] / floor
            rest = f"{found['cpu']:.3f} | {found['first']:.1f} | {found['peak_mb']:.0f} |"
            lines.append(f"| {work} | {peer} | {found['round']:.3f} | {ratio:.2f} | {rest}")
    return "\n".join(lines)


def main() -> None:
    """Measure, print a table, and write everything down."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--works", default="W1,W2,W3")
    parser.add_argument("--peers", default=",".join(COMMANDS))
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--limit", type=float, default=300.0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if not (Path(os.environ.get("COTERIE_DATA", "")) / "mnist").is_dir():
        parser.error("$COTERIE_DATA names no folder with MNIST in it")
    compileall.compile_dir(HERE.parents[1] / "src", quiet=1)  # as pip has done with every peer's modules
    found: dict[str, dict[str, list[Turn]]] = {}
    for work in options.works.split(","):
        peers = [peer for peer in options.peers.split(",") if peer in ONLY.get(work, COMMANDS)]
        for _ in range(options.turns):
            for peer in peers:
                turn = take_turn(peer, work, options.limit)
                print(work, peer, json.dumps(vars(turn)), file=sys.stderr, flush=True)
                found.setdefault(work, {}).setdefault(peer, []).append(turn)
    works = {work: {peer: summed(turns, peer) for peer, turns in peers.items()} for work, peers in found.items()}
    print(shown(works))
    if options.out is not None:
        raw = {work: {peer: [vars(turn) for turn in turns] for peer, turns in peers.items()} for work, peers in found.items()}
        options.out.write_text(json.dumps({"cores": CORES, "medians": works, "turns": raw}, indent=1))


if __name__ == "__main__":
    main()
