"""Feature maps as they travel: packed into a precision, kept in it, and unpacked a batch at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

import torch
from torch import Tensor

from coterie.record import Record

__all__ = ["Maps", "Precision", "pack"]

Precision = Literal["float32", "float16", "uint8"]
LEVELS = 255
"""Steps between the least and the greatest value of a map of 8 bits."""


def pack(maps: Tensor, precision: Precision) -> Record:
    """Maps as they are sent: `values`, and with 8 bits also the least value (`low`) and the step (`scale`) of each map.

    >>> maps = torch.tensor([[0.0, 0.5, 1.0], [2.0, 2.0, 2.0]])
    >>> packed = pack(maps, "uint8")
    >>> packed.payload_bytes == 2 * (3 + 4 + 4)
    True
    >>> Maps(packed, torch.tensor([0, 1])).batch(torch.tensor([1]))[0].tolist()
    [[2.0, 2.0, 2.0]]
    """
    if precision != "uint8":
        kind = torch.float16 if precision == "float16" else torch.float32
        most = torch.finfo(kind).max
        return Record(values=maps.clamp(-most, most).to(kind))
    flat = maps.flatten(1).float()
    low, high = flat.amin(1, keepdim=True), flat.amax(1, keepdim=True)
    scale = (high - low) / LEVELS
    steps = ((flat - low) / scale.where(scale > 0, 1)).round()
    return Record(values=steps.to(torch.uint8).view(maps.shape), low=low[:, 0], scale=scale[:, 0])


class Maps:
    """Packed maps with their labels, for `fit` to train on."""

    def __init__(self, packed: Record, labels: Tensor, dtype: torch.dtype = torch.float32) -> None:
        self.packed = packed
        self.labels = labels
        self._dtype = dtype

    @classmethod
    def join(cls, parts: Iterable[tuple[Record, Tensor]], dtype: torch.dtype = torch.float32) -> Maps:
        """Maps of several clients, one after the other, still packed.

        >>> one = pack(torch.ones(2, 3), "float16"), torch.tensor([0, 1])
        >>> len(Maps.join([one, one]))
        4
        """
        packed, labels = zip(*parts, strict=True)
        names = packed[0].tensors
        return cls(Record({name: torch.cat([each.tensors[name] for each in packed]) for name in names}), torch.cat(labels), dtype)

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, chosen: Tensor, augment: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Unpacked maps and labels, by position; images can be cropped and mirrored, maps cannot."""
        if augment is not None:
            raise ValueError("maps cannot be augmented like images")
        parts = {name: value[chosen].to(self._dtype) for name, value in self.packed.tensors.items()}
        x = parts["values"]
        if "scale" in parts:
            low, scale = (parts[name].view(-1, *(1 for _ in x.shape[1:])) for name in ("low", "scale"))
            x = x.mul_(scale).add_(low)
        return x, self.labels[chosen]

    def batches(self, size: int, start: int = 0, stop: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """All maps in order, or those from `start` to `stop`, in batches."""
        for chosen in torch.split(torch.arange(start, len(self) if stop is None else stop), size):
            if len(chosen):
                yield self.batch(chosen)
