"""The command line. Exit code 0 for what worked, 2 for a user's mistake, 1 for a run that failed, 130 for one that was stopped."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from coterie.cli.data import DataFolder, Json
from coterie.cli.data import app as data_app
from coterie.cli.trackers import TrackerName
from coterie.errors import CoterieError, UserError, nearest

if TYPE_CHECKING:
    from coterie.ledger import Listener
    from coterie.settings import Registry
    from coterie.studies.compare import Arm, Watch
    from coterie.studies.reproduce import Recipe

__all__ = ["main"]

app = typer.Typer(
    help="Federated learning for clients that differ: in their data, in their models, in what they want.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.add_typer(data_app, name="data")
console = Console()

File = Annotated[str, typer.Argument(help="An experiment file, or the name of one that comes with Coterie.")]
Set = Annotated[list[str] | None, typer.Option("--set", help="Override any key, e.g. method.mu=0.01. Repeatable.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]
Track = Annotated[TrackerName | None, typer.Option("--track", help="Also feed this tracker, an extra.")]
Jobs = Annotated[int | None, typer.Option("--jobs", min=1, help="Runs at once; by default one for each core.")]
Out = Annotated[Path | None, typer.Option("--out", help="The folder to write; by default a new one under runs/.")]


class Kind(StrEnum):
    """What can be listed."""

    methods = "methods"
    models = "models"
    datasets = "datasets"
    partitions = "partitions"
    selections = "selections"
    experiments = "experiments"


@app.command("run")
def run_command(
    experiment: Annotated[str | None, typer.Argument(help="An experiment file, or the name of one that comes with Coterie.")] = None,
    overrides: Set = None,
    out: Out = None,
    resume: Annotated[Path | None, typer.Option("--resume", help="Go on with the run in this folder.")] = None,
    changed_code: Annotated[bool, typer.Option("--changed-code", help="With --resume: go on although the code has changed.")] = False,
    changed_data: Annotated[bool, typer.Option("--changed-data", help="With --resume: go on although the data have changed.")] = False,
    data: DataFolder = None,
    track: Track = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run one experiment, or go on with one that was stopped."""
    from coterie.cli.progress import watching
    from coterie.cli.trackers import tracking
    from coterie.results.tables import amount, outcome
    from coterie.running.experiment import Experiment
    from coterie.running.rounds import new_folder, started
    from coterie.running.rounds import resume as resume_run
    from coterie.running.rounds import run as run_new

    if (experiment is None) == (resume is None):
        raise UserError("coterie run takes either an experiment or --resume FOLDER")
    if resume is not None and (overrides or out):
        raise UserError("--resume goes on with the experiment as it was: --set and --out do not go with it")
    if resume is None and (changed_code or changed_data):
        raise UserError("--changed-code and --changed-data are for a run that goes on: they need --resume FOLDER")
    plan = started(resume) if resume is not None else Experiment.load(str(experiment), overrides or ())
    folder, title = resume or out or new_folder(plan), f"{plan.name} {plan.method.name}"
    with watching(console, title, plan.rounds, quiet=quiet or as_json) as shown, tracking(track, folder, title) as tracked:
        if resume is not None:
            heard = [*shown, *tracked]
            result = resume_run(folder, data=data, callbacks=heard, changed_code=changed_code, changed_data=changed_data)
        else:
            result = run_new(plan, folder, data=data, callbacks=[*shown, *tracked])
    if as_json:
        sys.stdout.write(json.dumps({"folder": str(result.folder), **result.summary}) + "\n")
        return
    traffic = result.summary["bytes"]
    setup = traffic["setup_up"] + traffic["setup_down"]
    console.print(outcome(f"{plan.name}: {plan.method.name}, {result.summary['rounds']} rounds", result.summary))
    console.print(
        f"sent up {amount(traffic['up'])}, down {amount(traffic['down'])}, setup {amount(setup)}; {result.summary['seconds']:.1f} s"
    )
    console.print(f"written to {result.folder}", soft_wrap=True)


@app.command("compare")
def compare_command(
    experiment: File,
    methods: Annotated[str, typer.Option("--methods", help="Names, separated by commas.")],
    seeds: Annotated[str, typer.Option("--seeds", help="Numbers, separated by commas.")] = "0",
    grid: Annotated[list[str] | None, typer.Option("--grid", help="Values of any key, e.g. method.mu=0.01,0.1. Repeatable.")] = None,
    baseline: Annotated[str | None, typer.Option("--baseline", help="What others are compared with; by default the first.")] = None,
    overrides: Set = None,
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
    from coterie.results.statistics import Run, contrast
    from coterie.results.tables import comparison, formatted
    from coterie.running.experiment import Experiment
    from coterie.studies.compare import arms_of, compare, grid_of

    forms = [name for name, on in {"csv": as_csv, "latex": as_latex, "markdown": as_markdown, "json": as_json}.items() if on]
    if len(forms) > 1:
        raise UserError(f"--{forms[0]} and --{forms[1]}: expected one format")
    plan = Experiment.load(experiment, overrides or ())
    folder = out or Path("runs") / plan.name
    numbers = [_whole(seed) for seed in _words(seeds, "--seeds")]
    arms = arms_of(plan, _words(methods, "--methods"), numbers, folder, grid_of(grid or ()))
    if baseline is not None and baseline not in (labels := {arm.label for arm in arms}):
        raise UserError(f"--baseline {baseline}: not one of what is compared, {nearest(baseline, labels)}")
    with _watched(arms, track, quiet=quiet or bool(forms)) as watch:
        summaries = compare(arms, watch, data=data, jobs=jobs)
    runs = [Run(arm.label, arm.experiment.seed, summary) for arm, summary in zip(arms, summaries, strict=True)]
    found = contrast(runs, baseline)
    sheets = comparison(f"{plan.name}, {plan.rounds} rounds", found)
    if forms:
        sys.stdout.write(formatted(forms[0], sheets, found, runs))
        return
    console.print(*sheets, sep="\n")
    console.print(f"written to {folder}", soft_wrap=True)


@app.command("reproduce")
def reproduce_command(
    name: Annotated[str | None, typer.Argument(help="A recipe that comes with Coterie, or a file.")] = None,
    scale: Annotated[str, typer.Option("--scale", help="smoke (seconds), laptop, or paper (as published).")] = "laptop",
    listing: Annotated[bool, typer.Option("--list", help="The recipes that come with Coterie.")] = False,
    out: Annotated[Path | None, typer.Option("--out", help="Where result.json and result.md go; by default with the runs.")] = None,
    runs: Annotated[Path | None, typer.Option("--runs", help="Where the runs go; by default under runs/reproduce/.")] = None,
    data: DataFolder = None,
    jobs: Jobs = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run a paper's table again: our numbers beside the paper's, and a verdict on each of its claims."""
    from coterie.results.tables import simple
    from coterie.studies.reproduce import Recipe, arms_for, recipes, reproduce

    if listing == (name is not None):
        raise UserError("coterie reproduce takes either the name of a recipe or --list")
    if name is None:
        known = {each: Recipe.load(each) for each in recipes()}
        rows = [{"name": each, "what": recipe.title, "paper": recipe.paper, "scales": _takes(recipe)} for each, recipe in known.items()]
        if as_json:
            sys.stdout.write(json.dumps(rows) + "\n")
        else:
            console.print(simple("recipes", list(rows[0]), [tuple(row.values()) for row in rows]))
        return
    recipe = Recipe.load(name)
    where = runs or Path("runs") / "reproduce" / Path(name).stem
    with _watched(arms_for(recipe, scale, where), None, quiet=quiet or as_json) as watch:
        result = reproduce(recipe, scale, watch, runs=where, data=data, jobs=jobs)
    folder = out or where / scale
    result.write(folder)
    if as_json:
        sys.stdout.write(json.dumps(result.table()) + "\n")
        return
    console.print(*result.sheets(), sep="\n")
    for sentence in ("what differs from the paper:", *recipe.scales[scale].differs):
        console.print(_escape(sentence), soft_wrap=True, highlight=False)
    console.print(f"written to {folder}", soft_wrap=True)


@app.command("watch")
def watch_command(
    run: Annotated[Path, typer.Argument(help="The folder of a run.")],
    once: Annotated[bool, typer.Option("--once", help="As it is now, and no more.")] = False,
) -> None:
    """Look at a run in progress; ends when it does."""
    from coterie.cli.watch import watch

    try:
        watch(run, console, once=once)
    except KeyboardInterrupt:
        console.print("the run goes on; only looking at it has ended")


@contextmanager
def _watched(arms: Sequence[Arm], track: TrackerName | None, *, quiet: bool) -> Iterator[Watch]:
    """What shows and tracks the arms of a comparison."""
    from coterie.cli.progress import board
    from coterie.cli.trackers import tracking
    from coterie.studies.compare import finished

    with board(console, runs=sum(not finished(arm) for arm in arms), quiet=quiet) as show:

        @contextmanager
        def watch(arm: Arm) -> Iterator[list[Listener]]:
            with tracking(track, arm.folder, arm.title) as tracked:
                yield [*show(arm.title, arm.experiment.rounds), *tracked]

        yield watch


def _takes(recipe: Recipe) -> str:
    return "; ".join(f"{name}: {scale.takes}" for name, scale in recipe.scales.items())


@app.command("report")
def report_command(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders with runs in them.")],
    out: Annotated[Path | None, typer.Option("--out", help="The page to write; by default report.html in the first folder.")] = None,
    figures: Annotated[Path | None, typer.Option("--figures", help="Also write figures for papers here: PDF, SVG and PNG.")] = None,
) -> None:
    """One self-contained page of any runs: curves, targets, clients, bytes, seconds; and figures for papers."""
    from coterie.results.report import gather, write_figures, write_page

    found = gather(runs)
    page = write_page(found, out or (runs[0] if runs[0].is_dir() else runs[0].parent) / "report.html")
    console.print(f"written to {page} ({page.stat().st_size / 1e6:.1f} MB)", soft_wrap=True)
    for notice in found.notices:
        console.print(f"note: {_escape(notice)}", soft_wrap=True, highlight=False)
    if figures is not None:
        console.print(f"{len(write_figures(found, figures))} figures written to {figures}", soft_wrap=True)


@app.command("list")
def list_command(kind: Kind, as_json: Json = False) -> None:
    """What can be named in an experiment."""
    from coterie.results.tables import simple

    rows = [{"name": name, "what": what} for name, what in _listed(kind).items()]
    if as_json:
        sys.stdout.write(json.dumps(rows) + "\n")
    else:
        console.print(simple(kind.value, ["name", "what it is"], [tuple(row.values()) for row in rows]))


def _listed(kind: Kind) -> dict[str, str]:
    """Names of one kind, with a sentence each."""
    if kind is Kind.experiments:
        from coterie.running.experiment import embedded

        return {name: path.read_text(encoding="utf-8").splitlines()[0].lstrip("# ") for name, path in embedded().items()}
    from coterie.data.partitions import PARTITIONS
    from coterie.data.selection import SELECTIONS
    from coterie.data.sources import SOURCES
    from coterie.methods import METHODS
    from coterie.models import MODELS

    registries: dict[Kind, Registry[Any]] = {
        Kind.methods: METHODS,
        Kind.models: MODELS,
        Kind.datasets: SOURCES,
        Kind.partitions: PARTITIONS,
        Kind.selections: SELECTIONS,
    }
    registry = registries[kind]
    return {name: (registry.find(name).__doc__ or "").strip().split("\n")[0] for name in registry}


def _words(text: str, option: str) -> list[str]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words:
        raise UserError(f"{option} is empty: expected names separated by commas")
    return words


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise UserError(f"--seeds = '{text}': expected whole numbers separated by commas")
    return int(text)


def main() -> None:
    """The entry point: every error is a sentence and an exit code."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # also where the shell ignores Ctrl-C, as for background jobs
    try:
        app(standalone_mode=False)
    except typer.Exit as error:
        sys.exit(error.exit_code)
    except typer.Abort:
        sys.exit(130)
    except CoterieError as error:
        Console(stderr=True).print(f"[bold red]error:[/bold red] {_escape(str(error))}", soft_wrap=True, highlight=False)
        sys.exit(error.exit_code)
    except Exception as error:
        if hasattr(error, "format_message"):  # a mistake on the command line, in typer's own words
            sys.stderr.write(f"error: {error.format_message()}\n")
            sys.exit(2)
        raise


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)
