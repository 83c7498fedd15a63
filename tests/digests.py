"""The final bits of every method on a small experiment, written down once: `python -m tests.digests` shows them, `--write` keeps them.

Bits depend on the processor (how wide its vectors are, which kernels torch picks), so `digests.json` has them for each that they were
written down on, and `test_digests.py` compares there. An entry that changes must change on purpose, and `CHANGELOG.md` says why; what has
changed on one processor is dropped for the others, until somebody writes it down there.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

import coterie
from coterie.running.provenance import processor

KEPT = Path(__file__).with_name("digests.json")
CNN = {"name": "cnn", "channels": [3, 5], "hidden": [12]}
BASE: dict[str, Any] = {
    "name": "digests",
    "rounds": 3,
    "cohort": 3,
    "data": {"source": "digits", "train": 300, "test": 100},
    "partition": {"name": "dirichlet", "clients": 5, "alpha": 1.0, "minimum": 10},
    "model": {"name": "mlp", "hidden": [16]},
    "training": {"epochs": 2, "batch": 16, "optimiser": {"name": "sgd", "lr": 0.1, "momentum": 0.5}},
    "engine": {"name": "inline"},
}
PUBLIC: dict[str, Any] = {"data": {**BASE["data"], "public": {"source": "digits", "samples": 60}}}
MIXED: dict[str, Any] = {**PUBLIC, "model": [{"name": "mlp", "hidden": [16]}, {"name": "mlp", "hidden": [8]}]}
FALLING = {"name": "piecewise", "values": [[1, 0.9], [2, 0.5]]}
PLAIN: dict[str, Any] = {"training": {"epochs": 2, "batch": 16, "optimiser": {"name": "sgd", "lr": 0.1}}}
STACKED: dict[str, Any] = {
    "cohort": 1.0,
    "partition": {"name": "iid", "clients": 5},
    "training": {**PLAIN["training"], "stack": 5},
    "evaluation": {"every": 3, "protocols": ["global"]},
}
KEEPING: dict[str, Any] = {"training": {**BASE["training"], "state": "kept"}}


def _method(name: str, **settings: Any) -> dict[str, Any]:
    return {"method": {"name": name, **settings}}


CASES: dict[str, dict[str, Any]] = {
    "fedavg": _method("fedavg"),
    "fedavg kept": {**_method("fedavg"), **KEEPING},
    "fedavg plain": {**_method("fedavg"), **PLAIN},
    "fedavg stacked": {**_method("fedavg"), **STACKED},
    "fedprox": _method("fedprox", mu=0.1),
    "fedprox plain": {**_method("fedprox", mu=0.1), **PLAIN},
    "fml plain": {**_method("fml"), **PLAIN},
    "fedmmd": _method("fedmmd", lam=0.5),
    "two-stream-l2": _method("two-stream-l2"),
    "fedfusion conv": {**_method("fedfusion"), "model": CNN},
    "fedfusion multi": {**_method("fedfusion", operator="multi"), "model": CNN},
    "fedfusion single": {**_method("fedfusion", operator="single"), "model": CNN},
    "fedfusion personal": {**_method("fedfusion", personal=True), "model": CNN},
    "fml": {**_method("fml", meme={"name": "mlp", "hidden": [8]}, alpha=FALLING), "model": MIXED["model"]},
    "split-metadata": {**_method("split-metadata", budget=3, server={"epochs": 3}), "model": CNN},
    "fccl": {**_method("fccl"), **MIXED, "pretraining": 2},
    "fccl lockstep": {**_method("fccl-lockstep", public={"batch": 30}), **MIXED, "pretraining": 2},
    "fccl average": {**_method("fccl", average="samples"), **PUBLIC, "pretraining": 2},
    "fedmd": {**_method("fedmd"), **MIXED, "pretraining": 2},
    "feddf": {**_method("feddf", steps=5), **MIXED},
    "feddf-client": {**_method("feddf-client"), **MIXED, "pretraining": 2},
    "rcfl-public": {**_method("rcfl-public"), **MIXED, "pretraining": 2},
    "fedmatch-public": {**_method("fedmatch-public"), **MIXED, "pretraining": 2},
    "scaffold": _method("scaffold"),
    "ditto": _method("ditto"),
    "fedper": _method("fedper"),
    "fedproto": _method("fedproto"),
    "local": {**_method("local"), "model": MIXED["model"], "pretraining": 1},
    "centralised": _method("centralised"),
    "centralised kept": {**_method("centralised"), **KEEPING},
}


def machine() -> str:
    """What bits depend on besides the code: torch's version and the kernels that this processor gets."""
    return f"torch {torch.__version__.partition('+')[0]}, {processor()}"


def digest_of(case: str) -> dict[str, str]:
    """The server's final state, and that with every client's memory."""
    with tempfile.TemporaryDirectory() as folder:
        result = coterie.run(coterie.Experiment.parse({**BASE, **CASES[case]}), Path(folder) / "run")
        return {"state": result.state.digest()[:16], "everything": result.summary["digest"][:16]}


def main() -> None:
    found = {case: digest_of(case) for case in CASES}
    if "--write" in sys.argv:
        kept = json.loads(KEPT.read_text())
        changed = {case for case, before in kept.get(machine(), {}).items() if found.get(case) != before}
        others = {name: {case: each for case, each in bits.items() if case not in changed} for name, bits in kept.items()}
        KEPT.write_text(json.dumps(others | {machine(): found}, indent=1) + "\n")
    sys.stdout.write(json.dumps({machine(): found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
