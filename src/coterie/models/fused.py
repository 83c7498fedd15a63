"""A staged network that fuses its own feature maps with those of a frozen extractor (FedFusion: Yao et al., ICIP 2019).

The maps of the trained extractor E_l and of the frozen one E_g, both B x C x H x W, become one: by a 1x1 convolution on both
(`conv`), by a weight per channel (`multi`) or by one weight (`single`): lambda * E_g + (1 - lambda) * E_l. The network keeps the
names of the one it is made from, with `fusion.*` added; `past.*` is E_g, which never travels.
"""

from __future__ import annotations

import copy
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from coterie.errors import UserError
from coterie.models.staged import Architecture, Staged, staged
from coterie.settings import spec

__all__ = ["Blend", "ConvFusion", "Fused", "FusedNet", "Operator", "Start", "last_map"]

Operator = Literal["conv", "multi", "single"]
Start = Literal["identity", "xavier", "torch"]


class ConvFusion(nn.Module):
    """A 1x1 convolution on the channels of both: the local ones first, as in the authors' code."""

    def __init__(self, channels: int, bias: bool, start: Start) -> None:
        super().__init__()
        self.mix = nn.Conv2d(2 * channels, channels, 1, bias=bias)
        if start == "xavier":
            nn.init.xavier_uniform_(self.mix.weight)
        elif start == "identity":
            with torch.no_grad():
                self.mix.weight.copy_(torch.eye(channels, 2 * channels)[:, :, None, None])
        if self.mix.bias is not None and start != "torch":
            nn.init.zeros_(self.mix.bias)

    def forward(self, local: Tensor, past: Tensor) -> Tensor:
        out: Tensor = self.mix(torch.cat([local, past], dim=1))
        return out


class Blend(nn.Module):
    """lambda * E_g + (1 - lambda) * E_l with a weight per channel, or one for all; it starts at 0, all local."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.lam = nn.Parameter(torch.zeros(channels))

    def forward(self, local: Tensor, past: Tensor) -> Tensor:
        lam = self.lam[:, None, None]
        return lam * past + (1 - lam) * local


class FusedNet(nn.Module):
    """The network: E_l, the fusion, and what comes after; `past` is E_g."""

    def __init__(self, base: Staged, level: str, fusion: nn.Module) -> None:
        super().__init__()
        for name, stage in base.named_children():
            self.add_module(name, stage)
        self.fusion = fusion
        self.past = copy.deepcopy(base.lower(level))
        cut = base.levels.index(level) + 1
        self.below, self._between, self._head = base.levels[:cut], base.levels[cut:-1], base.levels[-1]

    def _through(self, x: Tensor, stages: tuple[str, ...]) -> Tensor:
        for name in stages:
            x = self.get_submodule(name)(x)
        return x

    def features(self, x: Tensor, past: Tensor | None = None) -> Tensor:
        """What the head sees, given E_g's maps, which otherwise are computed."""
        past = self.past(x) if past is None else past
        return self._through(self.fusion(self._through(x, self.below), past), self._between)

    def classify(self, features: Tensor) -> Tensor:
        """The head."""
        return self._through(features, (self._head,))

    def forward(self, x: Tensor) -> Tensor:
        return self.classify(self.features(x))


@spec
class Fused(Architecture):
    """A staged network with a fusion after one of its levels.

    >>> from coterie.models import CifarCNN
    >>> net = Fused(CifarCNN(), "multi").build((3, 32, 32), 10)
    >>> sum(p.numel() for name, p in net.named_parameters() if not name.startswith("past."))
    1756490
    """

    name: ClassVar[str] = "fused"
    base: Architecture
    operator: Operator
    level: str | None = None
    """After which stage; None for the last one that gives maps."""
    bias: bool = False
    start: Start = "identity"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        base = staged(self.base.build(shape, classes))
        last = last_map(base, shape)
        if last is None:
            raise UserError(f"model '{self.base.name}' has no feature maps to fuse: none of {', '.join(base.levels)} gives any")
        level = self.level or last
        with torch.no_grad():
            maps = base.lower(level).eval()(torch.zeros(2, *shape))
        base.train()
        if maps.dim() != 4:
            raise UserError(f"method.level = '{level}' gives no feature maps; '{last}' is the last level that does")
        channels = maps.shape[1]
        fusion = (
            ConvFusion(channels, self.bias, self.start) if self.operator == "conv" else Blend(channels if self.operator == "multi" else 1)
        )
        return FusedNet(base, level, fusion)


@torch.no_grad()
def last_map(base: Staged, shape: tuple[int, ...]) -> str | None:
    """The last level whose output is still B x C x H x W, if there is one."""
    x, found = next(base.parameters()).new_zeros(2, *shape), None
    base.eval()
    for name in base.levels:
        x = base.get_submodule(name)(x)
        if x.dim() != 4:
            break
        found = name
    base.train()
    return found
