"""`coterie run`: one experiment, or on with one that was stopped."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coterie import forking
from coterie.cli.options import EXPERIMENT, DataFolder, Json, Out, Quiet, Set, Track
from coterie.cli.sentences import console, kept, note, say
from coterie.errors import UserError, counted
from coterie.importing import importing
from coterie.ledger import to_json

if TYPE_CHECKING:
    from coterie.running.experiment import Experiment
    from coterie.running.result import Result

__all__ = ["run"]


def run(
    experiment: Annotated[str | None, EXPERIMENT] = None,
    overrides: Set = None,
    out: Out = None,
    resume: Annotated[Path | None, typer.Option("--resume", help="Go on with the run in this folder.")] = None,
    rounds: Annotated[
        int | None, typer.Option("--rounds", min=1, help="With --resume: more rounds for a finished run, in a new folder.")
    ] = None,
    changed_code: Annotated[bool, typer.Option("--changed-code", help="With --resume: go on although the code has changed.")] = False,
    changed_data: Annotated[bool, typer.Option("--changed-data", help="With --resume: go on although the data have changed.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything, say how much work it is, and do none of it.")] = False,
    data: DataFolder = None,
    track: Track = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run one experiment, or go on with one that was stopped."""
    _check_run(experiment, resume, fresh=bool(overrides or (out and not rounds)), changed=changed_code or changed_data or bool(rounds))
    if not dry_run:
        forking.begin()  # before torch is imported here: both take as long, side by side
    with importing():
        from coterie.cli.progress import watching
        from coterie.cli.trackers import tracking
        from coterie.running.experiment import Experiment
        from coterie.running.extending import extended
        from coterie.running.rounds import check_folder, new_folder, started
        from coterie.running.rounds import resume as resume_run
        from coterie.running.rounds import run as run_new

    if resume is not None and rounds is not None:
        resume = extended(resume, rounds, out, data=data)
    plan = started(resume) if resume is not None else _offered(Experiment.load(str(experiment), overrides or ()), overrides or ())
    if dry_run:
        if out is not None:
            check_folder(out)
        _tell_cost(plan, data)
        return
    folder, title = resume or out or new_folder(plan), f"{plan.name} {plan.method.name}"
    with kept(folder), watching(console, title, plan.rounds, quiet=quiet or as_json) as shown, tracking(track, folder, title) as tracked:
        heard = [*shown, *tracked]
        if resume is not None:
            result = resume_run(folder, data=data, callbacks=heard, changed_code=changed_code, changed_data=changed_data)
        else:
            result = run_new(plan, folder, data=data, callbacks=heard)
    _tell(plan, result, as_json)


def _tell(plan: Experiment, result: Result, as_json: bool) -> None:
    """What came of it."""
    from coterie.results.sheets import outcome, spent

    if as_json:
        sys.stdout.write(to_json({"folder": str(result.folder), **result.summary}) + "\n")
        return
    console.print(*outcome(f"{plan.name}: {plan.method.name}, {counted(result.summary['rounds'], 'round')}", result.summary), sep="\n")
    say(spent(result.summary))
    say(f"written to {result.folder}")


def _check_run(experiment: str | None, resume: Path | None, *, fresh: bool, changed: bool) -> None:
    """Options that do not go together."""
    from coterie.deployment.server_app import ABOUT

    if (experiment is None) == (resume is None):
        raise UserError("coterie run takes either an experiment or --resume FOLDER")
    if resume is not None and fresh:
        raise UserError("--resume goes on with the experiment as it was: --set and --out do not go with it (for more rounds: --rounds 50)")
    if resume is not None and (resume.absolute().parent / ABOUT).exists():
        raise UserError(f"--resume {resume}: its clients are participants; go on with: coterie deploy server ... --out {resume.parent}")
    if resume is None and changed:
        raise UserError("--rounds, --changed-code and --changed-data are for a run that goes on: they need --resume FOLDER")


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
