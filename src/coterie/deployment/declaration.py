"""What will leave a participant: found by having the method run once, here and on noise, and reading the ledger of that."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from coterie.deployment.folders import registered
from coterie.engines import Inline
from coterie.errors import RunError
from coterie.ledger import Event
from coterie.running.experiment import Experiment
from coterie.running.rounds import run

__all__ = ["declared", "leaving"]


def leaving(plan: Experiment) -> tuple[Counter[str], Counter[str]]:
    """By kind of content: bytes that one client sends in one round, and of how many single samples it tells.

    >>> from coterie.methods import METHODS
    >>> from coterie.testing import small_experiment
    >>> leaving(small_experiment(METHODS.resolve("fedavg")))
    (Counter({'weights': 4840}), Counter())
    """
    if plan.data.source[0].name == "participants":
        plan = registered(plan, dict.fromkeys([f"trial-{at}" for at in range(plan.cohort_size(8))], 40))
    trial = plan.replace(rounds=1, pretraining=0, new_clients=None, training=plan.training.replace(epochs=1, steps=1))
    seen: list[Event] = []
    with tempfile.TemporaryDirectory() as folder, suppress(RunError):  # with noise for data there may be nothing to be measured on
        run(trial, Path(folder) / "run", engine=Inline(), callbacks=[seen.append])
    up = [event for event in seen if event["event"] == "exchange" and event["direction"] == "up" and event["round"] == 1]
    clients = {event["client"] for event in up}
    sizes, samples = Counter[str](), Counter[str]()
    for event in up:
        if event["client"] == min(clients):
            sizes[event["kind"]] += event["payload_bytes"]
            samples[event["kind"]] += event.get("samples", 0)
    return sizes, +samples


def declared(plan: Experiment, refused: frozenset[str] = frozenset()) -> Iterator[str]:
    """The same in sentences, for whoever decides."""
    sizes, samples = leaving(plan)
    yield "in every round that this participant is drawn for, it would send:"
    for kind, size in sizes.items():
        rows = f", about single samples (in a trial: {samples[kind]})" if samples[kind] else ""
        yield f"  {kind}: {size:,} bytes{rows}{' - NOT SENT (--never-send): it will be dropped' if kind in refused else ''}"
    for kind in sorted(refused - sizes.keys()):
        yield f"  {kind}: nothing is called so in this experiment (--never-send)"
    yield "and beside that: how many samples it has, its losses, accuracies on its own data, and what the method logs"
