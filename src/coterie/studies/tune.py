"""Hyper-parameters, honestly: every method is tuned with the same number of tries, on validation data and tuning seeds, and what was
chosen is then compared on test data with other seeds.

Test data are never looked at before the settings are chosen. What was tried, and what it took, is kept beside the result.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie import durable
from coterie.errors import UserError
from coterie.ledger import to_json
from coterie.results.statistics import Estimate, estimate
from coterie.running.experiment import Experiment
from coterie.studies.arms import Arm, arms_of, check_keys
from coterie.studies.compare import Watch, compare

__all__ = ["Tried", "Tuning", "chosen_arms", "tune", "tuning_arms"]

VALIDATED = {"global": "global_val", "composed": "global_val", "global_own": "global_val"}
"""What stands for a protocol while settings are looked for; for all others it is a client's model on its own validation data."""
VALIDATION = 0.2
"""The share of every client's training data that is held back for tuning, where the experiment holds back none."""


@dataclass(frozen=True)
class Tried:
    """One point of a method's grid."""

    method: str
    label: str
    point: dict[str, Any]
    protocol: str
    accuracy: Estimate
    """On validation data, over the tuning seeds."""
    steps: int
    """Gradient steps, of clients and server, over all tuning seeds."""
    chosen: bool = False


@dataclass(frozen=True)
class Tuning:
    """Everything that was tried."""

    tried: Sequence[Tried]
    seeds: Sequence[int]
    budget: int
    """Points that every method had."""

    @property
    def chosen(self) -> list[Tried]:
        """The best point of every method."""
        return [each for each in self.tried if each.chosen]

    def sentences(self) -> list[str]:
        """What a reader of the comparison must know."""
        seeds = ", ".join(map(str, self.seeds))
        told = [f"Settings were chosen on validation data with the seeds {seeds}, {self.budget} tries a method; tests use other seeds."]
        for best in self.chosen:
            mine = [each for each in self.tried if each.method == best.method]
            others = "; ".join(f"{each.label}: {100 * each.accuracy.mean:.2f}%" for each in mine)
            work = f"{len(mine)} tries, {sum(each.steps for each in mine):,} gradient steps"
            told.append(f"{best.method}: chosen is {best.label}, under {best.protocol} ({others}); {work}.")
        return told

    def write(self, path: Path) -> None:
        """All of it as JSON."""
        rows = [{**dataclasses.asdict(each), "accuracy": dataclasses.asdict(each.accuracy)} for each in self.tried]
        durable.write(path, to_json({"seeds": list(self.seeds), "budget": self.budget, "tried": rows}, indent=2) + "\n")


def tuning_arms(
    experiment: Experiment, methods: Sequence[Any], over: Mapping[str, Sequence[Any]], seeds: Sequence[int], folder: Path, **more: Any
) -> dict[str, list[Arm]]:
    """For every method, the arms of its grid: trained without what is held back for validation, and measured only there.

    >>> arms = tuning_arms(Experiment.load("digits-two-class"), ["fedavg", "fedprox"], {"method.mu": [0.1, 1.0]}, [100], Path("runs"))
    >>> {name: [arm.label for arm in each] for name, each in arms.items()}
    {'fedavg': ['fedavg'], 'fedprox': ['fedprox mu=0.1', 'fedprox mu=1.0']}
    >>> arms["fedprox"][0].experiment.protocols
    ('global_val',)
    """
    found: dict[str, list[Arm]] = {}
    for entry in methods:
        planned = arms_of(experiment, [entry], seeds[:1], folder, data=more.get("data"))[0].experiment
        headline = planned.protocols[0]
        protocol = VALIDATED.get(headline, "local_val")
        if protocol not in planned.method.protocols:
            raise UserError(f"method '{planned.method.name}' cannot be tuned: it has no model to measure under '{protocol}'")
        held = {} if planned.partition.validation else {"partition.validation": VALIDATION}
        wanted = {**held, "evaluation.protocols": [protocol], "evaluation.every": experiment.rounds, "evaluation.targets": []}
        base = planned.overridden(wanted)
        grid = {key: values for key, values in over.items() if not key.startswith("method.") or _has(planned, key)}
        arms = arms_of(base, [base.method], seeds, folder, grid, **more)
        found[planned.method.name] = arms
    check_keys(over, [arms[0].experiment.method for arms in found.values()])
    return found


def tune(
    arms: Mapping[str, Sequence[Arm]], watch: Watch, *, budget: int | None = None, data: Path | None = None, jobs: int | None = None
) -> Tuning:
    """Run the same number of points of every method's grid, and choose the best of each by its mean on validation data.

    Args:
        arms: what `tuning_arms` gives.
        watch: shows runs.
        budget: points for every method; by default as many as the smallest grid has that has more than one.
        data: the data folder.
        jobs: runs at once.
    """
    sizes = {name: len({arm.label for arm in each}) for name, each in arms.items()}
    points = budget or min(size for size in sizes.values() if size > 1)
    kept = [arm for name, each in arms.items() for arm in _drawn(each, min(points, sizes[name]))]
    compared = compare(kept, watch, data=data, jobs=jobs).complete()
    found: list[Tried] = []
    for name, each in arms.items():
        runs = [(arm, one) for arm, one in zip(compared.arms, compared.summaries, strict=True) if any(arm is other for other in each)]
        tried = [_tried(name, label, runs) for label in dict.fromkeys(arm.label for arm, _ in runs)]
        best = max(tried, key=lambda point: point.accuracy.mean)
        found += [dataclasses.replace(point, chosen=point is best) for point in tried]
    return Tuning(found, sorted({arm.experiment.seed for arm in kept}), points)


def chosen_arms(
    experiment: Experiment, methods: Sequence[Any], tuning: Tuning, seeds: Sequence[int], folder: Path, **more: Any
) -> list[Arm]:
    """The arms of the comparison: every method with the settings that were chosen for it, on seeds that nobody has seen."""
    if both := sorted(set(seeds) & set(tuning.seeds)):
        raise UserError(f"--seeds {both[0]}: it was used for tuning, expected seeds that were not")
    arms: list[Arm] = []
    for entry, best in zip(methods, tuning.chosen, strict=True):
        own = {key: value for key, value in best.point.items() if key.startswith("method.")}
        shared = {key: value for key, value in best.point.items() if key not in own}
        made = arms_of(experiment.overridden(shared) if shared else experiment, [entry], seeds, folder, overrides=own, **more)
        arms += [dataclasses.replace(arm, label=best.label) for arm in made]
    return arms


def _has(experiment: Experiment, key: str) -> bool:
    return key.split(".")[1] in {field.name for field in dataclasses.fields(experiment.method)}  # type: ignore[arg-type]


def _drawn(arms: Sequence[Arm], points: int) -> list[Arm]:
    """The arms of so many points, drawn by a fixed seed: nobody chooses which part of a large grid is looked at."""
    labels = list(dict.fromkeys(arm.label for arm in arms))
    kept = set(random.Random(0).sample(labels, points))
    return [arm for arm in arms if arm.label in kept]


def _tried(method: str, label: str, runs: Sequence[tuple[Arm, Mapping[str, Any]]]) -> Tried:
    mine = [(arm, summary) for arm, summary in runs if arm.label == label]
    arm, first = mine[0]
    protocol = next(iter(first["protocols"]))
    found = estimate([summary["protocols"][protocol]["accuracy"]["last"] for _, summary in mine])
    steps = sum(int(summary["work"][part]["steps"]) for _, summary in mine for part in ("pretraining", "rounds", "server"))
    return Tried(method, label, dict(arm.point), protocol, found, steps)
