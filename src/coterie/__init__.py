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
    from coterie.engines import Engine
    from coterie.errors import CoterieError, RunError, UserError
    from coterie.method import Federation, Method, fine_tune, task
    from coterie.methods.fedavg import FedAvg
    from coterie.models import Architecture, Staged, staged
    from coterie.population import Population
    from coterie.protocols import PROTOCOLS, Protocol
    from coterie.record import EMPTY, Record
    from coterie.replies import Replies, Reply, means
    from coterie.results.frames import frames
    from coterie.results.progress import Progress
    from coterie.running.experiment import Experiment
    from coterie.running.result import Result
    from coterie.running.rounds import resume, run
    from coterie.settings import Count, NotNegative, Positive, Share, spec
    from coterie.site import SERVER, ModelCache, Site
    from coterie.studies.tables import Tables, compare
    from coterie.testing import check_method, small_experiment
    from coterie.training.loop import Fitted, Frozen, frozen, outputs_of
    from coterie.training.objectives import CrossEntropy, Distillation, Objective, Proximal, Step, kl_divergence
    from coterie.training.settings import Training

_HOMES = {
    "engines": ("Engine",),
    "errors": ("CoterieError", "RunError", "UserError"),
    "method": ("Federation", "Method", "fine_tune", "task"),
    "methods.fedavg": ("FedAvg",),
    "models": ("Architecture", "Staged", "staged"),
    "population": ("Population",),
    "protocols": ("PROTOCOLS", "Protocol"),
    "record": ("EMPTY", "Record"),
    "replies": ("Replies", "Reply", "means"),
    "running.experiment": ("Experiment",),
    "results.frames": ("frames",),
    "results.progress": ("Progress",),
    "running.result": ("Result",),
    "running.rounds": ("resume", "run"),
    "settings": ("Count", "NotNegative", "Positive", "Share", "spec"),
    "site": ("SERVER", "ModelCache", "Site"),
    "studies.tables": ("Tables", "compare"),
    "testing": ("check_method", "small_experiment"),
    "training.loop": ("Fitted", "Frozen", "frozen", "outputs_of"),
    "training.objectives": ("CrossEntropy", "Distillation", "Objective", "Proximal", "Step", "kl_divergence"),
    "training.settings": ("Training",),
}
"""Where each public name is: imported when it is first used, so that what only reads ledgers never waits for torch."""

__version__ = "0.2.0"

__all__ = [
    "EMPTY",
    "PROTOCOLS",
    "SERVER",
    "Architecture",
    "CoterieError",
    "Count",
    "CrossEntropy",
    "Distillation",
    "Engine",
    "Experiment",
    "FedAvg",
    "Federation",
    "Fitted",
    "Frozen",
    "Method",
    "ModelCache",
    "NotNegative",
    "Objective",
    "Population",
    "Positive",
    "Progress",
    "Protocol",
    "Proximal",
    "Record",
    "Replies",
    "Reply",
    "Result",
    "RunError",
    "Share",
    "Site",
    "Staged",
    "Step",
    "Tables",
    "Training",
    "UserError",
    "__version__",
    "check_method",
    "compare",
    "fine_tune",
    "frames",
    "frozen",
    "kl_divergence",
    "means",
    "outputs_of",
    "resume",
    "run",
    "small_experiment",
    "spec",
    "staged",
    "task",
]


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"coterie.{home}"), name)
    raise AttributeError(f"module 'coterie' has no attribute '{name}'")


def __dir__() -> list[str]:
    return __all__
