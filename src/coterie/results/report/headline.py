"""The few numbers at the top of the page: who is ahead, and whether that is shown or noise; and who gets to a target cheapest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import mean

from coterie.errors import counted
from coterie.results.comparison import ArmRuns, Reach, differences, last_score, over_clients, reached
from coterie.results.gather import Report
from coterie.results.report.curves import METRICS, metrics_of
from coterie.results.sheets import clients_text, difference_cells
from coterie.results.statistics import Difference, Estimate
from coterie.results.tables import amount, is_share, number, points, share

__all__ = ["cards", "ranked"]

Card = dict[str, str]
Order = Sequence[tuple[ArmRuns, Estimate]]
NONE = "no clear winner"


def cards(report: Report, protocol: str) -> list[Card]:
    """Who wins, if anybody does, the highest score, and the fewest rounds and bytes to the highest target that any method reaches.

    >>> from pathlib import Path
    >>> from coterie.results.read import Run
    >>> from coterie.results.tally import Mean, Tally
    >>> tally = Tally({"seed": 0})
    >>> tally.means["global"]["accuracy"][1] = Mean(1, 0.5)
    >>> [card["value"] for card in cards(Report("toy", [ArmRuns("fedavg", [Run(Path("r"), tally)])]), "global")]
    ['50.00%', '0', '0 B']
    """
    metric = metrics_of(report, protocol)[0]
    order = ranked(report.arms, protocol, metric)
    winner = [_winner(order, report, protocol, metric)] if len(order) > 1 else []
    alone = len(order) == 1 or any(arm.stopped for arm, _ in order)  # what runs stopped at is nobody's highest
    return [*winner, _score(order[0], report, protocol, metric, alone=alone), *_frugal(report, protocol)]


def ranked(arms: Sequence[ArmRuns], protocol: str, metric: str) -> list[tuple[ArmRuns, Estimate]]:
    """Arms by their last value, the best first; bounds are no rivals, and only stand here if there are no others."""
    found = [(arm, last) for arm in arms if (last := last_score(arm, protocol, metric)) is not None]
    rivals = [pair for pair in found if not pair[0].bound] or found
    return sorted(rivals, key=lambda pair: pair[1].mean if metric == "loss" else -pair[1].mean)


def _winner(order: Order, report: Report, protocol: str, metric: str) -> Card:
    """A winner is ahead of every other with an interval that excludes 0; else there is none, and the card says why."""
    first, rivals = order[0][0], [arm for arm, _ in order]
    behind = {arm.label: found for arm, found in differences(rivals, first, protocol, metric)}
    close = [label for label, found in behind.items() if not found.shown]
    apart = [arm.label for arm in rivals[1:] if arm.label not in behind]
    if apart:
        stopped = any(arm.stopped for arm in rivals)
        why = f"{first.label} and {apart[0]} share no seed, or are not over the same clients"
        return {"title": "Best method", "value": NONE, "detail": "runs stopped at evaluation.stop_at" if stopped else why}
    against = rivals[1].label
    rest = [label for label in sorted(close, key=[arm.label for arm in rivals].index) if label != against]
    others = f"; {'nor is it' if against in close else 'it is not'} told apart from {' or '.join(rest)}" if rest else ""
    detail = _margin(first.label, against, behind[against], metric) + others + _bound(report, protocol, metric)
    return {"title": "Best method", "value": NONE if close else first.label, "detail": detail}


def _margin(first: str, other: str, behind: Difference, metric: str) -> str:
    """How far the first is ahead of another with the same seeds, so that noise is not sold as a win.

    >>> _margin("a", "b", Difference(-0.02, -0.05, 0.01, 3), "accuracy")
    'a is 2.00 points ahead of b over 3 common seeds, but the 95% interval -1.00 to +5.00 includes 0'
    >>> _margin("a", "b", Difference(-0.5, None, None, 2), "accuracy")
    'a is 50.00 points ahead of b over 2 common seeds: too few seeds'
    """
    sign = 1 if metric == "loss" else -1
    low, high = (None, None) if behind.low is None or behind.high is None else sorted((sign * behind.low, sign * behind.high))
    ahead = Difference(sign * behind.mean, low, high, behind.seeds)
    lead = f"{first} is {points(ahead.mean, metric)}{' points' if is_share(metric) else ''} ahead of {other}"
    lead += f" over {ahead.seeds} common seed{'' if ahead.seeds == 1 else 's'}"
    _, bounds, verdict = (cell.text for cell in difference_cells(ahead, metric))
    if low is None:
        return f"{lead}: {verdict}"
    return f"{lead}; 95% interval {bounds}" if ahead.shown else f"{lead}, but the 95% interval {bounds} includes 0"


def _bound(report: Report, protocol: str, metric: str) -> str:
    found = [(arm.label, last) for arm in report.arms if arm.bound and (last := last_score(arm, protocol, metric)) is not None]
    return "".join(f"; {label}, with all data in one place, has {number(last.mean, metric)}" for label, last in found)


def _score(best: tuple[ArmRuns, Estimate], report: Report, protocol: str, metric: str, *, alone: bool) -> Card:
    arm, found = best
    after = max(run.tally.rounds for run in arm.runs)
    words = [f"after {counted(after, 'round')}"]
    words.append("one seed" if found.spread is None else f"mean of {found.seeds} seeds ±\u00a0{points(found.spread, metric)}")
    over = over_clients(arm, protocol)
    if over is not None:
        words.append(f"mean over {clients_text(*over.clients)}, the worst {number(over.worst.mean)}")
    name = METRICS.get(metric, metric)
    title = f"{name[0].upper()}{name[1:]}" if alone else f"{'Lowest' if metric == 'loss' else 'Highest'} {name}"
    return {"title": title, "value": number(found.mean, metric), "detail": ", ".join([arm.label, *words])}


def _frugal(report: Report, protocol: str) -> list[Card]:
    """The fewest rounds and bytes to the highest target reached by every seed of some arm; without targets, what was spent in all."""
    rivals = [arm for arm in report.arms if arm.sends] or report.arms
    targets = sorted({target for tally in report.tallies for target in tally.targets}, reverse=True)
    for target in targets:
        found = [each for arm in rivals if (each := reached(arm, protocol, target)).found and each.everywhere]
        if found:
            rounds, sent = (min(found, key=lambda reach: _took(reach, what)) for what in ("round", "bytes"))
            title, alone = f"{share(target)}", len(rivals) == 1
            fewest = "" if alone else "fewest "
            heads = [f"{fewest}{what} to {title}".capitalize() for what in ("rounds", "bytes")]
            return [
                {"title": heads[0], "value": f"{_took(rounds, 'round'):,.1f}".removesuffix(".0"), "detail": rounds.label},
                {"title": heads[1], "value": amount(_took(sent, "bytes")), "detail": f"{sent.label}, up and down, setup included"},
            ]
    return _spent(report, rivals, f"no method reached {share(targets[-1])} with every seed" if targets else "no target was set")


def _took(reach: Reach, what: str) -> float:
    took = reach.took(what)
    return math.inf if took is None else took.mean


def _spent(report: Report, rivals: Sequence[ArmRuns], why: str) -> list[Card]:
    sent = {arm.label: mean(run.tally.total("up") + run.tally.total("down") for run in arm.runs) for arm in rivals}
    most = max(sent, key=lambda label: sent[label])
    return [
        {"title": "Rounds", "value": f"{max(tally.rounds for tally in report.tallies):,}", "detail": why},
        {"title": "Sent, up and down", "value": amount(sent[most]), "detail": "a run" if len(sent) == 1 else f"a run of {most}, the most"},
    ]
