"""What a server lets in. A reply that is malformed, too large, of another shape, not finite, too far away or late is dropped and named.

Every rule looks at one reply and at what the server itself knows (what it sent, what it expects, what the client registered with), never at
other replies: so replies are let in as they come, and the same ones on every engine and in any order.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from coterie.engines.engine import PartOfMean
from coterie.errors import RunError
from coterie.record import Limits, Record
from coterie.replies import SINGLE_OR_MORE, norm_of
from coterie.settings import Count, Positive, PositiveShare, spec

__all__ = ["Admission", "Expected", "QuorumError", "is_plain", "rejection"]

MB = 2**20
ROOM = 64 * MB
"""Bytes that any reply, and any memory, may have, however little was sent and expected."""
TIMES = 4
"""How often what was sent and expected may be in it beyond that."""
USUAL = Limits()
ENTRY = 300
"""Bytes of an entry in the header, for those."""
LARGEST = 1e18
"""Beyond it squares are no longer finite in single precision: what is computed with such a value is infinite, then not a number."""
HOUR = 3600.0


class QuorumError(RunError):
    """Too few replies were admitted for the round to go on."""


@spec
class Admission:
    """How strict the server is.

    >>> Admission(quorum=0.5).needed(9)
    5
    >>> Admission().patience, Admission(faults="drop").patience, Admission(deadline=5.0).patience
    (None, 3600.0, 5.0)
    """

    quorum: PositiveShare = 0.5
    """The share of the clients asked whose replies must be admitted."""
    max_ratio: Positive = 1000.0
    """The largest L2 distance of a reply from what it is compared with (mostly what was sent), as a multiple of the L2 norm of that; where
    that norm is 0 there is no such bound. Honest training stays far below, and what is beyond would spoil a mean for good."""
    max_norm: Positive | None = None
    """The largest L2 distance itself."""
    max_examples: Count | None = None
    """How many examples a reply may be worth in a weighted mean; None for as many as the client registered with."""
    max_mb: Count | None = None
    """How large a reply, and what a client keeps, may be; None for 64 MB, and room for the method's own messages and networks."""
    deadline: Positive | None = None
    """Seconds that a client's task may take. None for no limit where faults stop the run, and an hour where they are dropped: a client that
    hangs must not hold up the others for ever. On the engine `inline` a task cannot be stopped; it is found late when it has ended."""
    faults: Literal["stop", "drop"] = "stop"
    """A client's task that fails stops the run, as a bug should, or is dropped like a bad reply, as a deployment needs."""

    def needed(self, asked: int) -> int:
        """How many replies must be admitted."""
        return math.ceil(self.quorum * asked)

    @property
    def patience(self) -> float | None:
        """How long to wait for a task, in seconds."""
        return HOUR if self.deadline is None and self.faults == "drop" else self.deadline

    def limit(self, method: int) -> int:
        """How many bytes a reply or a memory may have, given those that the method itself deals in."""
        return ROOM + method if self.max_mb is None else self.max_mb * MB


@dataclass(frozen=True)
class Expected:
    """What an admitted reply must match.

    >>> Expected(Record(model={"w": torch.ones(2)}, labels=torch.empty(0))).per_sample
    {'labels'}
    """

    like: Record = field(default_factory=Record)
    """Tensors by name; one without rows stands for any number of rows. Without any, a reply may hold any."""
    sent: Record = field(default_factory=Record)
    """What it is a reply to: it may be as large and have as many entries, a few times over."""

    @cached_property
    def tensors(self) -> Mapping[str, Tensor]:
        """By name."""
        return self.like.tensors

    @cached_property
    def fixed(self) -> Mapping[str, Tensor]:
        """Those whose shape is known: what a reply is compared with."""
        return {name: value for name, value in self.tensors.items() if not _any_rows(value)}

    @cached_property
    def norm(self) -> float:
        """The L2 norm of those."""
        return norm_of(self.fixed.values())

    @cached_property
    def _forms(self) -> Sequence[tuple[str, torch.dtype, torch.Size, bool]]:
        """Name, dtype, shape, and whether any number of rows will do: asked of every reply."""
        return [(name, value.dtype, value.shape, _any_rows(value)) for name, value in self.tensors.items()]

    @cached_property
    def _sizes(self) -> tuple[int, int]:
        """Bytes of what has a known shape and of what was sent, and of one row of the rest."""
        rows = (value.element_size() * math.prod(value.shape[1:]) for name, value in self.tensors.items() if name not in self.fixed)
        return self.like.payload_bytes + self.sent.payload_bytes, sum(rows)

    @cached_property
    def per_sample(self) -> set[str]:
        """The groups that have a row for each of some samples."""
        return {name.split("/")[0] for name in self.tensors.keys() - self.fixed.keys()}

    def limits(self, size: int) -> Limits:
        """How large a reply may be, its header included, before anything is made of it."""
        own = TIMES * (len(self.like) + len(self.sent))
        return Limits(bytes=size, header=USUAL.header + ENTRY * own, entries=USUAL.entries + own)

    def bytes(self, held: int) -> int:
        """What the method's own shapes come to, for a client that holds so many samples."""
        known, row = self._sizes
        return TIMES * (known + held * row)

    def misfit(self, reply: Record, held: int | None = None) -> str | None:
        """What does not have the expected name, shape or dtype."""
        return self._unlike(reply.tensors) or self._rows(reply.tensors, held)

    def _unlike(self, found: Mapping[str, Tensor]) -> str | None:
        for name, dtype, shape, free in self._forms:
            if name not in found:
                return f"{name} is missing"
            given = found[name]
            if given.dtype != dtype or given.dim() != len(shape) or given.shape[free:] != shape[free:]:
                return f"{name} is {_shown(given)}, expected {_shown(self.tensors[name])}"
        strays = [name for name in found if name not in self.tensors] if self.tensors else []
        return f"{strays[0]} was not expected" if strays else None

    def _rows(self, found: Mapping[str, Tensor], held: int | None) -> str | None:
        """What is wrong with the numbers of rows that were left open."""
        rows = {name: len(found[name]) for name in self.tensors if name not in self.fixed}
        if len(set(rows.values())) > 1:
            return f"these have different numbers of rows: {', '.join(f'{name} {count}' for name, count in rows.items())}"
        for name, count in rows.items():
            if held is not None and count > held:
                return f"{name} has {count} rows, the client has {held} samples"
        return None


def rejection(reply: Record, expected: Expected, rules: Admission, needed: Collection[str] = (), held: int | None = None) -> str | None:
    """Why a reply whose names, shapes and dtypes are right is not let in all the same, or None.

    Args:
        reply: the reply.
        expected: what it is compared with.
        rules: how strict to be.
        needed: the numbers that it must have.
        held: how many samples the client registered with, where that is known.

    >>> sent = Expected(Record(model={"w": torch.ones(2)}))
    >>> rejection(Record(model={"w": torch.tensor([0.0, float("nan")])}, examples=1), sent, Admission())
    'model/w is not finite'
    >>> rejection(Record(model={"w": torch.full((2,), 1e9)}, examples=1), sent, Admission())
    'its distance 1.41421e+09 is over 1000 times the norm 1.41421 of what it is compared with (admission.max_ratio)'
    """
    return _bad_numbers(reply, needed) or _bad_count(reply, rules, held) or _bad_values(reply, expected, rules)


def is_plain(part: PartOfMean, expected: Expected, rules: Admission, needed: Collection[str] = (), held: int | None = None) -> bool:
    """Whether a reply of the right form is let in, by what is told of it where it lies in the mean of its stack; of one that is not,
    only looking at it tells why.

    >>> sent = Expected(Record(model={"w": torch.ones(2)}))
    >>> [is_plain(PartOfMean({"examples": 1}, length=100, norm=norm), sent, Admission()) for norm in (1.0, float("nan"), 1e9)]
    [True, False, False]
    """
    said = Record(part.scalars)
    near = part.norm + expected.norm <= min(*_bounds(expected, rules), LARGEST)
    return near and not (_bad_numbers(said, needed) or _bad_count(said, rules, held))


def _bad_numbers(reply: Record, needed: Collection[str]) -> str | None:
    scalars = reply.scalars
    for name in needed:
        if not isinstance(scalars.get(name), int | float):
            return f"{name} is missing, a number that the method needs"
    for name, value in scalars.items():
        if isinstance(value, float) and not math.isfinite(value):
            return f"{name} = {value} is not finite"
    return None


def _bad_count(reply: Record, rules: Admission, held: int | None) -> str | None:
    if "examples" not in reply:
        return None
    count, most = reply["examples"], held if rules.max_examples is None else rules.max_examples
    if type(count) is not int or count < 1:
        return f"examples = {count!r:.80}, expected a whole number from 1"
    return f"examples = {count!r:.80}, expected at most {most}" if most is not None and count > most else None


def _bad_values(reply: Record, expected: Expected, rules: Admission) -> str | None:
    """What is not finite, or so large or so far from what it is compared with that it would spoil what it is averaged with."""
    found = reply.tensors
    length = norm_of(found[name] for name in expected.fixed)
    small = length <= LARGEST  # then all that it is made of is finite, and need not be looked at again
    for name, value in found.items():
        if not (small and name in expected.fixed) and (bad := _bad_tensor(name, value)):
            return bad
    return _too_far(found, length, expected, rules)


def _bounds(expected: Expected, rules: Admission) -> tuple[float, float]:
    """The largest distance, by what a reply is compared with and by itself."""
    by_ratio = rules.max_ratio * expected.norm if expected.norm else math.inf
    return by_ratio, math.inf if rules.max_norm is None else rules.max_norm


def _too_far(found: Mapping[str, Tensor], length: float, expected: Expected, rules: Admission) -> str | None:
    """How far from what it is compared with a reply is that is too far; its L2 norm, which mostly tells, is known."""
    by_ratio, by_norm = _bounds(expected, rules)
    if length + expected.norm <= min(by_ratio, by_norm):  # no distance is more than that sum
        return None
    distance = math.sqrt(sum(_distance(found[name], value) ** 2 for name, value in expected.fixed.items()))
    if distance > by_ratio:
        bound = f"{rules.max_ratio:.6g} times the norm {expected.norm:.6g} of what it is compared with (admission.max_ratio)"
        return f"its distance {distance:.6g} is over {bound}"
    return f"its distance {distance:.6g} is over the bound {rules.max_norm:.6g} (admission.max_norm)" if distance > by_norm else None


def _bad_tensor(name: str, value: Tensor) -> str | None:
    if not value.is_floating_point() or not value.numel():
        return None
    largest = float(torch.linalg.vector_norm(value, math.inf))
    if not math.isfinite(largest):
        return f"{name} is not finite"
    return f"{name} holds {largest:.6g}, too large to compute with" if largest > LARGEST else None


def _distance(a: Tensor, b: Tensor) -> float:
    return norm_of([a - b if a.dtype in SINGLE_OR_MORE else a.double() - b.double()])


def _any_rows(value: Tensor) -> bool:
    """Whether a tensor stands for any number of rows."""
    return value.shape[:1] == (0,)


def _shown(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
