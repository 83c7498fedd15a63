"""What a recipe would take, measured without running it: CPU seconds of one or two rounds of each of its runs, times their number.

    python studies/costs.py [RECIPE ...] [--scale study] [--data FOLDER]

Of each run that a seed needs, one round is run and then two, on a pilot seed and one core; what a second round adds is what each takes, and
what is left of the first is what comes once (data, pretraining, new clients, the last evaluation). Where a server trains an upper part
once, for some epochs, it is given one epoch, then two, in the same way. Rounds that several runs begin with count once. No accuracy is
looked at.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import coterie
from coterie.data.folder import data_folder
from coterie.errors import RunError, UserError
from coterie.running.experiment import Experiment
from coterie.running.extending import common_rounds
from coterie.studies.arms import Arm
from coterie.studies.recipe import Recipe, recipes
from coterie.studies.reproduce import arms_for

PILOT = 900


def seconds(experiment: Experiment, data: Path, rounds: int, epochs: int | None = None) -> float:
    """CPU seconds of a run, shortened to so many rounds, and, where a server trains once, to so many epochs there."""
    every = rounds if experiment.evaluation.every >= experiment.rounds else experiment.evaluation.every
    changes: dict[str, object] = {"rounds": rounds, "seed": PILOT, "engine.name": "inline", "evaluation.every": every}
    if epochs is not None:
        changes["method.server.epochs"] = epochs
    with tempfile.TemporaryDirectory() as folder:
        began = time.process_time()
        coterie.run(experiment.overridden(changes), Path(folder) / "run", data=data)
        return time.process_time() - began


def whole(experiment: Experiment, data: Path, done: int = 0) -> float:
    """CPU seconds that all of a run would take, but for rounds that are done for it; none that can be told where its first rounds fail."""
    try:
        return _whole(experiment, data, done)
    except RunError as error:
        print(f"a run of it fails: {error}", flush=True)
        return math.nan


def _whole(experiment: Experiment, data: Path, done: int) -> float:
    server = getattr(experiment.method, "server", None)
    least = None if server is None else 1
    first = seconds(experiment, data, 1, least)
    each = max(seconds(experiment, data, 2, least) - first, 0.0) if experiment.rounds > 1 else 0.0
    epoch = 0.0 if server is None else max(seconds(experiment, data, 1, 2) - first, 0.0)
    return first + each * (experiment.rounds - 1 - done) + epoch * ((server.epochs if server else 1) - 1)


def costs_of(arms: Sequence[Arm], data: Path) -> dict[str, float]:
    """Of each run; the first that begins as others do has the rounds that they have in common."""
    found, known = dict[str, float](), set[str]()
    for each in arms:
        common = common_rounds(each.experiment)
        begun = common is not None and common[0].digest() in known
        found[each.title] = whole(each.experiment, data, common[1] if common is not None and begun else 0)
        known |= {common[0].digest()} if common is not None else set()
    return found


def main() -> None:
    """Print a line for each run, and one for each recipe."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", default=list(recipes()))
    parser.add_argument("--scale", default="study")
    parser.add_argument("--data", type=Path)
    options = parser.parse_args()
    data = data_folder(options.data)
    for name in options.recipes:
        recipe = Recipe.load(name)
        seeds = recipe.scales[options.scale].seeds
        try:
            arms = [each for each in arms_for(recipe, options.scale, Path("runs"), data) if each.experiment.seed == seeds[0]]
            costs = costs_of(arms, data)
        except UserError as error:
            print(f"{name}: not measured: {error}", flush=True)
            continue
        for title, cost in costs.items():
            print(f"{name}: {cost:8.0f} s  {title}", flush=True)
        total = sum(cost for cost in costs.values() if not math.isnan(cost))
        print(
            f"{name}: {total / 60:.0f} minutes of one core a seed, {total * len(seeds) / 3600:.1f} hours for {len(seeds)} seeds", flush=True
        )


if __name__ == "__main__":
    main()
