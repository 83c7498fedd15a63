"""Coterie, as a person runs it: `coterie run`, by default or with its clients stacked (`python ours.py W2 stacked`)."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from work import BATCH, LR, Clock, chosen

STACK = 25


def settings() -> Iterator[str]:
    """What tells the work from the experiment `mnist-shards`."""
    work = chosen()
    yield from (f"model={work.model}", f"cohort={work.cohort}", f"method={'fml' if sys.argv[1] == 'W3' else 'fedavg'}")
    yield f'partition={{name="iid", clients={work.clients}}}'
    yield f'training={{epochs=1, batch={BATCH}, optimiser={{name="sgd", lr={LR}}}{f", stack={STACK}" if "stacked" in sys.argv else ""}}}'
    yield from (f"rounds={work.rounds + 1}", f'evaluation={{every={work.rounds + 1}, protocols=["global"]}}')


def events(ledger: Path, process: subprocess.Popen[bytes]) -> Iterator[dict[str, Any]]:
    """What happens, as it is written down."""
    while not ledger.exists():
        time.sleep(0.005)
    with ledger.open() as file:
        while process.poll() is None:
            line = file.readline()
            if line.endswith("\n"):
                yield json.loads(line)
            else:
                file.seek(file.tell() - len(line))
                time.sleep(0.005)


def main() -> None:
    """Print the seconds of every round but the last, which is evaluated: from when one is written down to when the next is, so that what
    comes between them, a checkpoint, is counted."""
    work, folder = chosen(), Path(tempfile.mkdtemp()) / "run"
    options = [part for setting in settings() for part in ("--set", setting)]
    command = [sys.executable, "-m", "coterie", "run", "mnist-shards", "--out", str(folder), "--quiet", *options]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        clock = Clock()
        for event in events(folder / "ledger.jsonl", process):
            if event["event"] == "round" and event["round"] <= work.rounds:
                clock.stop()
                clock.start()


if __name__ == "__main__":
    main()
