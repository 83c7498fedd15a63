"""Several methods on the same experiment: same data, same partition, same seeds, every byte counted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from coterie.experiment import Experiment
from coterie.ledger import Listener
from coterie.method import Method
from coterie.methods import METHODS
from coterie.rounds import LEDGER, Result, resume, run

__all__ = ["Arm", "arms_of", "compare"]


@dataclass(frozen=True)
class Arm:
    """One run of a comparison."""

    experiment: Experiment
    folder: Path

    @property
    def title(self) -> str:
        """What a person calls it."""
        return f"{self.experiment.method.name} seed {self.experiment.seed}"


class Watch(Protocol):
    """Opens a view of one arm while it runs."""

    def __call__(self, title: str, rounds: int, /) -> AbstractContextManager[Sequence[Listener]]: ...


def arms_of(experiment: Experiment, methods: Sequence[Any], seeds: Sequence[int], folder: Path) -> list[Arm]:
    """Every method with every seed; a folder is named after the digest of what runs in it.

    >>> experiment = Experiment.load("digits-two-class")
    >>> [arm.title for arm in arms_of(experiment, ["local", {"name": "fedprox", "mu": 1.0}], [0, 1], Path("runs"))]
    ['local seed 0', 'local seed 1', 'fedprox seed 0', 'fedprox seed 1']
    """
    chosen = [_offered(experiment, METHODS.resolve(method)).but(seed=seed) for method in methods for seed in seeds]
    return [Arm(each, folder / f"{each.method.name}-s{each.seed}-{each.digest()[:8]}") for each in chosen]


def _offered(experiment: Experiment, method: Method) -> Experiment:
    """The experiment with this method, evaluated under those of its protocols that the method has a model for."""
    settings = experiment.evaluation
    protocols = tuple(protocol for protocol in settings.protocols if protocol in method.offers)
    return experiment.but(method=method, evaluation=settings.model_copy(update={"protocols": protocols}))


def compare(arms: Sequence[Arm], watch: Watch, *, data: Path | None = None) -> Iterator[tuple[Arm, Result]]:
    """Run what is missing, resume what was stopped, reuse what is there."""
    for arm in arms:
        with watch(arm.title, arm.experiment.rounds) as callbacks:
            if (arm.folder / LEDGER).exists():
                yield arm, resume(arm.folder, data=data, callbacks=callbacks)
            else:
                yield arm, run(arm.experiment, arm.folder, data=data, callbacks=callbacks)
