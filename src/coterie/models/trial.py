"""One forward pass before a run: a network that does not fit its data or its classes is found before anybody trains it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from coterie.errors import UserError, place_of
from coterie.models.custom import Custom
from coterie.models.staged import Architecture

__all__ = ["try_out"]


def try_out(architecture: Architecture, net: nn.Module, x: Tensor, classes: int) -> None:
    """Raise a UserError where a network cannot answer a batch `x` with one logit for each class.

    >>> seven = Custom("torch.nn:Linear", {"in_features": 4, "out_features": 7})
    >>> try_out(seven, seven.build((4,), 7), torch.zeros(2, 4), 7)
    >>> try_out(seven, seven.build((4,), 10), torch.zeros(2, 4), 10)
    Traceback (most recent call last):
    ...
    coterie.errors.UserError: model 'torch.nn:Linear' has 7 outputs, but there are 10 classes
    """
    name = architecture.module if isinstance(architecture, Custom) else architecture.name
    shape = "x".join(map(str, x.shape[1:]))
    try:
        with torch.inference_mode():
            out = net.eval()(x)
    except Exception as error:  # whatever a user's network raises at data that it is not made for
        words = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        raise UserError(f"model '{name}' does not take samples of {shape}: {words}{place_of(error)}") from None
    if not isinstance(out, Tensor):
        raise UserError(f"model '{name}' gives a {type(out).__name__}, expected a tensor with one row of logits for each sample")
    if out.ndim != 2 or len(out) != len(x):
        raise UserError(f"model '{name}' gives shape {tuple(out.shape)} for {len(x)} samples, expected {(len(x), classes)}")
    if out.shape[1] != classes:
        raise UserError(f"model '{name}' has {out.shape[1]} outputs, but there are {classes} classes")
