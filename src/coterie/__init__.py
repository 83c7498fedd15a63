"""Coterie: federated learning for clients that differ, in their data, in their models, in what they want.

>>> import coterie, tempfile
>>> experiment = coterie.Experiment.load("digits-two-class", ["rounds=2", "engine.name=inline"])
>>> coterie.run(experiment, tempfile.mkdtemp()).summary["rounds"]
2
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coterie.errors import CoterieError, RunError, UserError
    from coterie.method import Federation, Method, Reply, means, task
    from coterie.record import Record
    from coterie.running.experiment import Experiment
    from coterie.running.rounds import Result, resume, run
    from coterie.site import Site
    from coterie.training.objectives import CrossEntropy, Objective, Proximal
    from coterie.training.settings import Training

_HOMES = {
    "errors": ("CoterieError", "RunError", "UserError"),
    "method": ("Federation", "Method", "Reply", "means", "task"),
    "record": ("Record",),
    "running.experiment": ("Experiment",),
    "running.rounds": ("Result", "resume", "run"),
    "site": ("Site",),
    "training.objectives": ("CrossEntropy", "Objective", "Proximal"),
    "training.settings": ("Training",),
}
"""Where each public name lives: imported when it is first used, so that what only reads ledgers never waits for torch."""

__all__ = [
    "CoterieError",
    "CrossEntropy",
    "Experiment",
    "Federation",
    "Method",
    "Objective",
    "Proximal",
    "Record",
    "Reply",
    "Result",
    "RunError",
    "Site",
    "Training",
    "UserError",
    "means",
    "resume",
    "run",
    "task",
]


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"coterie.{home}"), name)
    raise AttributeError(f"module 'coterie' has no attribute '{name}'")
