"""`coterie compare`: several methods on the same experiment, in one table."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coterie import forking
from coterie.cli.options import RUNS, DataFolder, ExperimentFile, Jobs, Json, Out, Quiet, SetAll, Track, seeds_of
from coterie.cli.sentences import console, note, program, say
from coterie.cli.watching import watched
from coterie.errors import UserError
from coterie.importing import importing

if TYPE_CHECKING:
    from coterie.studies.arms import Arm
    from coterie.studies.compare import Compared

__all__ = ["compare", "show"]


def compare(
    experiment: ExperimentFile,
    methods: Annotated[str, typer.Option("--methods", help='Names, separated by commas; with settings: "fedprox(mu=0.1),fedavg".')],
    seeds: Annotated[str, typer.Option("--seeds", help="Numbers, separated by commas, or from-to, e.g. 0-4.")] = "0",
    grid: Annotated[list[str] | None, typer.Option("--grid", help="Values of any key, e.g. method.mu=0.01,0.1. Repeatable.")] = None,
    baseline: Annotated[str | None, typer.Option("--baseline", help="What others are compared with; by default the first.")] = None,
    overrides: SetAll = None,
    out: Out = None,
    data: DataFolder = None,
    jobs: Jobs = None,
    track: Track = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="CSV on standard output, a row of numbers for each method.")] = False,
    as_latex: Annotated[bool, typer.Option("--latex", help="LaTeX on standard output.")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Markdown on standard output.")] = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run several methods on the same experiment and put them in one table. What was run before is reused."""
    forking.begin(*forking.FOR_ARMS)  # before torch is imported here
    with importing():
        from coterie.results.comparison import check_baseline
        from coterie.studies import compare as study

    forms = [name for name, on in {"csv": as_csv, "latex": as_latex, "markdown": as_markdown, "json": as_json}.items() if on]
    if len(forms) > 1:
        raise UserError(f"--{forms[0]} and --{forms[1]}: expected one format")
    arms = _arms(experiment, methods, seeds, overrides or (), grid or (), out, data)
    folder = arms[0].folder.parent
    check_baseline(baseline, {arm.label for arm in arms})
    study.reuse(arms, RUNS)
    with watched(arms, track, quiet=quiet or bool(forms)) as watch:
        compared = study.compare(arms, watch, data=data, jobs=jobs)
    if compared.arms:
        table = folder / "table.md"
        earlier = table.read_bytes() if table.exists() else None
        show(compared, baseline, forms)
        if not forms:
            say(f"written to {folder}; {compared.reused} of {len(arms)} runs reused")
            if earlier not in (None, table.read_bytes()):
                say("table.md, table.csv and table.json there are of this comparison now, no longer of the one before; its runs are kept")
            say(f"a page of it: {program()} report {folder}")
    compared.complete()


def _arms(
    experiment: str, methods: str, seeds: str, overrides: Sequence[str], grid: Sequence[str], out: Path | None, data: Path | None
) -> list[Arm]:
    """The arms that a command line asks for; notes on what does not concern all of them go to standard error."""
    from coterie.running.experiment import Experiment
    from coterie.running.files import parse_override
    from coterie.studies.arms import arms_of, grid_of, split, unreached

    own = dict(parse_override(each) for each in overrides if each.lstrip().startswith("method."))
    own = {key: value for key, value in own.items() if key != "method.name"}
    plan = Experiment.load(experiment, [each for each in overrides if parse_override(each)[0] not in own])
    names = split(methods)
    if not names:
        raise UserError("--methods is empty: expected names separated by commas")
    arms = arms_of(plan, names, seeds_of(seeds), out or RUNS / plan.name, grid_of(grid), overrides=own, data=data)
    for sentence in unreached(plan, names, own):
        note(sentence)
    return arms


def show(compared: Compared, baseline: str | None, forms: Sequence[str] = ()) -> None:
    """Write the tables of a comparison to its folder, and show them in the form that was asked for."""
    from coterie.studies.tables import Tables

    found = Tables(compared, baseline)
    found.write()
    if forms:
        sys.stdout.write(found.text(forms[0]))
    else:
        console.print(*found.sheets, sep="\n")
