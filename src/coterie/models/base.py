"""What every network of the zoo has in common: the settings it shares with the others, and the way it is put together.

A recipe says which stages a network has; `StagedArchitecture.build` refuses images that are too small, stacks the stages and
initialises them. Dropout is off by default so that compared methods are equal; its modules are always there, so a state
has the same names with and without.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import nn

from coterie.errors import UserError
from coterie.models.staged import Architecture, Staged
from coterie.settings import ShareBelowOne, spec

__all__ = ["Init", "Multiplier", "Norm", "Normed", "Scaled", "StagedArchitecture", "Stride", "initialise", "normalise", "pooled", "unit"]

Init = Literal["torch", "xavier"]
Norm = Literal["batch", "group", "none"]
Stride = Annotated[int, Field(ge=1, le=2)]
Multiplier = Annotated[float, Field(gt=0, le=16)]


@spec
class StagedArchitecture(Architecture):
    """A network as stages; subclasses write `stages`."""

    init: Init = "torch"
    """`torch`: each layer's own default; `xavier`: uniform Xavier weights and zero biases."""
    dropout: ShareBelowOne = 0.0
    """Probability of dropping a unit."""

    takes: ClassVar[tuple[int, ...]] = (3,)
    """How many axes a sample may have."""

    @property
    def smallest(self) -> int:
        """The side of the smallest image that every layer still sees at least one pixel of."""
        return 1

    def stages(self, shape: tuple[int, ...], classes: int) -> dict[str, nn.Module]:
        """The named stages, from the input to `head`."""
        raise NotImplementedError

    def build(self, shape: tuple[int, ...], classes: int) -> Staged:
        """A freshly initialised network for samples of `shape`: channels, height and width of images.

        The weights of its convolutions lie channels last, and so do the maps that they make: the faster way for all of these networks.
        """
        if len(shape) not in self.takes:
            kind = "images" if self.takes == (3,) else "rows of numbers"
            raise UserError(f"model '{self.name}' takes {kind}, these samples have the shape {shape}; any shape: mlp")
        height, width = shape[-2:] if len(shape) == 3 else (self.smallest, self.smallest)
        if min(height, width) < self.smallest:
            raise UserError(
                f"model '{self.name}' needs images of at least {self.smallest}x{self.smallest} pixels, these are {height}x{width}"
            )
        net = Staged(**self.stages(shape, classes))
        initialise(net, self.init)
        return net.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


@spec
class Normed(StagedArchitecture):
    """A network with normalisation, three times downsampled at least."""

    norm: Norm = "batch"
    """`group` keeps no running statistics and does not mix the samples of a batch; `none` gives the convolutions a bias instead."""

    @property
    def smallest(self) -> int:
        """A side that leaves one pixel after three halvings."""
        return 8


@spec
class Scaled(Normed):
    """A network of groups of blocks that can be made narrower and shallower than the paper's."""

    width: Multiplier = 1.0
    """Multiplies the number of channels; 1 is the paper's network."""
    depth: Multiplier = 1.0
    """Multiplies the number of blocks in each group, rounded up; 1 is the paper's network."""
    stride: Stride = 1
    """Of the stem: 1 for small images; 2 makes everything after it four times cheaper."""

    def wide(self, channels: int) -> int:
        """So many of the paper's channels at this width: the nearest multiple of 8, never under nine tenths (MobileNetV2's rule).

        >>> Scaled(width=0.25).wide(64), Scaled(width=0.25).wide(24), Scaled().wide(144)
        (16, 8, 144)
        """
        exact = channels * self.width
        nearest = max(8, int(exact + 4) // 8 * 8)
        return nearest if nearest >= 0.9 * exact else nearest + 8

    def deep(self, blocks: int) -> int:
        """So many of the paper's blocks at this depth."""
        return math.ceil(blocks * self.depth)


def initialise(net: nn.Module, init: Init) -> None:
    """Redraw every convolution and dense layer in module order; torch's own draw, made when a layer is built, stands for `torch`."""
    if init == "torch":
        return
    for module in net.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def normalise(channels: int, norm: Norm) -> nn.Module:
    """The layer that normalises so many channels.

    Groups are of four channels or more, at most 32 of them (Wu & He 2018), as many as divide the channels:

    >>> [normalise(c, "group").num_groups for c in (3, 6, 16, 24, 144, 512)]
    [1, 1, 4, 6, 24, 32]
    """
    if norm == "none":
        return nn.Identity()
    if norm == "batch":
        return nn.BatchNorm2d(channels)
    most = min(32, max(1, channels // 4))
    return nn.GroupNorm(max(g for g in range(1, most + 1) if channels % g == 0), channels)


def unit(
    inputs: int, outputs: int, kernel: int, norm: Norm, *, stride: int = 1, groups: int = 1, act: Callable[[], nn.Module] = nn.ReLU
) -> nn.Sequential:
    """Convolution that keeps the size (up to the stride), normalisation, activation."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups, bias=norm == "none")
    return nn.Sequential(conv, normalise(outputs, norm), act())


def pooled(dropout: float, *before: nn.Module) -> nn.Sequential:
    """The stage between the last map and the head: a mean over positions, then dropout."""
    return nn.Sequential(*before, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(dropout))
