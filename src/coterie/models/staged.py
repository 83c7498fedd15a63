"""Networks as named stages ending in a head, so that an extractor, a head and a split are slices of one thing."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from coterie.errors import UserError, nearest
from coterie.settings import Spec

__all__ = ["Architecture", "Staged", "staged"]


class Staged(nn.Sequential):
    """A network of named stages; the last one is the head and turns features into logits.

    A slice shares its stages with the network, keeps their names, and so reads and writes the same state:

    >>> net = Staged(body=nn.Flatten(), head=nn.Linear(4, 2))
    >>> net.levels
    ('body', 'head')
    >>> list(net.upper("body").state_dict())
    ['head.weight', 'head.bias']
    >>> x = Tensor([[[1.0, 2.0], [3.0, 4.0]]])
    >>> bool((net.upper("body")(net.lower("body")(x)) == net(x)).all())
    True
    >>> net.lower("boddy")
    Traceback (most recent call last):
    ...
    coterie.errors.UserError: level 'boddy' is unknown: did you mean 'body'? Valid: body, head
    """

    def __init__(self, **stages: nn.Module) -> None:
        if len(stages) < 2 or list(stages)[-1] != "head":
            raise UserError(f"stages must be at least two and end in head, these are: {', '.join(stages) or 'none'}")
        super().__init__(OrderedDict(stages))

    @property
    def levels(self) -> tuple[str, ...]:
        """The stages' names, from the input to the head."""
        return tuple(self._modules)

    def lower(self, level: str) -> nn.Sequential:
        """The stages up to and including `level` (shared with this network, not copied)."""
        return self._slice(slice(None, self._after(level)))

    def upper(self, level: str) -> nn.Sequential:
        """The stages after `level`."""
        return self._slice(slice(self._after(level), None))

    def features(self, x: Tensor) -> Tensor:
        """What the head sees."""
        for stage in list(self._modules.values())[:-1]:  # not a slice, which is a new module each time
            assert stage is not None
            x = stage(x)
        return x

    def _after(self, level: str) -> int:
        if level not in self.levels:
            raise UserError(f"level '{level}' is unknown: {nearest(level, self.levels)}")
        return self.levels.index(level) + 1

    def _slice(self, part: slice) -> nn.Sequential:
        out = nn.Sequential(OrderedDict(list(self.named_children())[part]))
        out.training = self.training
        return out


def staged(module: nn.Module) -> Staged:
    """The module itself when it has levels, otherwise an error that says how to give it some.

    >>> staged(nn.Linear(4, 2))
    Traceback (most recent call last):
    ...
    coterie.errors.UserError: Linear has no levels to cut at: make it a subclass of coterie.models.Staged with named stages ending in head
    """
    if isinstance(module, Staged):
        return module
    name = type(module).__name__
    raise UserError(f"{name} has no levels to cut at: make it a subclass of coterie.models.Staged with named stages ending in head")


class Architecture(Spec):
    """How to build a network; an instance is its own configuration.

    >>> from coterie.models import MLP
    >>> MLP(hidden=(16,)).build((1, 8, 8), 10).levels
    ('flat', 'dense1', 'head')
    """

    def build(self, shape: tuple[int, int, int], classes: int) -> nn.Module:
        """A freshly initialised network for images of `shape` (channels, height, width)."""
        raise NotImplementedError
