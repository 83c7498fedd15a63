"""A user's own network: any `torch.nn.Module` class, by its import path.

Methods that need features or a cut ask `coterie.models.staged` for them, which wants a subclass of `Staged`; every
other method takes any module.
"""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any, ClassVar

import torch
from torch import nn

from coterie.errors import UserError
from coterie.models.staged import Architecture
from coterie.own import imported
from coterie.settings import spec

__all__ = ["Custom", "load"]


@spec
class Custom(Architecture):
    """A module class and what to call it with; it must fit the images and the classes by itself.

    >>> net = Custom("torch.nn:Linear", {"in_features": 4, "out_features": 2}).build((1, 1, 4), 2)
    >>> sum(p.numel() for p in net.parameters())
    10
    >>> Custom("torch.nn:Linear", {"inputs": 4}).build((1, 1, 4), 2)
    Traceback (most recent call last):
    ...
    coterie.errors.UserError: model 'torch.nn:Linear' cannot be called with inputs: missing a required argument: 'in_features'
    """

    name: ClassVar[str] = "custom"
    module: str
    """`package.module:Net`."""
    settings: dict[str, Any] = dataclasses.field(default_factory=dict, hash=False)
    """Keyword arguments of `Net`."""

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """`Net(**settings)`."""
        net = load(self.module)
        try:
            inspect.signature(net).bind(**self.settings)
        except TypeError as error:
            raise UserError(f"model '{self.module}' cannot be called with {', '.join(self.settings) or 'no settings'}: {error}") from None
        return net(**self.settings)


def load(path: str) -> type[nn.Module]:
    """The module class behind `package.module:Net`.

    >>> load("torch.nn:Linear")
    <class 'torch.nn.modules.linear.Linear'>
    >>> load("math:tau")
    Traceback (most recent call last):
    ...
    coterie.errors.UserError: model 'math:tau' is not a subclass of torch.nn.Module
    """
    with torch.random.fork_rng(devices=[]):  # what a module draws when it is first imported must not shift seeded initial weights
        found = imported(path, f"model '{path}'", (nn.Module,))
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise UserError(f"model '{path}' is not a subclass of torch.nn.Module")
    return found
