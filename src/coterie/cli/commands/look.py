"""`coterie watch` and `coterie report`: runs as they go on, and as they were."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coterie.cli.sentences import console, say
from coterie.errors import Interrupted

__all__ = ["report", "watch"]


def watch(
    run: Annotated[Path, typer.Argument(help="The folder of a run, or of a comparison.")],
    once: Annotated[bool, typer.Option("--once", help="As it is now, and no more.")] = False,
) -> None:
    """Look at a run in progress, or at all runs of a comparison; ends when they do."""
    from coterie.cli import watch as live
    from coterie.ledger import LEDGER
    from coterie.results.gather import find_runs

    try:
        if (run / LEDGER).is_file():
            live.watch(run, console, once=once)
        elif find_runs([run]):
            live.watch_all(run, console, once=once)
    except KeyboardInterrupt:
        raise Interrupted("stopped looking at it; the run goes on") from None


def report(
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
