"""Seconds per exchange on the same small work: `processes`, `ray` and Flower, `python benchmarks/exchange.py`.

FedAvg on digits, three clients, one exchange a round, two workers (with Flower: three participants on loopback). The first round, in which
workers start, is left out. `flower` is `coterie deploy`, whose participants fetch messages themselves; `flower-as-it-comes` is the same
deployment by `flwr run` on SuperNodes that nobody has set up, which start a process for each message and look for one every second.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from statistics import mean

from coterie.deployment.flower import FlowerHome, free_port
from coterie.deployment.flower import started as gone_afterwards

EXPERIMENT = """
name = "exchange"
rounds = {rounds}
data = {{ source = "digits" }}
partition = {{ name = "iid", clients = 3 }}
model = {{ name = "mlp", hidden = [32] }}
method = "fedavg"
evaluation = {{ every = 100 }}
"""
NAMES = ("north", "south", "west")
COTERIE = [sys.executable, "-m", "coterie"]
PATIENCE = 600.0


@contextmanager
def started(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A command that is gone afterwards."""
    with (folder / "out.log").open("ab") as out:
        process = subprocess.Popen([*COTERIE, *arguments], cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    try:
        yield process
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=20)
        process.kill()


def seconds(run: Path) -> list[float]:
    """Of every round but the first."""
    lines = [json.loads(line) for line in (run / "ledger.jsonl").read_text().splitlines()]
    return [line["seconds"] for line in lines if line["event"] == "round" and line["round"] > 1]


def simulated(folder: Path, engine: str) -> Path:
    """An engine on this machine; where the run is."""
    options = ["--set", f"engine.name={engine}", "--set", "engine.workers=2", "--quiet", "--out", engine]
    subprocess.run([*COTERIE, "run", "experiment.toml", *options], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return folder / engine


def deployed(folder: Path, name: str) -> Path:
    """Three participants on loopback."""
    port = str(free_port())
    commands = [("server", "experiment.toml", "--clients", ",".join(NAMES), "--port", port, "--out", name)]
    commands += [("client", "--server", f"127.0.0.1:{port}", "--name", each, "--home", f"{name}-{each}", "--yes") for each in NAMES]
    with ExitStack() as stack:
        server, *_ = [stack.enter_context(started(folder, "deploy", *each, "--insecure")) for each in commands]
        server.wait(timeout=PATIENCE)
    return folder / name / "run"


def as_it_comes(folder: Path, name: str) -> Path:
    """The same as an ordinary Flower app, with all of Flower's own settings."""
    os.environ["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"] = "1.0"  # which is Flower's own
    flower, log, port = FlowerHome(folder / "flower"), folder / "flower.log", free_port()
    with ExitStack() as stack:

        def start(program: str, *words: str) -> None:
            stack.enter_context(gone_afterwards(flower.start(program, "--insecure", *words, log=log)))

        start("flower-superlink", "--disable-runtime-dependency-installation", "--port", str(port))
        (flower.home / "config.toml").write_text(f'[superlink.lab]\naddress = "127.0.0.1:{port}"\ninsecure = true\n')
        for each in NAMES:
            config = f'name="{each}" home="{folder / name}-{each}"'
            start("flower-supernode", "--superlink", f"127.0.0.1:{port}", "--port", str(free_port()), "--node-config", config)
        options = ("--clients", ",".join(NAMES), "--out", name)
        subprocess.run([*COTERIE, "deploy", "app", "experiment.toml", "app", *options], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        _until(lambda: b"Uvicorn running" in log.read_bytes())
        flower.call("run", str(folder / "app"), "lab")
        _until((folder / name / "status.json").exists)
    return folder / name / "run"


def _until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(0.2)


WAYS: dict[str, Callable[[Path, str], Path]] = {
    "processes": simulated,
    "ray": simulated,
    "flower": deployed,
    "flower-as-it-comes": as_it_comes,
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ways", nargs="*", default=list(WAYS), help=f"of {', '.join(WAYS)}; all, unless said")
    parser.add_argument("--rounds", type=int, default=6, help="one exchange each; the first is left out")
    asked = parser.parse_args()
    print(f"{'':20} {'seconds per exchange':>20}  {'fastest':>8} {'slowest':>8}  {'in all':>7}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "experiment.toml").write_text(EXPERIMENT.format(rounds=asked.rounds))
        for each in asked.ways:
            began = time.perf_counter()
            found = seconds(WAYS[each](folder, each))
            words = f"{mean(found):20.3f}  {min(found):8.3f} {max(found):8.3f}"
            print(f"{each:20} {words}  {time.perf_counter() - began:5.0f} s", flush=True)


if __name__ == "__main__":
    main()
