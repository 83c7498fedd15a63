"""A comparison from Python: several methods on one experiment, and the tables that come of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie import durable
from coterie.errors import counted, without_ours
from coterie.ledger import Event, Listener
from coterie.results.comparison import Contrast, check_baseline, contrast, read_arms
from coterie.results.sheets import comparison, formatted
from coterie.results.tables import Sheet, as_html, as_markdown
from coterie.running.experiment import Experiment
from coterie.studies import compare as study
from coterie.studies.arms import Arm, arms_of
from coterie.studies.compare import Compared

if TYPE_CHECKING:
    import pandas

__all__ = ["Tables", "compare"]


@dataclass(frozen=True)
class Tables:
    """What came of a comparison, side by side; a notebook shows it.

    >>> Tables(Compared([], [], {}, 0)).runs
    []
    """

    compared: Compared
    baseline: str | None = None
    """What the others are compared with; None for the first."""

    @property
    def folder(self) -> Path:
        """Where its runs are."""
        return self.compared.arms[0].folder.parent

    @cached_property
    def found(self) -> Contrast:
        """The numbers: standings, differences with their intervals, rounds to targets."""
        labelled = [(arm.label, arm.folder) for arm in self.compared.arms]
        return contrast(read_arms(labelled), self.baseline if self.baseline in dict(labelled) else None)

    @cached_property
    def sheets(self) -> list[Sheet]:
        """The tables."""
        first = self.compared.arms[0].experiment
        most = "" if first.evaluation.stop_at is None else "at most "
        return comparison(f"{first.name}, {most}{counted(first.rounds, 'round')}", self.found)

    @property
    def runs(self) -> list[dict[str, Any]]:
        """The summary of each run, with its method and seed."""
        pairs = zip(self.compared.arms, self.compared.summaries, strict=True)
        return [{"method": arm.label, "seed": arm.experiment.seed, **summary} for arm, summary in pairs]

    def frame(self) -> pandas.DataFrame:
        """Every event of every run, a row each; needs pandas (`coterie[pandas]`)."""
        from coterie.results.frames import frames

        return frames(self.folder)

    def text(self, form: str) -> str:
        """For a program or a paper: csv, latex, markdown or json."""
        return formatted(form, self.sheets, self.found, self.runs)

    def write(self) -> None:
        """`table.md`, `table.csv` and `table.json`, beside the runs."""
        for form, name in {"markdown": "table.md", "csv": "table.csv", "json": "table.json"}.items():
            durable.write(self.folder / name, self.text(form))

    def __str__(self) -> str:
        return as_markdown(self.sheets)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return "".join(map(as_html, self.sheets)) + f"<p>{self.folder}</p>"


@without_ours
def compare(
    experiment: Experiment,
    methods: Sequence[Any],
    seeds: Sequence[int],
    folder: str | Path,
    *,
    grid: Mapping[str, Sequence[Any]] | None = None,
    overrides: Mapping[str, Any] | None = None,
    baseline: str | None = None,
    data: Path | None = None,
    jobs: int | None = None,
    callbacks: Sequence[Listener] = (),
) -> Tables:
    """Run several methods on one experiment, reuse what is in the folder, and put them side by side: `coterie compare` from Python.

    Args:
        experiment: what all share.
        methods: names, names with settings (`"fedprox(mu=0.1)"`), tables or instances.
        seeds: of each of them; an interval needs three or more.
        folder: where runs and tables go.
        grid: keys and their values.
        overrides: further keys and their values, the same for all.
        baseline: what the others are compared with; the first, unless said.
        data: the data folder.
        jobs: how many run at once; one a core, unless said.
        callbacks: functions that are given every event of every run as it happens, with its title as `run`, such as `coterie.Progress()`.

    >>> import tempfile
    >>> experiment = Experiment.load("digits-two-class", ["rounds=1", "evaluation.protocols=[\\"global\\"]", "engine.name=inline"])
    >>> found = compare(experiment, ["fedavg", "fedprox(mu=0.1)"], [0], tempfile.mkdtemp(), jobs=1)
    >>> [standing.label for standing in found.found.standings]
    ['fedavg', 'fedprox mu=0.1']
    """
    arms = arms_of(experiment, methods, seeds, Path(folder), grid, overrides=overrides, data=data)
    check_baseline(baseline, {arm.label for arm in arms})

    def watch(arm: Arm) -> AbstractContextManager[Sequence[Listener]]:
        return nullcontext([partial(_titled, arm.title, callback) for callback in callbacks])

    found = Tables(study.compare(arms, watch, data=data, jobs=jobs).complete(), baseline)
    found.write()
    return found


def _titled(title: str, callback: Listener, event: Event) -> None:
    callback({**event, "run": title})
