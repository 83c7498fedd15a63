"""Ledgers to report on: written by the Ledger itself with numbers from a formula, so that every test takes a moment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coterie.ledger import Ledger

METHODS = {"fedavg": {}, "fedprox": {"mu": 0.1}, "local": {}}
ROUNDS, CLIENTS, CLASSES = 12, 6, 4


def accuracy(method: str, seed: int, round: int) -> float:
    ceiling = {"fedavg": 0.90, "fedprox": 0.93, "local": 0.6}[method]
    return ceiling * (1 - 0.7**round) + 0.004 * seed


def experiment(method: str, seed: int, /, **changes: Any) -> dict[str, Any]:
    return {
        "name": "toy",
        "data": {"source": [{"name": "digits"}]},
        "partition": {"name": "classes", "clients": CLIENTS},
        "method": {"name": method, **METHODS[method]},
        "seed": seed,
        "rounds": ROUNDS,
        "cohort": CLIENTS,
        "evaluation": {"protocols": ["global", "local_post"], "targets": [0.5, 0.85]},
        **changes,
    }


def write_run(folder: Path, method: str, seed: int, /, **changes: Any) -> Path:
    """One run, with everything that a ledger can hold."""
    folder.mkdir(parents=True)
    with Ledger(folder / "ledger.jsonl") as ledger:
        ledger.write(
            "start", experiment=experiment(method, seed, **changes), seed=seed, digest=f"{method}{seed}" * 8, versions={"coterie": "0.1.0"}
        )
        counts = [
            [10 * (c % CLASSES == label) + 5 * ((c + 1) % CLASSES == label) + seed for label in range(CLASSES)] for c in range(CLIENTS)
        ]
        ledger.write(
            "partition",
            clients=CLIENTS,
            classes=CLASSES,
            totals=[sum(c) for c in zip(*counts, strict=True)],
            counts=counts,
            domains=[],
            domain_of=None,
            note="",
        )
        ledger.write(
            "exchange", round=0, task="setup", client=0, direction="down", kind="public data", payload_bytes=5000, framed_bytes=5000
        )
        for round in range(1, ROUNDS + 1):
            write_round(ledger, method, seed, round)
        write_exhibits(ledger)
        ledger.write("new_client", client=CLIENTS, accuracy=[0.2, 0.6, 0.7 + 0.01 * seed], plateau=0.7, epochs_to_plateau=2)
        ledger.write("evaluation", round=ROUNDS + 1, protocol="new_client", client=CLIENTS, metric="accuracy", value=0.2, epoch=0)
        ledger.write("end", round=ROUNDS, reached=False)
    return folder


def write_round(ledger: Ledger, method: str, seed: int, round: int) -> None:
    for client in range(CLIENTS):
        for direction in ("down", "up") if method != "local" else ():
            sizes = {"payload_bytes": 4000, "framed_bytes": 4100}
            ledger.write("exchange", round=round, task="train", client=client, direction=direction, kind="weights", **sizes)
    if method == "fedprox" and round % 5 == 0:
        ledger.write("rejected", round=round, task="train", client=2, reason="model/w is not finite <script>alert(1)</script>")
    value = accuracy(method, seed, round)
    for protocol in ("global", "local_post") if method != "local" else ("local_post",):
        for client in range(CLIENTS) if protocol == "local_post" else ():
            ledger.write(
                "evaluation", round=round, protocol=protocol, client=client, metric="accuracy", value=value - 0.05 * client / CLIENTS
            )
        ledger.write("evaluation", round=round, protocol=protocol, client=None, metric="accuracy", value=value)
        ledger.write("evaluation", round=round, protocol=protocol, client=None, metric="loss", value=1 - value)
    ledger.write("round", round=round, seconds=0.5, where={"clients": 0.3, "evaluation": 0.1, "work": 0.55})


def write_exhibits(ledger: Ledger) -> None:
    for round in (1, 2):
        ledger.write(
            "exhibit", round=round, client=None, name="alpha", title="Alpha", draw="lines", x="round", y="", values=[0.1 * round, 0.2]
        )
    ledger.write("exhibit", round=2, client=1, name="bars", title="Weights", draw="bars", x="", y="", values=[1.0, 2.0, 3.0])
    ledger.write(
        "exhibit", round=2, client=None, name="heat", title="Correlation", draw="heatmap", x="", y="", values=[[1.0, -0.5], [-0.5, 1.0]]
    )
    ledger.write(
        "exhibit", round=2, client=0, name="pics", title="Chosen", draw="images", x="", y="", values=[[[0.0, 1.0], [1.0, 0.0]]] * 3
    )
