"""W6: a comparison of four methods, five seeds and thirty rounds on the 8x8 digits, from the shell to the table.

    python benchmarks/peers/comparison.py [--coterie PATH-OF-THE-COMMAND ...] [--turns 3]

Several commands (a version before and one after) take turns. `--trained-only` leaves out what the first edition did not do, training
clients only to measure them, and `local`, which has nothing else to be measured by: the same steps for both.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

METHODS = "fedavg,fedmmd,fedprox"
ALL, TRAINED_ONLY = ["--methods", f"{METHODS},local"], ["--methods", METHODS, "--set", 'evaluation.protocols=["global"]']


def seconds(command: str, options: list[str]) -> float:
    """From the shell to the table."""
    with tempfile.TemporaryDirectory() as folder:
        line = [Path(command).absolute(), "compare", "digits-two-class", "--seeds", "0,1,2,3,4", *options]
        compiled = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}  # as where it is installed
        began = time.perf_counter()
        subprocess.run(line, cwd=folder, env=compiled, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return time.perf_counter() - began


def main() -> None:
    """Print the seconds of every turn, and medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--coterie", nargs="+", default=[str(Path(sys.executable).with_name("coterie"))])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--trained-only", action="store_true")
    options = parser.parse_args()
    chosen = TRAINED_ONLY if options.trained_only else ALL
    turns = [{command: seconds(command, chosen) for command in options.coterie} for _ in range(options.turns)]
    print(json.dumps({"turns": turns, "medians": [median(turn[command] for turn in turns) for command in options.coterie]}, indent=1))


if __name__ == "__main__":
    main()
