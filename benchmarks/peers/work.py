"""The work that every peer is given: MNIST dealt evenly to clients, one network, plain SGD, batches of ten, one epoch a round.

Needs NumPy only, so that it can be imported in every peer's own environment, and that only where data are read: who starts another program
does not pay for it.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import numpy as np

LR, BATCH, SEED = 0.05, 10, 0
Data: TypeAlias = "list[tuple[np.ndarray, np.ndarray]]"


@dataclass(frozen=True)
class Work:
    """What is done in a round, and in how many rounds."""

    model: str
    """`cnn` (1,663,370 parameters) or `mlp` (199,210)."""
    clients: int
    cohort: int
    rounds: int

    @property
    def samples(self) -> int:
        """Of each client."""
        return 60_000 // self.clients


WORKS = {
    "W1": Work("cnn", clients=100, cohort=10, rounds=4),
    "W2": Work("mlp", clients=1000, cohort=100, rounds=8),
    "W3": Work("mlp", clients=1000, cohort=100, rounds=10),
}
"""W3 is W2 with a second network of each client's own, which it keeps and trains beside the shared one (FML)."""


def clients_of(work: Work) -> Data:
    """Normalised images (N x 1 x 28 x 28) and labels of every client."""
    import numpy as np

    folder = Path(os.environ["COTERIE_DATA"]) / "mnist"
    x = _idx(folder / "train-images-idx3-ubyte.gz", 16).reshape(-1, 1, 28, 28)
    y = _idx(folder / "train-labels-idx1-ubyte.gz", 8).astype(np.int64)
    order = np.random.default_rng(SEED).permutation(len(y)).reshape(work.clients, -1)
    return [((x[rows].astype(np.float32) / 255 - 0.5) / 0.5, y[rows]) for rows in order]


def _idx(path: Path, header: int) -> np.ndarray:
    import numpy as np

    return np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8, offset=header)


def cohorts(work: Work) -> Iterator[Sequence[int]]:
    """The clients of each round."""
    import numpy as np

    rng = np.random.default_rng(SEED + 1)
    for _ in range(work.rounds):
        yield rng.choice(work.clients, work.cohort, replace=False).tolist()


class Clock:
    """Tells the runner when each round has ended, as lines of JSON."""

    def __init__(self) -> None:
        self._last = time.perf_counter()

    def start(self) -> None:
        """A round begins now."""
        self._last = time.perf_counter()

    def stop(self) -> None:
        """It has ended."""
        self.tell(time.perf_counter() - self._last)

    @staticmethod
    def tell(seconds: float) -> None:
        """A round has ended that took so long."""
        print("ROUND " + json.dumps({"seconds": seconds}), flush=True)


def chosen() -> Work:
    """The work named on the command line."""
    return WORKS[sys.argv[1]]
