"""What a server lets in. A reply that is malformed, of another shape, not finite or too far away is dropped and named."""

from __future__ import annotations

import math
from typing import Literal

from torch import Tensor

from coterie.errors import RunError
from coterie.record import Record
from coterie.settings import Count, Positive, PositiveShare, spec

__all__ = ["Admission", "QuorumError", "per_sample", "rejection"]


class QuorumError(RunError):
    """Too few replies were admitted for the round to go on."""


@spec
class Admission:
    """How strict the server is.

    >>> Admission(quorum=0.5).needed(9)
    5
    """

    quorum: PositiveShare = 0.5
    """The share of the clients asked whose replies must be admitted."""
    max_norm: Positive | None = None
    """The largest L2 distance of a reply from what it was compared with."""
    max_examples: Count = 10_000_000
    faults: Literal["stop", "drop"] = "stop"
    """A client's task that raises stops the run, as a bug should, or is dropped like a bad reply, as a deployment needs."""

    def needed(self, asked: int) -> int:
        """How many replies must be admitted."""
        return math.ceil(self.quorum * asked)


def rejection(reply: Record, like: Record, rules: Admission) -> str | None:
    """Why a reply is not let in, or None.

    >>> import torch
    >>> sent = Record(model={"w": torch.zeros(2)})
    >>> rejection(Record(model={"w": torch.zeros(3)}, examples=1), sent, Admission())
    'model/w is float32[3], expected float32[2]'
    >>> rejection(Record(model={"w": torch.tensor([0.0, float("nan")])}, examples=1), sent, Admission())
    'model/w is not finite'
    """
    return _misfit(reply, like) or reply.fault() or _bad_count(reply, rules) or _too_far(reply, like, rules)


def _misfit(reply: Record, like: Record) -> str | None:
    """What does not have the expected name, shape or dtype; a tensor of `like` without rows stands for any number of rows."""
    expected, found, rows = like.tensors, reply.tensors, dict[str, int]()
    for name, value in expected.items():
        if name not in found:
            return f"{name} is missing"
        free, given = _any_rows(value), found[name]
        if given.dtype != value.dtype or given.dim() != value.dim() or given.shape[free:] != value.shape[free:]:
            return f"{name} is {_shown(given)}, expected {_shown(value)}"
        if free:
            rows[name] = len(given)
    if len(set(rows.values())) > 1:
        return f"these have different numbers of rows: {', '.join(f'{name} {count}' for name, count in rows.items())}"
    strays = [name for name in found if name.split("/")[0] in like.groups and name not in expected]
    return f"{strays[0]} was not expected" if strays else None


def _any_rows(value: Tensor) -> bool:
    """Whether a tensor stands for any number of rows."""
    return value.dim() > 0 and len(value) == 0


def per_sample(like: Record) -> set[str]:
    """The groups of a reply that have a row for each of some samples.

    >>> import torch
    >>> per_sample(Record(model={"w": torch.ones(2)}, labels=torch.empty(0)))
    {'labels'}
    """
    return {name.split("/")[0] for name, value in like.tensors.items() if _any_rows(value)}


def _bad_count(reply: Record, rules: Admission) -> str | None:
    if "examples" not in reply:
        return None
    count = reply["examples"]
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= rules.max_examples:
        return f"examples = {count!r}, expected a whole number from 1 to {rules.max_examples}"
    return None


def _too_far(reply: Record, like: Record, rules: Admission) -> str | None:
    if rules.max_norm is None:
        return None
    found = reply.tensors
    bounded = {name: value for name, value in like.tensors.items() if not _any_rows(value)}
    squares = sum(float((found[name].double() - value.double()).square().sum()) for name, value in bounded.items())
    norm = math.sqrt(squares)
    return f"its distance {norm:.6g} is over the bound {rules.max_norm:.6g}" if norm > rules.max_norm else None


def _shown(tensor: object) -> str:
    return repr(Record({"x": tensor}))[len("Record(x=") : -1]  # type: ignore[dict-item]
