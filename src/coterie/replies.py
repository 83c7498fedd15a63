"""What clients answered, and the means of it.

Where clients are trained in stacks (`training.stack`) and a method wants nothing but means of their replies, whoever trains a stack may
answer with its mean, in the place of all replies of it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from coterie.errors import nearest
from coterie.record import Record

__all__ = [
    "SINGLE_OR_MORE",
    "Averaging",
    "Replies",
    "Reply",
    "Weighting",
    "check_groups",
    "groups_of",
    "means",
    "members",
    "norm_of",
]

Weighting = Literal["samples", "uniform"]
SINGLE_OR_MORE = {torch.float32, torch.float64}


@dataclass(frozen=True)
class Reply:
    """What one client answered, already admitted; or the mean of what several did.

    >>> Reply(3, Record(examples=600)).record.number("examples")
    600
    """

    client: int
    """Of several, the last."""
    record: Record
    clients: int = 1
    """How many it stands for."""


@dataclass(frozen=True)
class Averaging:
    """What is wanted of replies, where nothing else is.

    >>> Averaging(("model",)).weight_of(Reply(0, Record(examples=600)))
    600
    """

    groups: tuple[str, ...]
    """The tensors that are averaged."""
    weighting: Weighting = "samples"

    def weight_of(self, reply: Reply) -> float:
        """How much a reply counts."""
        return reply.record.number("examples") if self.weighting == "samples" else reply.clients

    def holds(self, names: Iterable[str]) -> bool:
        """Whether all of these are averaged.

        >>> Averaging(("model",)).holds(["model/w"]), Averaging(("model",)).holds(["model/w", "logits"])
        (True, False)
        """
        return all(_first(name) in self.groups for name in names)


class Replies(Iterator[Reply]):
    """Admitted replies in the clients' order, each handed over as soon as it and those before it are there.

    >>> replies = Replies(iter([Reply(0, Record(examples=600))]))
    >>> [reply.client for reply in replies], replies.count, replies.guests
    ([0], 1, {})
    """

    def __init__(self, source: Iterator[Reply], guests: Mapping[int, Record] | None = None) -> None:
        self._source = source
        self._waiting: list[Reply] = []
        self._guests = {} if guests is None else guests
        self.needed: set[str] = set()
        """The numbers that a reply must have to be admitted."""
        self.mean: Averaging | None = None
        """What is wanted of them, where nothing else is: those of a stack may then come as one."""
        self.count = 0
        """How many clients' have been looked at."""

    def needing(self, *numbers: str) -> Replies:
        """Have replies that lack one of these numbers rejected; to be said before any is looked at. `means` says it by itself.

        >>> Replies(iter([])).needing("examples").needed
        {'examples'}
        """
        self.needed.update(numbers)
        return self

    def __next__(self) -> Reply:
        reply = self._waiting.pop(0) if self._waiting else next(self._source)
        self.count += reply.clients
        return reply

    def drain(self) -> None:
        """Wait for whatever is still out."""
        self._waiting.extend(self._source)

    @property
    def guests(self) -> Mapping[int, Record]:
        """What guests answered, who only take part to be evaluated, where the ask keeps it: to write them messages of their own."""
        self.drain()
        return self._guests


def means(replies: Iterable[Reply], *groups: str, weighting: Weighting = "samples") -> Record:
    """The means of some groups of tensors over replies, weighted by their `examples` or uniformly, in one pass as replies come.

    Whoever weights by samples and does not hand `fed.ask(...)` over as it is says so: `fed.ask(...).needing("examples")`.
    Summed in float64. Floating buffers (BatchNorm's running statistics) are averaged like parameters; integer ones (its counter of
    batches) take the largest value, and stay integers.

    >>> replies = [Reply(0, Record(model={"w": torch.zeros(1)}, examples=1)), Reply(1, Record(model={"w": torch.ones(1)}, examples=3))]
    >>> means(replies, "model")["model/w"].item(), means(replies, "model", weighting="uniform")["model/w"].item()
    (0.75, 0.5)
    >>> means(replies, "modle")
    Traceback (most recent call last):
    ...
    LookupError: no reply has a group 'modle' of tensors: did you mean 'model'? Valid: model
    """
    wanted = Averaging(groups, weighting)
    total, sums, dtypes, there = 0.0, dict[str, Tensor](), dict[str, torch.dtype](), set[str]()
    room = dict[str, Tensor]()  # for one reply in float64, used again: fresh memory costs more than the sum
    if isinstance(replies, Replies):
        replies.mean = wanted
        replies.needing(*(["examples"] if weighting == "samples" else []))
    for reply in replies:
        weight = wanted.weight_of(reply)
        total += weight
        there |= groups_of(reply.record)
        for name, value in members(reply.record, groups):
            dtypes.setdefault(name, value.dtype)
            if not value.is_floating_point():
                sums[name] = torch.maximum(sums[name], value) if name in sums else value
            elif name not in sums:
                sums[name] = value.to(torch.float64, copy=True).mul_(weight)
                room[name] = torch.empty_like(sums[name])
            elif value.dtype is torch.float64:
                sums[name].add_(room[name].copy_(value).mul_(weight))
            else:  # a whole number times a shorter float is exact in float64, whether it is rounded before it is added or not
                sums[name].add_(room[name].copy_(value), alpha=weight)
    if total:
        check_groups(groups, there)
    return Record({name: (value / total).to(dtypes[name]) if value.is_floating_point() else value for name, value in sums.items()})


def check_groups(groups: Sequence[str], there: Collection[str]) -> None:
    """What is averaged is in some reply, if tensors are: what is misspelt would be a mean of nothing, missed only where that is used."""
    for group in groups if there else ():
        if group not in there:
            raise LookupError(f"no reply has a group '{group}' of tensors: {nearest(group, there)}")


def groups_of(record: Record) -> set[str]:
    """The groups that have tensors."""
    return set(map(_first, record.tensors))


def members(record: Record, groups: Sequence[str]) -> Iterator[tuple[str, Tensor]]:
    """The tensors of some groups."""
    return ((name, value) for name, value in record.tensors.items() if _first(name) in groups)


def norm_of(tensors: Iterable[Tensor]) -> float:
    """The L2 norm of some tensors together; not a number, or infinite, where one of them holds such.

    >>> norm_of([torch.tensor([3.0]), torch.tensor(4)])
    5.0
    """
    return math.hypot(*(float(torch.linalg.vector_norm(each if each.dtype in SINGLE_OR_MORE else each.double())) for each in tensors))


def _first(name: str) -> str:
    return name.partition("/")[0]
