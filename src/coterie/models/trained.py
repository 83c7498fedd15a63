"""A trained network with what its samples go through first, so that it takes them as they are: pixels, plain numbers, token ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from coterie.errors import UserError

__all__ = ["Trained"]

BATCH = 256


class Trained(nn.Module):
    """A network, its preprocessing, and `predict`.

    >>> model = Trained(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), torch.tensor([1 / 255]), torch.tensor([0.0]), (1, 2, 2))
    >>> model.predict(np.zeros((5, 2, 2), np.uint8)).shape
    torch.Size([5])
    """

    scale: Tensor
    shift: Tensor
    order: Tensor | None

    def __init__(
        self,
        net: nn.Module,
        scale: Tensor,
        shift: Tensor,
        shape: tuple[int, ...],
        *,
        tokens: bool = False,
        order: Tensor | None = None,
        columns: Sequence[str] = (),
        labels: Sequence[str] = (),
    ) -> None:
        """From a network, and what its samples are multiplied with and what is added; `order` is a client's own order of pixels.

        `columns` says what the entries of a table's sample are, `labels` what the classes are called, where that is known.
        """
        super().__init__()
        self.columns, self.labels = list(columns), list(labels)
        self.net, self.shape, self.tokens = net, shape, tokens
        self.register_buffer("scale", scale)
        self.register_buffer("shift", shift)
        self.register_buffer("order", order)
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Logits of a batch of samples as they are."""
        if self.order is not None:
            x = x.flatten(2)[:, :, self.order].view_as(x)
        out: Tensor = self.net(x.long() if self.tokens else x.to(self.scale.dtype) * self.scale + self.shift)
        return out

    @torch.inference_mode()
    def probabilities(self, samples: Any) -> Tensor:
        """How likely each class is for each sample: N x classes."""
        parts = [self(batch).softmax(1) for batch in torch.split(self._batch(samples), BATCH)]
        return torch.cat(parts) if parts else torch.empty(0, 0)

    def predict(self, samples: Any) -> Tensor:
        """The class of each sample, by its number; samples are an array, a tensor or nested lists, images with or without a channel."""
        return self.probabilities(samples).argmax(1)

    def _batch(self, samples: Any) -> Tensor:
        x = samples if isinstance(samples, Tensor) else torch.from_numpy(np.ascontiguousarray(samples))
        if len(self.shape) == 3 and self.shape[0] == 1 and x.shape[1:] == self.shape[1:]:
            x = x[:, None]
        if len(self.shape) == 3 and x.shape[1:] == (*self.shape[1:], self.shape[0]) and x.shape[1:] != self.shape:
            x = x.movedim(-1, 1)
        if tuple(x.shape[1:]) != self.shape:
            raise UserError(f"these samples have the shape {tuple(x.shape[1:])}, the model takes {self.shape}")
        return x
