"""Seconds per exchange on the same small work: `processes`, `ray` and Flower, `python benchmarks/exchange.py`.

FedAvg on digits, three clients, one exchange a round, two workers (with Flower: three participants on loopback). The first round, in which
workers start, is left out. For Flower also with its own interval of one second between looks for work, which `coterie deploy` shortens.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from statistics import mean

from coterie.deployment.flower import free_port

EXPERIMENT = """
name = "exchange"
rounds = 6
data = { source = "digits" }
partition = { name = "iid", clients = 3 }
model = { name = "mlp", hidden = [32] }
method = "fedavg"
evaluation = { every = 100 }
"""
NAMES = ("north", "south", "west")
COTERIE = [sys.executable, "-m", "coterie"]


@contextmanager
def started(folder: Path, environment: dict[str, str], *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A command that is gone afterwards."""
    with (folder / "out.log").open("ab") as out:
        process = subprocess.Popen([*COTERIE, *arguments], cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    try:
        yield process
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=20)
        process.kill()


def seconds(run: Path) -> float:
    """The mean over rounds, without the first."""
    lines = [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()]
    return mean(line["seconds"] for line in lines if line["event"] == "round" and line["round"] > 1)


def simulated(folder: Path, engine: str) -> float:
    """An engine on this machine."""
    options = ["--set", f"engine.name={engine}", "--set", "engine.workers=2", "--quiet", "--out", engine]
    subprocess.run([*COTERIE, "run", "experiment.toml", *options], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return seconds(folder / engine)


def deployed(folder: Path, name: str, poll: str) -> float:
    """Three participants on loopback."""
    environment, port = os.environ | {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": poll}, str(free_port())
    commands = [("server", "experiment.toml", "--clients", ",".join(NAMES), "--port", port, "--out", name)]
    commands += [("client", "--server", f"127.0.0.1:{port}", "--name", each, "--home", f"{name}-{each}", "--yes") for each in NAMES]
    with ExitStack() as stack:
        server, *_ = [stack.enter_context(started(folder, environment, "deploy", *each, "--insecure")) for each in commands]
        server.wait(timeout=280)
    return seconds(folder / name / "run")


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "experiment.toml").write_text(EXPERIMENT)
        wanted = sys.argv[1:] or ["processes", "ray", "flower", "flower-as-it-comes"]
        for each in wanted:
            began = time.perf_counter()
            poll = "1.0" if each.endswith("comes") else "0.1"
            found = deployed(folder, each, poll) if each.startswith("flower") else simulated(folder, each)
            print(f"{each:20} {found:8.3f} s per exchange   ({time.perf_counter() - began:.0f} s in all)", flush=True)


if __name__ == "__main__":
    main()
