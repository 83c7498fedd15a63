"""Arms to compare, made of a few numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coterie.results.comparison import ArmRuns
from coterie.results.read import Run
from coterie.results.tally import Tally


def run_of(seed: int, accuracy: float, crossing: int | None = None, *, setup: int = 0, steps: int = 0, **more: Any) -> Run:
    """A run of twenty rounds and 100 bytes each that reaches 0.9 in some round, and ends with an accuracy."""
    method = more.pop("method", "fedavg")
    tally = Tally.of([{"event": "start", "seed": seed, "experiment": {"method": {"name": method}, "evaluation": {"targets": [0.9]}}}])
    tally.add_bytes(0, "up", "data", setup, setup)
    for round in range(1, 21):
        tally.add_bytes(round, "up", "weights", 50, 60)
        tally.add_bytes(round, "down", "weights", 50, 60)
        tally.on_event({"event": "round", "round": round, "seconds": 0.1})
        value = accuracy if round == 20 else 0.9 if round == crossing else 0.1
        tally.on_event(evaluation(round, "global", value))
    work = {"event": "training", "round": 1, "task": "train", "purpose": "training", "site": "clients", "clients": 1}
    tally.on_event({**work, "steps": steps, "samples": steps, "loss": None})
    for clients in [more.pop("clients", 0)]:
        hidden = {"clients": clients, "worst": accuracy / 2, "worst_tenth": accuracy / 2, "spread": 0.1}
        if clients:
            tally.on_event(evaluation(20, "local_post", accuracy, final=True, **hidden))
            tally.on_event(evaluation(20, "local_post", accuracy, **hidden))
    return Run(Path("run"), tally)


def stop(arm: ArmRuns, at: float, of: int) -> ArmRuns:
    """The same runs, over, as of an experiment of so many rounds that stops at an accuracy."""
    for run in arm.runs:
        run.tally.start["experiment"] |= {"rounds": of, "evaluation": {"stop_at": at}}
        run.tally.ended = True
    return arm


def evaluation(round: int, protocol: str, value: float, **more: Any) -> dict[str, Any]:
    return {"event": "evaluation", "round": round, "protocol": protocol, "client": None, "metric": "accuracy", "value": value, **more}


def arm(label: str, accuracies: tuple[float, ...], crossings: tuple[int | None, ...] = (None,) * 9, **more: Any) -> ArmRuns:
    pairs = zip(accuracies, crossings, strict=False)
    return ArmRuns(label, [run_of(seed, accuracy, crossing, **more) for seed, (accuracy, crossing) in enumerate(pairs)])


ARMS = [
    arm("fedavg", (0.90, 0.91, 0.95), (10, 11, 12)),
    arm("better", (0.92, 0.93, 0.98), (5, 5, 5), setup=50),
    arm("noise", (0.85, 0.80, 0.86), (3, None, None)),
]
