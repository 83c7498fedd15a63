"""Weights that a training is yet to give. A task that only passes them on need not wait for them: clients that are trained together are run
once, and then trained; who looks at what is not there yet is put aside, and run again when it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

__all__ = ["Awaited", "PutAside", "awaited"]

NOTHING = torch.empty(0)


class PutAside(BaseException):
    """A task wants what is not there yet, and must wait for others; not an Exception, so that no task takes it for one of its own."""

    def __init__(self, request: Any) -> None:
        self.request = request


class Awaited(Tensor):
    """A weight that a training is yet to give: a Record holds it, and whatever else is done with it wants it to be there.

    >>> weight = awaited("a training", "0.weight")
    >>> weight.weight_of, isinstance(weight, Tensor)
    ('0.weight', True)
    >>> try:
    ...     torch.stack([torch.ones(2), weight + 1])
    ... except PutAside as aside:
    ...     print("waits for", aside.request)
    waits for a training
    """

    request: Any
    """The training."""
    weight_of: str
    """Which of its weights."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        raise PutAside(next(each.request for each in _tensors((*args, *(kwargs or {}).values())) if isinstance(each, Awaited)))


def awaited(request: Any, name: str) -> Awaited:
    """One of the weights that a training will give."""
    made: Awaited = Tensor._make_subclass(Awaited, NOTHING)
    made.request, made.weight_of = request, name
    return made


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for each in values:
        if isinstance(each, Tensor):
            yield each
        elif isinstance(each, list | tuple):
            yield from _tensors(each)
        elif isinstance(each, dict):
            yield from _tensors(each.values())
