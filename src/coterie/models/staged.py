"""Networks as named stages ending in a head, so that an extractor, a head and a split are slices of one thing."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from coterie.named import Spec

__all__ = ["Architecture", "Staged"]


class Staged(nn.Sequential):
    """A network of named stages; the last one is the head and turns features into logits.

    >>> net = Staged(body=nn.Flatten(), head=nn.Linear(4, 2))
    >>> net.levels
    ('body', 'head')
    >>> x = Tensor([[[1.0, 2.0], [3.0, 4.0]]])
    >>> bool((net.upper("body")(net.lower("body")(x)) == net(x)).all())
    True
    """

    def __init__(self, **stages: nn.Module) -> None:
        super().__init__(OrderedDict(stages))

    @property
    def levels(self) -> tuple[str, ...]:
        """The stages' names, from the input to the head."""
        return tuple(self._modules)

    def lower(self, level: str) -> nn.Sequential:
        """The stages up to and including `level` (shared with this network, not copied)."""
        return nn.Sequential(OrderedDict(list(self._modules.items())[: self.levels.index(level) + 1]))  # type: ignore[arg-type]

    def upper(self, level: str) -> nn.Sequential:
        """The stages after `level`."""
        return nn.Sequential(OrderedDict(list(self._modules.items())[self.levels.index(level) + 1 :]))  # type: ignore[arg-type]

    def features(self, x: Tensor) -> Tensor:
        """What the head sees."""
        out: Tensor = self.lower(self.levels[-2])(x)
        return out


class Architecture(Spec):
    """How to build a network; an instance is its own configuration."""

    def build(self, shape: tuple[int, int, int], classes: int) -> nn.Module:
        """A freshly initialised network for pictures of `shape` (channels, height, width)."""
        raise NotImplementedError
