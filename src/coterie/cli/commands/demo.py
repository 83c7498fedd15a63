"""`coterie demo`: what this project is for, in two tables and one page, on data that need no fetching."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.cli.options import RUNS, Jobs, Quiet
from coterie.cli.sentences import console, program, say
from coterie.cli.watching import watched

if TYPE_CHECKING:
    from coterie.results.comparison import ArmRuns, Contrast, Gap, Reach
    from coterie.results.statistics import Estimate
    from coterie.results.tables import Sheet
    from coterie.studies.demo import Part

__all__ = ["demo"]

NEXT = (
    (
        "compare digits-two-class --methods fedavg,fedmmd,ditto --seeds 0-2",
        "a larger network, and methods of your choice: see who is at 80% first",
    ),
    ("list methods fedmmd", "every setting of a method; without a name, every method"),
    ("new my.toml", "an experiment of your own, every key explained"),
)
"""What to try then."""


def demo(jobs: Jobs = None, quiet: Quiet = False) -> None:
    """Two comparisons on embedded real data: clients whose data differ, clients whose models differ. About a minute on two cores."""
    from coterie.results.comparison import contrast, read_arms
    from coterie.results.gather import gather
    from coterie.results.report.several import Chapter, write_pages
    from coterie.studies import compare as study
    from coterie.studies.demo import PARTS

    chapters: list[Chapter] = []
    for part in PARTS:
        arms = part.arms(RUNS / "demo")
        say(f"Part {len(chapters) + 1} of {len(PARTS)}: {len(arms)} runs")
        with watched(arms, None, quiet=quiet, brief=True) as watch:
            compared = study.compare(arms, watch, jobs=jobs).complete()
        found = contrast(_judged(part, read_arms((arm.label, arm.folder) for arm in compared.arms)), part.baseline)
        sheets = (_numbers(part, found), _meanings(part))
        console.print(*sheets)
        if compared.reused:
            say(f"{compared.reused} of {len(arms)} runs were there already and are reused")
        chapters.append(Chapter(part.title, sheets, gather([arm.folder for arm in compared.arms])))
    page = write_pages("Coterie: a demonstration", chapters, RUNS / "demo" / "index.html")
    say(f"Both tables, with curves, clients and bytes: {page}")
    say("Next, in this shell:")
    for command, what in NEXT:
        say(f"  {program()} {command}\n      {what}")


def _judged(part: Part, arms: list[ArmRuns]) -> list[ArmRuns]:
    """The same arms, with what a method is about under the protocol that all are compared by."""
    for arm in (each for each in arms if each.label in part.instead):
        for run in arm.runs:
            run.tally.means[part.protocol] = run.tally.means[part.instead[arm.label]]
    return arms


def _numbers(part: Part, found: Contrast) -> Sheet:
    """One row for each method: what it reached, and what of its differences to the baseline is shown."""
    from coterie.results.tables import Sheet

    measured = dict.fromkeys(name for standing in found.standings for name in standing.accuracy)
    protocols = [name for name in measured if name not in part.instead.values()]
    reached = {each.label: each for each in found.reaches if each.protocol == part.protocol}
    gaps = {(gap.label, gap.protocol): gap for gap in found.gaps}
    rows = [
        [
            standing.label + ("*" if standing.label in part.instead else ""),
            *(_reached(standing.accuracy.get(name)) for name in protocols),
            *([_rounds(reached.get(standing.label))] if reached else []),
            *(_shown(gaps.get((standing.label, name))) for name in protocols),
        ]
        for standing in found.standings
    ]
    columns = ["method", *protocols, *(["rounds to 80%"] if reached else []), *(f"{name} to {part.baseline}" for name in protocols)]
    seeds = max(standing.seconds.seeds for standing in found.standings)
    how = f"Percent: mean ± standard deviation over {seeds} seeds; differences in points, shown where their paired 95% interval says so."
    return Sheet(part.title, columns, rows, " ".join([part.what, how, _honest(part, found)]).strip())


def _meanings(part: Part) -> Sheet:
    """What each method does, and from which paper it is."""
    from coterie.results.tables import Sheet

    return Sheet("", ["method", "what it does"], [[name, f"{what} ({paper})"] for name, (paper, what) in part.rows.items()])


def _reached(estimate: Estimate | None) -> str:
    if estimate is None:
        return "-"
    return f"{100 * estimate.mean:.1f}" + ("" if estimate.spread is None else f" ± {100 * estimate.spread:.1f}")


def _shown(gap: Gap | None) -> str:
    """A difference, and what its interval says."""
    if gap is None:
        return ""
    verdict = gap.difference.verdict
    return f"{100 * gap.difference.mean:+.1f} {'not shown' if verdict == 'no difference shown' else verdict}"


def _rounds(reach: Reach | None) -> str:
    """How many it took, on average, where every seed got there."""
    if reach is None or len(reach.there) < len(reach.found):
        return "-"
    return f"{sum(each.round for each in reach.there) / len(reach.there):.1f}"


def _honest(part: Part, found: Contrast) -> str:
    """That nothing was gained, where nothing was."""
    verdicts = [gap.difference.verdict for gap in found.gaps if gap.protocol == part.protocol]
    return "" if "higher" in verdicts else f"No method is shown to be better than {part.baseline} here."
