"""Trackers that others make, fed by callbacks: TensorBoard and MLflow. Each is an extra, imported only when asked for.

A tracker is a listener of the ledger: a function that is given every event. So is anything of your own, in ten lines:

>>> from coterie.running.experiment import Experiment
>>> from coterie.running.rounds import run
>>> import tempfile
>>> class Applause:
...     '''Says when the global model is better than ever.'''
...     best = 0.0
...     def __call__(self, event):
...         if event["event"] == "evaluation" and event["protocol"] == "global" and event["metric"] == "accuracy":
...             if event["value"] > self.best:
...                 self.best = event["value"]
...                 print(f"round {event['round']}: a new record")
>>> experiment = Experiment.load("digits-two-class", ["rounds=1", "engine.name=inline"])
>>> result = run(experiment, tempfile.mkdtemp(), callbacks=[Applause()])
round 1: a new record
"""

from __future__ import annotations

import importlib
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from coterie.errors import UserError
from coterie.ledger import Event, Listener
from coterie.results.gather import flatten
from coterie.results.read import read_run
from coterie.results.tally import Tally

__all__ = ["TRACKERS", "MLflow", "Scalars", "TensorBoard", "Tracker", "TrackerName", "tracking"]

TrackerName = Literal["tensorboard", "mlflow"]


class Scalars:
    """What a tracker draws of a round: every mean and the worst client behind it, bytes so far, training so far, seconds.

    >>> scalars = Scalars()
    >>> seen = {"event": "evaluation", "round": 1, "protocol": "global", "client": None, "metric": "accuracy", "value": 0.5}
    >>> for event in (seen, {"event": "round", "round": 1, "seconds": 2.0}):
    ...     found = scalars.on_event(event)
    >>> found
    {'global/accuracy': 0.5, 'bytes/up': 0, 'bytes/down': 0, 'bytes/setup_up': 0, 'bytes/setup_down': 0, 'seconds': 2.0}
    """

    def __init__(self) -> None:
        self.tally = Tally(keep_logs=False)

    def on_event(self, event: Event) -> dict[str, float] | None:
        """Take note of an event; at the end of a round, all that is to draw of it."""
        self.tally.on_event(event)
        if event["event"] != "round":
            return None
        return {**self._measured(event["round"]), **self._bytes(), **self._trained(event["round"]), "seconds": event["seconds"]}

    def _measured(self, round: int) -> dict[str, float]:
        """The means of this round; `final` are those over all clients, `worst` is the worst client's accuracy."""
        found: dict[str, float] = {}
        for protocol, metrics in self.tally.means.items():
            for metric, means in metrics.items():
                if round in means:
                    found[f"{protocol}/{metric}"] = means[round].value
                    if (worst := means[round].worst) is not None:
                        found[f"{protocol}/worst"] = worst
        for protocol, finals in self.tally.finals.items():
            found |= {f"{protocol}/final_{metric}": mean.value for metric, mean in finals.items() if mean.round == round}
        return found

    def _bytes(self) -> dict[str, float]:
        ways = ("up", "down")
        rounds = {f"bytes/{way}": self.tally.total(way) for way in ways}
        return {**rounds, **{f"bytes/setup_{way}": self.tally.total(way, setup=True) for way in ways}}

    def _trained(self, round: int) -> dict[str, float]:
        found: dict[str, float] = {}
        for name, site in (("training", "clients"), ("server", "server")):
            if steps := self.tally.trained(site=site).steps:
                found[f"{name}/steps"] = steps
            now = self.tally.training.get(site, {}).get(round)
            if now is not None and now.loss is not None:
                found[f"{name}/loss"] = now.loss
        return found


class Tracker(ABC):
    """A listener that writes scalars, round by round, where some tool keeps them."""

    def __init__(self, folder: Path, title: str) -> None:
        self.folder, self.title = folder, title
        self._scalars = Scalars()

    def __call__(self, event: Event) -> None:
        if event["event"] == "resume":  # what came before is in the ledger, and bytes go on from there
            self._scalars.tally = read_run(self.folder).tally
            return
        found = self._scalars.on_event(event)
        if event["event"] == "start":
            self.describe(flatten(event["experiment"]))
        elif found is not None:
            self.write(event["round"], found)

    @abstractmethod
    def describe(self, settings: Mapping[str, Any]) -> None:
        """Keep the settings of a run that begins."""

    @abstractmethod
    def write(self, round: int, scalars: Mapping[str, float]) -> None:
        """Keep the scalars of a round."""

    @abstractmethod
    def close(self) -> None:
        """The run is over, or stopped."""


class TensorBoard(Tracker):
    """Event files under `tensorboard/` in the run's folder, so that `tensorboard --logdir runs` finds every run."""

    def __init__(self, folder: Path, title: str) -> None:
        super().__init__(folder, title)
        self._module = _extra("tensorboard", "torch.utils.tensorboard")
        self._writer: Any = None

    @property
    def writer(self) -> Any:
        """Opened with the first thing to write: until then a new run's folder is empty."""
        self._writer = self._writer or self._module.SummaryWriter(str(self.folder / "tensorboard"))
        return self._writer

    def describe(self, settings: Mapping[str, Any]) -> None:
        lines = ["| setting | value |", "|---|---|", *(f"| {key} | {value} |" for key, value in settings.items())]
        self.writer.add_text("experiment", "\n".join(lines), 0)

    def write(self, round: int, scalars: Mapping[str, float]) -> None:
        for name, value in scalars.items():
            self.writer.add_scalar(name, value, round)
        self.writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class MLflow(Tracker):
    """A run in MLflow, in the experiment `coterie`, wherever `$MLFLOW_TRACKING_URI` or MLflow's own default says.

    A run that goes on after a stop goes on in MLflow too: it is found by its folder.
    """

    def __init__(self, folder: Path, title: str) -> None:
        super().__init__(folder, title)
        self._entities = _extra("mlflow", "mlflow.entities")
        self._client = _extra("mlflow", "mlflow").MlflowClient()
        self._run = ""

    @property
    def run(self) -> str:
        """The id of the run, found or made."""
        self._run = self._run or self._find() or self._make()
        return self._run

    def describe(self, settings: Mapping[str, Any]) -> None:
        params = [self._entities.Param(key, str(value)[:500]) for key, value in settings.items()]
        self._client.log_batch(self.run, params=params)

    def write(self, round: int, scalars: Mapping[str, float]) -> None:
        now = int(1000 * time.time())
        self._client.log_batch(self.run, metrics=[self._entities.Metric(name, value, now, round) for name, value in scalars.items()])

    def close(self) -> None:
        if self._run:
            self._client.set_terminated(self._run)

    def _experiment(self) -> str:
        found = self._client.get_experiment_by_name("coterie")
        return str(found.experiment_id if found else self._client.create_experiment("coterie"))

    def _find(self) -> str:
        same = f"tags.`coterie.folder` = '{self.folder.resolve()}'"
        found = self._client.search_runs([self._experiment()], same, max_results=1)
        return found[0].info.run_id if found else ""

    def _make(self) -> str:
        tags = {"coterie.folder": str(self.folder.resolve())}
        made = self._client.create_run(self._experiment(), run_name=self.title, tags=tags)
        return str(made.info.run_id)


TRACKERS: dict[TrackerName, type[Tracker]] = {"tensorboard": TensorBoard, "mlflow": MLflow}
"""By the name that `--track` takes."""


@contextmanager
def tracking(name: TrackerName | None, folder: Path, title: str) -> Iterator[list[Listener]]:
    """The listeners that feed a tracker, for a run in a folder: none where none is asked for.

    >>> with tracking(None, Path("run"), "demo") as listeners:
    ...     listeners
    []
    """
    if name is None:
        yield []
        return
    tracker = TRACKERS[name](folder, title)
    try:
        yield [tracker]
    finally:
        tracker.close()


def _extra(name: str, module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(f"--track {name} needs an extra that is not installed ({error}): pip install 'coterie[{name}]'") from None
