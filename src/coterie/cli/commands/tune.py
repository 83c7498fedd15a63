"""`coterie tune`: settings looked for on validation data, then compared on seeds and data that nobody has seen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie.cli.commands.compare import show
from coterie.cli.options import RUNS, DataFolder, ExperimentFile, Jobs, Out, Quiet, Set, seeds_of
from coterie.cli.sentences import console, say
from coterie.cli.watching import watched

if TYPE_CHECKING:
    from coterie.studies.tune import Tuning

__all__ = ["tune"]


def tune(
    experiment: ExperimentFile,
    over: Annotated[list[str], typer.Option("--over", help="Values of any key to try, e.g. method.mu=0.01,0.1,1. Repeatable.")],
    methods: Annotated[str, typer.Option("--methods", help="Names, separated by commas; by default the experiment's own.")] = "",
    tuning_seeds: Annotated[str, typer.Option("--tuning-seeds", help="Seeds to look for settings with.")] = "100-101",
    seeds: Annotated[str, typer.Option("--seeds", help="Other seeds, to compare what was found with.")] = "0-2",
    budget: Annotated[int | None, typer.Option("--budget", min=1, help="Tries for each method; by default the smallest grid.")] = None,
    overrides: Set = None,
    out: Out = None,
    data: DataFolder = None,
    jobs: Jobs = None,
    quiet: Quiet = False,
) -> None:
    """Tune every method with the same budget, on validation data and tuning seeds; then compare on fresh seeds and test data."""
    from coterie.results.gather import gather
    from coterie.results.report import write_page
    from coterie.running.experiment import Experiment
    from coterie.studies import compare as comparing
    from coterie.studies import tune as study
    from coterie.studies.arms import grid_of, split

    plan = Experiment.load(experiment, overrides or ())
    names: list[Any] = [*split(methods)] or [plan.method]
    folder = out or RUNS / f"{plan.name}-tuned"
    grids = study.tuning_arms(plan, names, grid_of(over, "--over"), seeds_of(tuning_seeds, "--tuning-seeds"), folder / "tuning", data=data)
    with watched([arm for arms in grids.values() for arm in arms], None, quiet=quiet) as watch:
        found = study.tune(grids, watch, budget=budget, data=data, jobs=jobs)
    arms = study.chosen_arms(plan, names, found, seeds_of(seeds), folder, data=data)
    with watched(arms, None, quiet=quiet) as watch:
        compared = comparing.compare(arms, watch, data=data, jobs=jobs)
    found.write(folder / "tuning.json")
    _tell(found)
    show(compared, None)
    page = gather([arm.folder for arm in compared.arms])
    page.notices[:0] = found.sentences()
    say(f"written to {write_page(page, folder / 'report.html')}")
    compared.complete()


def _tell(found: Tuning) -> None:
    from coterie.results.tables import estimated, simple

    columns = ["method", "tried", "protocol", "validation accuracy", "steps", "chosen"]
    rows = [
        (each.method, each.label, each.protocol, estimated(each.accuracy), f"{each.steps:,}", "yes" if each.chosen else "")
        for each in found.tried
    ]
    seeds = ", ".join(map(str, found.seeds))
    console.print(simple("tuning, on validation data", columns, rows, f"mean over the tuning seeds {seeds}; test data were not looked at"))
