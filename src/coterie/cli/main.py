"""The command line. Exit code 0 for what worked, 2 for a user's mistake, 1 for a run that failed, 130 for one that was stopped."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie import durable
from coterie.cli import stopping
from coterie.cli.data import DataFolder, Json
from coterie.cli.data import app as data_app
from coterie.cli.sentences import complain, console, ending, kept, note, say
from coterie.cli.trackers import TrackerName
from coterie.errors import Interrupted, UserError, nearest

if TYPE_CHECKING:
    from coterie.ledger import Listener
    from coterie.running.experiment import Experiment
    from coterie.settings import Registry
    from coterie.studies.arms import Arm
    from coterie.studies.compare import Compared, Watch
    from coterie.studies.recipe import Recipe

__all__ = ["main"]

app = typer.Typer(
    help="Federated learning for clients that differ: in their data, in their models, in what they want.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.add_typer(data_app, name="data")
RUNS = Path("runs")
"""Where runs go unless somebody says otherwise."""

ExperimentFile = Annotated[str, typer.Argument(help="An experiment file, or the name of one that comes with Coterie.")]
Set = Annotated[list[str] | None, typer.Option("--set", help="Override any key, e.g. training.epochs=5. Repeatable.")]
SetAll = Annotated[
    list[str] | None,
    typer.Option("--set", help="Override any key, e.g. method.mu=0.01, which is for every method that has a mu. Repeatable."),
]
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
    regularisers = "regularisers"
    optimisers = "optimisers"
    schedules = "schedules"
    engines = "engines"
    protocols = "protocols"
    experiments = "experiments"


REGISTRIES = {
    Kind.methods: ("methods", "METHODS"),
    Kind.models: ("models", "MODELS"),
    Kind.datasets: ("data.sources", "SOURCES"),
    Kind.partitions: ("data.partitions", "PARTITIONS"),
    Kind.selections: ("data.selection", "SELECTIONS"),
    Kind.regularisers: ("methods.regularisers", "REGULARISERS"),
    Kind.optimisers: ("training.optimisers", "OPTIMISERS"),
    Kind.schedules: ("training.optimisers", "SCHEDULES"),
    Kind.engines: ("engines", "ENGINES"),
}
"""Where each kind of thing is listed: imported when it is asked for."""


@app.command("run")
def run_command(
    experiment: Annotated[str | None, typer.Argument(help="An experiment file, or the name of one that comes with Coterie.")] = None,
    overrides: Set = None,
    out: Out = None,
    resume: Annotated[Path | None, typer.Option("--resume", help="Go on with the run in this folder.")] = None,
    changed_code: Annotated[bool, typer.Option("--changed-code", help="With --resume: go on although the code has changed.")] = False,
    changed_data: Annotated[bool, typer.Option("--changed-data", help="With --resume: go on although the data have changed.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything, say how much work it is, and do none of it.")] = False,
    data: DataFolder = None,
    track: Track = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run one experiment, or go on with one that was stopped."""
    from coterie.cli.progress import watching
    from coterie.cli.trackers import tracking
    from coterie.results.sheets import outcome, spent
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
    plan = started(resume) if resume is not None else _offered(Experiment.load(str(experiment), overrides or ()), overrides or ())
    if dry_run:
        _tell_cost(plan, data)
        return
    folder, title = resume or out or new_folder(plan), f"{plan.name} {plan.method.name}"
    quiet = quiet or as_json
    with kept(folder), watching(console, title, plan.rounds, quiet=quiet) as shown, tracking(track, folder, title) as tracked:
        if resume is not None:
            heard = [*shown, *tracked]
            result = resume_run(folder, data=data, callbacks=heard, changed_code=changed_code, changed_data=changed_data)
        else:
            result = run_new(plan, folder, data=data, callbacks=[*shown, *tracked])
    if as_json:
        sys.stdout.write(json.dumps({"folder": str(result.folder), **result.summary}) + "\n")
        return
    console.print(*outcome(f"{plan.name}: {plan.method.name}, {result.summary['rounds']} rounds", result.summary), sep="\n")
    say(spent(result.summary))
    say(f"written to {result.folder}")


@app.command("compare")
def compare_command(
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
    from coterie.results.sheets import formatted
    from coterie.studies.compare import compare, reuse

    forms = [name for name, on in {"csv": as_csv, "latex": as_latex, "markdown": as_markdown, "json": as_json}.items() if on]
    if len(forms) > 1:
        raise UserError(f"--{forms[0]} and --{forms[1]}: expected one format")
    arms = _arms(experiment, methods, seeds, overrides or (), grid or (), out, data)
    folder = arms[0].folder.parent
    if baseline is not None and baseline not in (labels := {arm.label for arm in arms}):
        raise UserError(f"--baseline {baseline}: not one of what is compared, {nearest(baseline, labels)}")
    reuse(arms, RUNS)
    with _watched(arms, track, quiet=quiet or bool(forms)) as watch:
        compared = compare(arms, watch, data=data, jobs=jobs)
    if compared.arms:
        sheets, found, runs = _tables(compared, baseline)
        for form, name in {"markdown": "table.md", "csv": "table.csv", "json": "table.json"}.items():
            durable.write(folder / name, formatted(form, sheets, found, runs))
        if forms:
            sys.stdout.write(formatted(forms[0], sheets, found, runs))
        else:
            console.print(*sheets, sep="\n")
            say(f"written to {folder}; {compared.reused} of {len(arms)} runs reused")
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
    arms = arms_of(plan, names, _seeds(seeds), out or RUNS / plan.name, grid_of(grid), overrides=own, data=data)
    for sentence in unreached(plan, names, own):
        note(sentence)
    return arms


def _tables(compared: Compared, baseline: str | None) -> Any:
    """A comparison as sheets, the numbers in them, and its runs."""
    from coterie.results.comparison import contrast, read_arms
    from coterie.results.sheets import comparison

    arms = compared.arms
    found = contrast(read_arms((arm.label, arm.folder) for arm in arms), baseline if baseline in {arm.label for arm in arms} else None)
    runs = [{"method": arm.label, "seed": arm.experiment.seed, **each} for arm, each in zip(arms, compared.summaries, strict=True)]
    return comparison(f"{arms[0].experiment.name}, {arms[0].experiment.rounds} rounds", found), found, runs


def _tell_cost(plan: Experiment, data: Path | None) -> None:
    """How much a run would do, after everything that can be checked beforehand was."""
    from coterie.running.cost import cost_of

    for sentence in cost_of(plan, plan.population(data)).sentences():
        say(sentence)


def _offered(plan: Experiment, overrides: Sequence[str]) -> Experiment:
    """The experiment without protocols that a method chosen by --set does not offer, unless --set asks for them."""
    from coterie.running.files import parse_override

    keys = {parse_override(each)[0] for each in overrides}
    if keys.isdisjoint(("method", "method.name")) or "evaluation.protocols" in keys:
        return plan
    chosen = plan.with_method(plan.method)
    for protocol in plan.evaluation.protocols:
        if protocol not in chosen.evaluation.protocols:
            note(f"not evaluated under '{protocol}': method '{plan.method.name}' does not offer it")
    return chosen


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
    from coterie.studies.recipe import Recipe, recipes
    from coterie.studies.reproduce import arms_for, reproduce

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
    with _watched(arms_for(recipe, scale, where, data), None, quiet=quiet or as_json) as watch:
        result = reproduce(recipe, scale, watch, runs=where, data=data, jobs=jobs)
    folder = out or where / scale
    result.write(folder)
    if as_json:
        sys.stdout.write(json.dumps(result.table()) + "\n")
        return
    console.print(*result.sheets(), sep="\n")
    for sentence in ("what differs from the paper:", *recipe.scales[scale].differs):
        say(sentence)
    say(f"written to {folder}")


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
        raise Interrupted("stopped looking at it; the run goes on") from None


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
    from coterie.results.gather import gather
    from coterie.results.report import write_figures, write_page

    found = gather(runs)
    page = write_page(found, out or (runs[0] if runs[0].is_dir() else runs[0].parent) / "report.html")
    say(f"written to {page} ({page.stat().st_size / 1e6:.1f} MB)")
    for notice in found.notices:
        say(f"note: {notice}")
    if figures is not None:
        say(f"{len(write_figures(found, figures))} figures written to {figures}")


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
        from coterie.running.files import embedded

        return {name: path.read_text(encoding="utf-8").splitlines()[0].lstrip("# ") for name, path in embedded().items()}
    if kind is Kind.protocols:
        from coterie.protocols import PROTOCOLS

        return {name: each.sentence for name, each in PROTOCOLS.items()}
    home, name = REGISTRIES[kind]
    registry: Registry[Any] | dict[str, type] = getattr(import_module(f"coterie.{home}"), name)
    classes = registry if isinstance(registry, dict) else registry.specs
    return {name: (each.__doc__ or "").strip().split("\n")[0] for name, each in classes.items()}


def _seeds(text: str) -> list[int]:
    """Numbers and ranges of them.

    >>> _seeds("0-2,7")
    [0, 1, 2, 7]
    """
    seeds: list[int] = []
    for word in filter(None, (word.strip() for word in text.split(","))):
        first, dash, last = (part.strip() for part in word.partition("-"))
        if not first.isdecimal() or (dash and not last.isdecimal()) or (dash and int(last) < int(first)):
            raise UserError(f"--seeds = '{word}': expected whole numbers separated by commas, or from-to, such as 0-4")
        seeds += range(int(first), int(last or first) + 1)
    if not seeds:
        raise UserError("--seeds is empty: expected whole numbers separated by commas, or from-to, such as 0-4")
    return list(dict.fromkeys(seeds))


def main() -> None:
    """Every error is a sentence and an exit code."""
    stopping.listen()
    try:
        code = app(standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        code = stopping.CODE
    except Exception as error:
        code, sentence = ending(error)
        complain(sentence)
        sys.exit(code)
    if code == stopping.CODE:  # typer makes one of a KeyboardInterrupt, in what it calls the return value
        complain("stopped")
    if code:
        sys.exit(code)
