"""What clients say beside their replies: what they measured, trained, logged and kept. It goes to the ledger, into means over clients and
into decisions (when to stop, whether a target is reached), so what cannot be true is not taken down.

A number that is none (a loss that has become infinite) is said by honest clients too, and is let in.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coterie.engines.engine import Job, Outcome, PartOfMean
from coterie.record import Record
from coterie.site import Observation, Work
from coterie.training.score import Scores

__all__ = ["Measures", "fault_of", "sums_of"]

LOGGED = 16 * 2**20
"""Bytes of what one task logs, as JSON."""
MANY = 1000
"""Logged arrays, or trainings, of one task."""
COUNTED = 2**53
"""What is counted stays below it: it is a number in every program then."""


@dataclass(frozen=True)
class Measures:
    """What can be measured in an experiment.

    >>> Measures(classes=10).domains
    frozenset()
    """

    classes: int
    metrics: frozenset[str] = frozenset()
    """A user's own, by name."""
    domains: frozenset[str] = frozenset()


def fault_of(job: Job, outcome: Outcome, measures: Measures) -> str | None:
    """What is wrong with what a client says beside its reply; None if nothing.

    >>> fault_of(Job(0, "train", 1, ""), Outcome(0, logs={"losses": [0.5]}, kept="1-1"), Measures(classes=10))
    "what it keeps is not under the name it was given: '1-1'"
    """
    if not (math.isfinite(outcome.seconds) and outcome.seconds >= 0):
        return f"it took {outcome.seconds} seconds, expected a number from 0"
    if outcome.kept not in (None, job.memory, job.keep):
        return f"what it keeps is not under the name it was given: {outcome.kept!r:.80}"
    if not _are_observations(outcome.observations, job, measures):
        return "it measures what it was not asked to measure, or not in numbers"
    if not _is_list(outcome.work, Work) or not all(map(_is_work, outcome.work)):
        return "its training is not counted in numbers"
    if outcome.part is not None and job.mean is None:
        return "it tells of a part in a mean that nobody wants: a reply is looked at"
    if outcome.part is not None and not _is_part(outcome.part):
        return "its part in a mean is not told in numbers"
    return _bad_logs(outcome.logs)


def sums_of(work: Sequence[Sequence[Work]]) -> dict[str, Any]:
    """Of some clients' work: how many clients, how much in all, and the mean loss by sample.

    >>> sums_of([[Work("train", 2, 10, 1.0)], [Work("train", 4, 30, 3.0)], []])
    {'clients': 2, 'steps': 6, 'samples': 40, 'loss': 2.5}
    """
    flat = [each for one in work for each in one]
    known = [(each.samples, float(each.loss)) for each in flat if each.loss is not None]
    seen = sum(samples for samples, _ in known)
    try:
        loss = math.fsum(samples * loss for samples, loss in known) / seen if seen else None
    except (OverflowError, ValueError):  # of what is infinite, or added up would be
        loss = math.nan
    sums = {"steps": sum(each.steps for each in flat), "samples": sum(each.samples for each in flat)}
    return {"clients": sum(map(bool, work)), **sums, "loss": loss}


def _is_list(said: object, kind: type) -> bool:
    return isinstance(said, list) and len(said) <= MANY and all(isinstance(each, kind) for each in said)


def _are_observations(said: object, job: Job, measures: Measures) -> bool:
    """Whether each protocol of the visit was measured once at most, on each domain that there is."""
    if not isinstance(said, list) or len(said) > len(job.visit.protocols) * max(len(measures.domains), 1):
        return False
    if not all(isinstance(each, Observation) and each.protocol in job.visit.protocols for each in said):
        return False
    if not all(each.domain is None or (isinstance(each.domain, str) and each.domain in measures.domains) for each in said):
        return False
    once = len({(each.protocol, each.domain) for each in said}) == len(said)
    return once and all(_are_scores(each.scores, measures) for each in said)


def _are_scores(said: object, measures: Measures) -> bool:
    if not isinstance(said, Scores) or not all(map(_is_count, (said.examples, said.correct, said.correct5))):
        return False
    own = isinstance(said.own, Mapping) and said.own.keys() == (measures.metrics if said.examples else set())
    counted = said.correct <= said.correct5 <= said.examples and _is_confusion(said.confusion, said, measures.classes)
    return own and counted and all(map(_is_number, (said.loss, *said.own.values())))


def _is_confusion(said: object, scores: Scores, classes: int) -> bool:
    """Whether it is of the examples that were counted, and of those that were right."""
    if not isinstance(said, Mapping) or len(said) > classes**2 or not all(map(_is_count, said.values())):
        return False
    pairs = {tuple(key.split(":")): count for key, count in said.items() if isinstance(key, str)}
    known = {str(each) for each in range(classes)}
    if len(pairs) < len(said) or not all(len(pair) == 2 and set(pair) <= known for pair in pairs):
        return False
    right = sum(count for (true, predicted), count in pairs.items() if true == predicted)
    return not said or (sum(pairs.values()), right) == (scores.examples, scores.correct)


def _is_work(said: Work) -> bool:
    named = isinstance(said.purpose, str) and len(said.purpose) <= MANY
    return named and _is_count(said.steps) and _is_count(said.samples) and (said.loss is None or _is_number(said.loss))


def _is_count(said: object) -> bool:
    return type(said) is int and 0 <= said < COUNTED


def _is_number(said: object) -> bool:
    return type(said) is float or (type(said) is int and abs(said) < COUNTED)


def _is_part(part: PartOfMean) -> bool:
    try:
        said = Record(part.scalars)
    except TypeError:  # names that are none, or values that no reply has
        return False
    counted = len(said.scalars) == len(part.scalars) and type(part.length) is int and 0 <= part.length < 2**63
    return counted and type(part.norm) is float and not part.norm < 0


def _bad_logs(logs: object) -> str | None:
    if not isinstance(logs, dict) or len(logs) > MANY:
        return f"what it logs is not a table of at most {MANY:,} arrays"
    try:
        size = len(json.dumps(logs)) if logs else 0
    except (TypeError, ValueError, RecursionError) as error:
        return f"what it logs is not made of numbers: {error}"
    return f"what it logs has {size:,} bytes, more than the {LOGGED:,} allowed" if size > LOGGED else None
