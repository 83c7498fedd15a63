"""How long a report of a large ledger takes: 10,000 rounds x 100 clients, every client asked in every round.

python benchmarks/report.py [--rounds 10000] [--clients 100] [--every 1] [--measured]
`--measured` has every client measured too (three lines a client at every evaluation), the most a ledger of this size can hold.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

from coterie.results.gather import gather
from coterie.results.report import write_page

EXPERIMENT = {"name": "large", "method": {"name": "fedavg"}, "evaluation": {"targets": [0.5, 0.9]}, "data": {"source": [{"name": "mnist"}]}}


def write_ledger(folder: Path, rounds: int = 10_000, clients: int = 100, every: int = 1, measured: bool = False) -> Path:
    """A ledger as a run would write it, with numbers from a formula."""
    folder.mkdir(parents=True, exist_ok=True)
    experiment = {**EXPERIMENT, "rounds": rounds, "cohort": clients, "partition": {"name": "shards", "clients": clients}}
    sizes = '"payload_bytes":220840,"framed_bytes":221376}\n'
    sent = "".join(
        f'{{"event":"exchange","round":#,"task":"train","client":{client},"direction":"{way}","kind":"weights",{sizes}'
        for way in ("down", "up")
        for client in range(clients)
    )
    with (folder / "ledger.jsonl").open("w") as file:
        file.write(json.dumps({"event": "start", "experiment": experiment, "seed": 0}, separators=(",", ":")) + "\n")
        for round in range(1, rounds + 1):
            file.write(sent.replace("#", str(round)))
            if round % every == 0 or round == rounds:
                file.write("".join(_measured(round, rounds, clients if measured else 0)))
            file.write(f'{{"event":"round","round":{round},"seconds":0.5,"where":{{"clients":0.4,"evaluation":0.05}}}}\n')
        file.write(f'{{"event":"end","round":{rounds},"reached":false}}\n')
    return folder


def _measured(round: int, rounds: int, clients: int) -> list[str]:
    value = 1 - 0.9 / (1 + 20 * round / rounds)
    lines = [_line(round, "global", "null", metric, value) for metric in ("accuracy", "top5", "loss")]
    for client in range(clients):
        lines += [_line(round, "local_post", str(client), metric, value - client / 1000) for metric in ("accuracy", "top5", "loss")]
    return lines


def _line(round: int, protocol: str, client: str, metric: str, value: float) -> str:
    return f'{{"event":"evaluation","round":{round},"protocol":"{protocol}","client":{client},"metric":"{metric}","value":{value}}}\n'


def main() -> None:
    """Write, report, say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--measured", action="store_true")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = write_ledger(Path(name) / "run", chosen.rounds, chosen.clients, chosen.every, chosen.measured)
        size = (folder / "ledger.jsonl").stat().st_size
        began, worked = time.perf_counter(), time.process_time()
        found = gather([folder])
        read = time.perf_counter() - began
        page = write_page(found, Path(name) / "report.html")
        took, work = time.perf_counter() - began, time.process_time() - worked
        print(f"ledger {size / 1e6:.0f} MB; read in {read:.1f} s, reported in {took:.1f} s ({work:.1f} s of CPU)", end="; ")
        print(f"page {page.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
