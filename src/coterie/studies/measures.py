"""What a cell of a recipe measures, read off the run's tally."""

from __future__ import annotations

from itertools import pairwise
from statistics import mean, pstdev

from coterie.errors import RunError
from coterie.results.statistics import RUNNING, best_of, crossing
from coterie.results.tally import Tally
from coterie.studies.recipe import CellPlan

__all__ = ["value_of"]


def value_of(plan: CellPlan, tally: Tally) -> float | None:
    """A cell's number in one run; None where a target was not reached."""
    match plan.measure:
        case "rounds":
            found = tally.reached(plan.protocol, plan.target or 0, RUNNING)
            return None if found is None else float(found.round)
        case "new client epochs":
            return _epochs(tally, plan.target or 0)
        case "new client accuracy":
            return float(mean(each["accuracy"][plan.epoch or 0] for each in tally.new_clients))
        case "diagonal":
            return mean(_above(found[-1]["values"]) for (name, _), found in tally.logs.items() if name == plan.log)
        case "best":
            return best_of(tally.curve(plan.protocol, plan.metric).values(), plan.metric)
        case "swing":
            return _swing(list(tally.curve(plan.protocol, plan.metric).values()))
        case "last":
            return _last(plan, tally)


def _last(plan: CellPlan, tally: Tally) -> float:
    if plan.client is not None:
        return tally.clients[plan.protocol][plan.metric][plan.client].value
    found = tally.last(plan.protocol, plan.metric)
    if found is None:
        raise RunError(f"nothing was measured under '{plan.protocol}' ({plan.metric})")
    return found.value


def _above(matrix: list[list[float]]) -> float:
    """The mean of a matrix's diagonal less that of the rest.

    >>> _above([[1.0, 0.25], [-0.25, 0.5]])
    0.75
    """
    diagonal = [row[at] for at, row in enumerate(matrix)]
    rest = [value for at, row in enumerate(matrix) for other, value in enumerate(row) if other != at]
    return mean(diagonal) - mean(rest)


def _epochs(tally: Tally, target: float) -> float | None:
    """Epochs until new clients, on average, are at the target; at least one, since a ratio of none says nothing."""
    curves = [each["accuracy"] for each in tally.new_clients]
    found = crossing({epoch: mean(values) for epoch, values in enumerate(zip(*curves, strict=True))}, target)
    return None if found is None else float(max(found, 1))


def _swing(values: list[float]) -> float:
    """The standard deviation of the changes from one evaluation to the next, over the second half of a run.

    >>> _swing([0.1, 0.5, 0.6, 0.7, 0.8]) < 1e-9 < _swing([0.1, 0.5, 0.6, 0.4, 0.8])
    True
    """
    tail = values[len(values) // 2 :]
    return pstdev(after - before for before, after in pairwise(tail)) if len(tail) > 2 else 0.0
