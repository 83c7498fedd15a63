"""Two networks side by side that see the same images: a private one and a shared "meme" (FML: Shen et al., arXiv 2006.16765)."""

from __future__ import annotations

from typing import ClassVar

from torch import nn

from coterie.models.staged import Architecture
from coterie.settings import spec

__all__ = ["Pair", "PairNet"]


class PairNet(nn.Module):
    """A private and a shared network; each is called, and has its gradient clipped, for itself."""

    networks: ClassVar[tuple[str, str]] = ("private.", "meme.")
    """How the names of each one's parameters begin."""

    def __init__(self, private: nn.Module, meme: nn.Module) -> None:
        super().__init__()
        self.private = private
        self.meme = meme


@spec
class Pair(Architecture):
    """How to build both; the meme first, so that its start does not depend on the private network.

    >>> from coterie.models import MLP, LeNet5
    >>> [name for name, _ in Pair(MLP(), LeNet5()).build((1, 28, 28), 10).named_children()]
    ['private', 'meme']
    """

    name: ClassVar[str] = "pair"
    private: Architecture
    meme: Architecture

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        meme = self.meme.build(shape, classes)
        return PairNet(self.private.build(shape, classes), meme)
