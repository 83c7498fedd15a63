"""Small networks for what are no images: rows of a table, and texts as token ids."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from coterie.models.base import StagedArchitecture
from coterie.models.classic import MLP, Sizes, dense
from coterie.settings import Count, spec

__all__ = ["Embed", "Tabular", "Text"]


@spec
class Tabular(MLP):
    """For rows of a table: two dense layers of 64 units; stages `flat`, `dense1`, `dense2`, `head`.

    >>> sum(p.numel() for p in Tabular().build((30,), 2).parameters())
    6274
    """

    name: ClassVar[str] = "tabular"
    hidden: Sizes = (64, 64)
    """Units of each hidden layer."""


@spec
class Text(StagedArchitecture):
    """For texts as token ids: the mean of the tokens' embeddings, then a dense layer; stages `embed`, `dense1`, `head`.

    >>> import torch
    >>> Text(vocabulary=100).build((12,), 2)(torch.tensor([[5, 99, 0, 0] + 8 * [0]])).shape
    torch.Size([1, 2])
    """

    name: ClassVar[str] = "text"
    takes: ClassVar[tuple[int, ...]] = (1,)
    vocabulary: Count = 10_000
    """How many embeddings there are; ids beyond them share one with others. The id 0 is padding."""
    width: Count = 32
    """Numbers in an embedding."""
    hidden: Sizes = (64,)
    """Units of each hidden layer."""

    def stages(self, shape: tuple[int, ...], classes: int) -> dict[str, nn.Module]:
        """The embeddings' mean, then the dense layers."""
        return {"embed": Embed(self.vocabulary, self.width), **dense((self.width, *self.hidden), classes, self.dropout)}


class Embed(nn.Module):
    """The mean of the embeddings of a text's tokens, without the padding.

    >>> import torch
    >>> Embed(10, 4)(torch.tensor([[1, 2, 0]])).shape
    torch.Size([1, 4])
    """

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.table = nn.Embedding(vocabulary, width)

    def forward(self, x: Tensor) -> Tensor:
        """A batch of texts as vectors."""
        ids = x.long()
        there = (ids != 0).to(self.table.weight.dtype)[:, :, None]
        out: Tensor = (self.table(ids % self.vocabulary) * there).sum(1) / there.sum(1).clamp(min=1)
        return out
