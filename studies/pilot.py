"""How much two cells of a recipe differ from seed to seed, on pilot seeds: what a power calculation in the recipe rests on.

    python studies/pilot.py RECIPE "TABLE / ROW / COLUMN" "TABLE / ROW / COLUMN" [--seeds 900 901 902] [--effect 0.03] [--comparisons 17]

Only the runs of these cells are made, at the recipe's study scale, and none of the seeds that it will be judged by. Printed are the paired
differences (of rounds: the ratios), their standard deviation, and, where an effect is given, how many seeds would show it.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import stdev

from coterie.errors import UserError, nearest
from coterie.ledger import Listener
from coterie.results.read import read_whole
from coterie.results.verdicts import seeds_for_difference, seeds_for_ratio
from coterie.studies.arms import Arm, arm
from coterie.studies.compare import compare
from coterie.studies.measures import value_of
from coterie.studies.recipe import CellPlan, Recipe, cells_of

PILOT = (900, 901, 902)


def plans_of(recipe: Recipe, scale: str, names: Sequence[str]) -> list[CellPlan]:
    """Two cells by their names."""
    known = {str(key): plan for key, plan in cells_of(recipe, scale)}
    for name in names:
        if name not in known:
            raise UserError(f"'{name}' is no cell of recipe '{recipe.name}': {nearest(name, known)}")
    return [known[name] for name in names]


def values_of(plans: Sequence[CellPlan], names: Sequence[str], seeds: Sequence[int], runs: Path, data: Path | None) -> list[list[float]]:
    """Of each cell, its number with each seed; what was run already is not run again."""
    arms = {(at, seed): arm(plan.experiment.replace(seed=seed), runs, names[at], data) for seed in seeds for at, plan in enumerate(plans)}
    compare(list({each.folder: each for each in arms.values()}.values()), in_silence, data=data).complete()
    found = {place: value_of(plans[place[0]], read_whole(each.folder).tally) for place, each in arms.items()}
    return [[math.nan if (value := found[at, seed]) is None else value for seed in seeds] for at in range(len(plans))]


@contextmanager
def in_silence(_: Arm) -> Iterator[Sequence[Listener]]:
    yield ()


def told(plans: Sequence[CellPlan], values: Sequence[Sequence[float]], effect: float | None, comparisons: int) -> str:
    """What the pilot gave.

    >>> plan = next(plan for key, plan in cells_of(Recipe.load("fml-table2"), "study") if key.column == "best global")
    >>> print(told([plan, plan], [[0.52, 0.55, 0.53], [0.50, 0.50, 0.50]], 0.03, 4))
    differences: +0.0200, +0.0500, +0.0300
    spread: 0.0153
    0.03 in 4 comparisons: 7 seeds
    """
    ratio = plans[0].measure == "rounds"
    paired = [math.log(a / b) if ratio else a - b for a, b in zip(*values, strict=True)]
    shown = [f"{math.exp(each):.2f}" if ratio else f"{each:+.4f}" for each in paired]
    lines = [f"{'ratios' if ratio else 'differences'}: {', '.join(shown)}", f"spread: {(spread := stdev(paired)):.4f}"]
    if effect is not None and spread > 0:
        count = (seeds_for_ratio if ratio else seeds_for_difference)(effect, spread, comparisons)
        lines.append(f"{effect:g} in {comparisons} comparisons: {count} seeds")
    return "\n".join(lines)


def main() -> None:
    """Run, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("cells", nargs=2)
    parser.add_argument("--scale", default="study")
    parser.add_argument("--seeds", type=int, nargs="+", default=PILOT)
    parser.add_argument("--effect", type=float)
    parser.add_argument("--comparisons", type=int, default=1)
    parser.add_argument("--runs", type=Path, default=Path("runs/pilot"))
    parser.add_argument("--data", type=Path)
    options = parser.parse_args()
    recipe = Recipe.load(options.recipe)
    if taken := set(options.seeds) & set(recipe.scales[options.scale].seeds):
        parser.error(f"--seeds {min(taken)}: the recipe is judged by it, expected others")
    plans = plans_of(recipe, options.scale, options.cells)
    print(told(plans, values_of(plans, options.cells, options.seeds, options.runs, options.data), options.effect, options.comparisons))


if __name__ == "__main__":
    main()
