"""Coterie: federated learning for clients that differ, in their data, in their models, in what they want.

>>> import tempfile
>>> experiment = Experiment.load("digits-two-class", ["rounds=2", "engine.name=inline"])
>>> run(experiment, tempfile.mkdtemp()).summary["rounds"]
2
"""

from coterie.errors import CoterieError, RunError, UserError
from coterie.experiment import Experiment
from coterie.fit import CrossEntropy, Objective, Proximal, Training
from coterie.method import Federation, Method, Reply, task, weighted_mean
from coterie.record import Record
from coterie.run import Result, resume, run
from coterie.site import Site

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
    "resume",
    "run",
    "task",
    "weighted_mean",
]
