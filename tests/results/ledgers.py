"""Ledgers to read: written by the Ledger itself with numbers from a formula, so that every test takes a moment."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean
from typing import Any

from coterie.ledger import Ledger
from coterie.results.statistics import fairness

METHODS: dict[str, dict[str, Any]] = {"fedavg": {}, "fedprox": {"mu": 0.1}, "local": {}}
CEILING = {"fedavg": 0.90, "fedprox": 0.93, "local": 0.6, "centralised": 0.97}
ROUNDS, CLIENTS, CLASSES = 12, 6, 4
SET = (0, 2, 3, 5)
"""The clients that are measured in every round; all of them are at the end."""


def accuracy(method: str, seed: int, round: int) -> float:
    """Of the server's model; of a client's, before what it lacks."""
    return CEILING[method] * (1 - 0.7**round) + 0.004 * seed


def of_client(method: str, seed: int, round: int, client: int) -> float:
    return accuracy(method, seed, round) - 0.05 * client / CLIENTS


def last_mean(method: str, seed: int) -> float:
    """Over all clients, at the end."""
    return mean(of_client(method, seed, ROUNDS, client) for client in range(CLIENTS))


def experiment(method: str, seed: int, /, **changes: Any) -> dict[str, Any]:
    return {
        "name": "toy",
        "data": {"source": [{"name": "digits"}]},
        "partition": {"name": "classes", "clients": CLIENTS},
        "method": {"name": method, **METHODS.get(method, {})},
        "model": [{"name": "mlp", "hidden": [32]}],
        "training": {"epochs": 2, "batch": 10, "optimiser": {"name": "sgd", "lr": 0.05}},
        "seed": seed,
        "rounds": ROUNDS,
        "cohort": 0.5,
        "evaluation": {"protocols": list(protocols(method)), "targets": [0.5, 0.85]},
        **changes,
    }


def protocols(method: str) -> tuple[str, ...]:
    return {"local": ("local_post",), "centralised": ("global",)}.get(method, ("global", "local_post"))


def write_run(folder: Path, method: str, seed: int, /, **changes: Any) -> Path:
    """One run, with everything that a ledger can hold."""
    folder.mkdir(parents=True)
    with Ledger(folder / "ledger.jsonl") as ledger:
        settings = experiment(method, seed, **changes)
        ledger.write("start", experiment=settings, seed=seed, digest=f"{method}{seed}" * 8, versions={"coterie": "0.1.0"})
        ledger.write("partition", **partition(seed))
        sizes = {"payload_bytes": 5000, "framed_bytes": 5000}
        ledger.write("exchange", round=0, task="setup", client=0, direction="down", kind="public data", **sizes)
        write_work(ledger, 0, "training", steps=50)
        for round in range(1, ROUNDS + 1):
            write_round(ledger, method, seed, round)
        write_logs(ledger)
        ledger.write("new_client", client=CLIENTS, accuracy=[0.2, 0.6, 0.7 + 0.01 * seed], plateau=0.7, epochs_to_plateau=2)
        ledger.write("evaluation", round=ROUNDS + 1, protocol="new_client", client=CLIENTS, metric="accuracy", value=0.2, epoch=0)
        ledger.write("end", round=ROUNDS, reached=False)
    return folder


def keep_rounds(folder: Path, rounds: int) -> Path:
    """The same run, stopped after so many rounds."""
    path = folder / "ledger.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if json.loads(line).get("round", 0) <= rounds))
    return folder


def partition(seed: int) -> dict[str, Any]:
    counts = [[10 * (c % CLASSES == label) + 5 * ((c + 1) % CLASSES == label) + seed for label in range(CLASSES)] for c in range(CLIENTS)]
    totals = [sum(column) for column in zip(*counts, strict=True)]
    return {"clients": CLIENTS, "classes": CLASSES, "totals": totals, "counts": counts, "domains": [], "domain_of": None, "note": ""}


def write_work(ledger: Ledger, round: int, purpose: str, steps: int, site: str = "clients", loss: float | None = None) -> None:
    work = {"clients": 3, "steps": steps, "samples": 10 * steps, "loss": loss}
    ledger.write("training", round=round, task="train", purpose=purpose, site=site, **work)


def write_round(ledger: Ledger, method: str, seed: int, round: int) -> None:
    for client in range(CLIENTS):
        for direction in ("down", "up") if method not in ("local", "centralised") else ():
            sizes = {"payload_bytes": 4000, "framed_bytes": 4100}
            ledger.write("exchange", round=round, task="train", client=client, direction=direction, kind="weights", **sizes)
    if method == "fedprox" and round % 5 == 0:
        ledger.write("rejected", round=round, task="train", client=2, reason="model/w is not finite <script>alert(1)</script>")
    site = "server" if method == "centralised" else "clients"
    write_work(ledger, round, "training", steps=60, site=site, loss=2 * 0.8**round + 0.01 * seed)
    if method in ("fedavg", "fedprox"):
        write_work(ledger, round, "evaluation", steps=20)
    for protocol in protocols(method):
        (write_global if protocol == "global" else write_clients)(ledger, method, seed, round)
    ledger.write("round", round=round, seconds=0.5, where={"clients": 0.3, "evaluation": 0.1, "work": 0.55})


def write_global(ledger: Ledger, method: str, seed: int, round: int) -> None:
    value = accuracy(method, seed, round)
    ledger.write("evaluation", round=round, protocol="global", client=None, metric="accuracy", value=value)
    ledger.write("evaluation", round=round, protocol="global", client=None, metric="loss", value=1 - value)
    last = {"confusion": [[8 if a == b else 1 for b in range(CLASSES)] for a in range(CLASSES)]} if round == ROUNDS else {}
    ledger.write("classes", round=round, protocol="global", accuracy=[value, value / 2, None, 0.1 * seed], **last)


def write_clients(ledger: Ledger, method: str, seed: int, round: int) -> None:
    values = {client: of_client(method, seed, round, client) for client in range(CLIENTS)}
    for client in values if round == ROUNDS else SET:
        about = {"round": round, "protocol": "local_post", "client": client}
        ledger.write("evaluation", **about, metric="accuracy", value=values[client])
    write_mean(ledger, round, [values[client] for client in SET])
    if round == ROUNDS:
        write_mean(ledger, round, list(values.values()), final=True)


def write_mean(ledger: Ledger, round: int, values: list[float], **more: Any) -> None:
    found = fairness(values)
    hidden = {"clients": found.clients, "worst": found.worst, "worst_tenth": found.worst_tenth, "spread": found.spread}
    about = {"round": round, "protocol": "local_post", "client": None}
    ledger.write("evaluation", **about, metric="accuracy", value=mean(values), **hidden, **more)
    ledger.write("evaluation", **about, metric="loss", value=1 - mean(values), clients=found.clients, **more)


def write_logs(ledger: Ledger) -> None:
    for round in (1, 2):
        ledger.write("log", round=round, client=None, name="alpha and beta", values=[0.1 * round, 0.2])
        ledger.write("log", round=round, client=3, name="fusion", values=[0.01 * entry * round for entry in range(20)])
    ledger.write("log", round=2, client=None, name="public correlation", values=[[1.0, -0.5], [-0.5, 1.0]])
    for client in (2, 0):
        ledger.write("log", round=2, client=client, name="chosen", values=[[[0.0, 1.0], [1.0, 0.0]]] * 3)
