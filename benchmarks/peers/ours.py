"""Coterie, by default or with its clients stacked (`python ours.py W2 stacked`)."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from work import BATCH, LR, Clock, chosen

from coterie import Experiment, run
from coterie.ledger import Event


def main() -> None:
    """Print the seconds of every round: from its first message to its checkpoint's end, but for the evaluation of the last."""
    work, clock = chosen(), Clock()
    training = {"epochs": 1, "batch": BATCH, "optimiser": {"name": "sgd", "lr": LR}}
    if "stacked" in sys.argv:
        training["stack"] = 10
    table = {
        "name": "peers",
        "data": {"source": "mnist"},
        "partition": {"name": "iid", "clients": work.clients},
        "model": work.model,
        "method": "fml" if sys.argv[1] == "W3" else "fedavg",
        "rounds": work.rounds + 1,
        "cohort": work.cohort,
        "training": training,
        "evaluation": {"every": work.rounds + 1, "protocols": ["global"]},
    }

    def hear(event: Event) -> None:
        if event["event"] == "round" and event["round"] <= work.rounds:
            clock.tell(event["seconds"])

    run(Experiment.parse(table), Path(tempfile.mkdtemp()) / "run", callbacks=[hear])


if __name__ == "__main__":
    main()
