"""The few numbers at the top of the page: who is ahead and by how much, seed by seed, and who gets to a target cheapest."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from coterie.results.report.gather import Arm, Comparison
from coterie.results.report.numbers import Spread, final, last_of, metrics_of, sends, targets_of
from coterie.results.report.tabulate import is_share, number, percent
from coterie.results.statistics import interval
from coterie.results.tables import amount

__all__ = ["cards", "ranked"]

Card = dict[str, str]
METRICS = {"accuracy": "accuracy", "top5": "top-5 accuracy", "loss": "loss"}


def cards(comparison: Comparison, protocol: str) -> list[Card]:
    """Best method, its accuracy, and the fewest rounds and bytes to the highest target that any method reaches.

    >>> from pathlib import Path
    >>> from coterie.results.report.read import Run
    >>> run = Run(Path("r"), {"seed": 0})
    >>> run.curves["global"]["accuracy"][1] = 0.5
    >>> [card["value"] for card in cards(Comparison("toy", [Arm("fedavg", "fedavg", [run])]), "global")]
    ['fedavg', '50.00%', '0', '0 B']
    """
    metric = metrics_of(comparison, protocol)[0]
    order = ranked(comparison, protocol, metric)
    _, found = order[0]
    after = max(run.rounds for run in comparison.runs)
    over = f"mean of {len(found.values)} seeds, {_deviation(found, metric)}" if len(found.values) > 1 else "one seed"
    best = {"title": "Best method", "value": order[0][0].label, "detail": _silent(order, metric) or _margin(order, protocol, metric)}
    score = {
        "title": f"Its {METRICS.get(metric, metric)}",
        "value": number(found.mean, metric),
        "detail": f"after {after:,} rounds, {over}",
    }
    return [best, score, *_frugal(comparison, protocol)]


def ranked(comparison: Comparison, protocol: str, metric: str) -> list[tuple[Arm, Spread]]:
    """Arms by their last value, the best first."""
    found = [(arm, spread) for arm in comparison.arms if (spread := last_of(arm, protocol, metric)) is not None]
    return sorted(found, key=lambda pair: pair[1].mean if metric == "loss" else -pair[1].mean)


def _deviation(found: Spread, metric: str) -> str:
    return f"±\u00a0{100 * (found.deviation or 0):.2f}" if is_share(metric) else f"±\u00a0{found.deviation or 0:.4f}"


def _silent(order: Sequence[tuple[Arm, Spread]], metric: str) -> str:
    """Where the best sends nothing (training in one place, or alone), who leads of those that do."""
    talking = [(arm, found) for arm, found in order if sends(arm)]
    if sends(order[0][0]) or not talking:
        return ""
    arm, found = talking[0]
    return f"which sends nothing in its rounds; of those that do, {arm.label} leads with {number(found.mean, metric)}"


def _margin(order: Sequence[tuple[Arm, Spread]], protocol: str, metric: str) -> str:
    """How far the first is ahead of the second with the same seeds, so that noise is not sold as a win."""
    if len(order) == 1:
        return "the only one measured this way"
    first, second = order[0][0], order[1][0]
    theirs = {run.seed: final(run, protocol, metric) for run in second.runs if run.curves.get(protocol, {}).get(metric)}
    pairs = [(final(run, protocol, metric), theirs[run.seed]) for run in first.runs if run.seed in theirs]
    if not pairs:
        return f"ahead of {second.label}, on other seeds"
    sign = -1 if metric == "loss" else 1
    gains = [sign * (ours - other) for ours, other in pairs]
    gain = f"{100 * mean(gains):.2f} points" if is_share(metric) else f"{mean(gains):.4f}"
    return f"{gain} over {second.label}; {_doubt(gains, metric)}"


def _doubt(gains: Sequence[float], metric: str) -> str:
    """The confidence interval of paired differences, and what it means.

    >>> _doubt([0.1, 0.1, 0.11], "accuracy"), _doubt([0.1], "accuracy")
    ('95% interval 8.90 to 11.77', 'one seed shows no difference')
    >>> _doubt([0.1, -0.1], "accuracy")
    'no difference shown (95% interval -127.06 to 127.06)'
    """
    found = interval(gains)
    if found is None:
        return "one seed shows no difference"
    low, high = (f"{100 * end:.2f}" if is_share(metric) else f"{end:.4f}" for end in found)
    text = f"95% interval {low} to {high}"
    return text if found[0] > 0 else f"no difference shown ({text})"


def _frugal(comparison: Comparison, protocol: str) -> list[Card]:
    """The fewest rounds and bytes to the highest target reached by every seed of some arm; without targets, what was spent in all."""
    experiment = next((run.experiment for run in comparison.runs if run.experiment), {})
    for target in sorted(experiment.get("evaluation", {}).get("targets", ()), reverse=True):
        found = {
            arm.label: t for arm in comparison.arms if (t := targets_of(arm, protocol, target, running=False)) and None not in t.rounds
        }
        if found:
            talking = {arm.label for arm in comparison.arms if sends(arm)}
            found = {label: each for label, each in found.items() if label in talking} or found
            quick = min(found, key=lambda label: mean(found[label].of("rounds")))
            light = min(found, key=lambda label: mean(found[label].of("bytes")))
            rounds, sent = mean(found[quick].of("rounds")), mean(found[light].of("bytes"))
            return [
                {
                    "title": f"Fewest rounds to {percent(target)}",
                    "value": f"{rounds:,.4g}",
                    "detail": f"{quick}, of methods that send in their rounds",
                },
                {"title": f"Fewest bytes to {percent(target)}", "value": amount(sent), "detail": f"{light}, up and down, setup included"},
            ]
    rounds = max(run.rounds for run in comparison.runs)
    sent = max(mean(run.total("up") + run.total("down") for run in arm.runs) for arm in comparison.arms)
    why = "no target was set or reached" if experiment.get("evaluation", {}).get("targets") else "no target was set"
    return [
        {"title": "Rounds", "value": f"{rounds:,}", "detail": why},
        {"title": "Sent, up and down", "value": amount(sent), "detail": "a run, the most of all methods"},
    ]
