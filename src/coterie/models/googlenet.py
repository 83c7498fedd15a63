"""GoogLeNet for 32x32 images (Szegedy et al., Going Deeper with Convolutions, CVPR 2015).

The 32x32 form is that of FCCL's code (Huang et al., CVPR 2022): one 3x3 convolution of 192 channels as the stem,
normalisation after every convolution, two 3x3 convolutions in place of the 5x5 one (Inception-v2), no auxiliary
classifiers. Convolutions that are followed by a normalisation have no bias here. Dropout stands before the head, as in
the paper.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from coterie.models.base import Multiplier, Norm, Scaled, Stride, pooled, unit
from coterie.settings import spec

__all__ = ["GoogLeNet", "GoogLeNetSlim", "Inception"]

InceptionRow = tuple[int, int, int, int, int, int]
"""The paper's Table 1: 1x1, 3x3 reduce, 3x3, 5x5 reduce, 5x5, pool projection."""

# At less than full depth the first rows of a group go, so that it ends in the paper's channels.
TABLE: dict[str, tuple[InceptionRow, ...]] = {
    "inception3": ((64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64)),
    "inception4": (
        (192, 96, 208, 16, 48, 64),
        (160, 112, 224, 24, 64, 64),
        (128, 128, 256, 24, 64, 64),
        (112, 144, 288, 32, 64, 64),
        (256, 160, 320, 32, 128, 128),
    ),
    "inception5": ((256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128)),
}


class Inception(nn.Module):
    """Four branches side by side."""

    def __init__(self, inputs: int, row: InceptionRow, norm: Norm) -> None:
        super().__init__()
        one, reduce3, three, reduce5, five, pool = row
        self.outputs = one + three + five + pool
        self.branch1 = unit(inputs, one, 1, norm)
        self.branch3 = nn.Sequential(unit(inputs, reduce3, 1, norm), unit(reduce3, three, 3, norm))
        self.branch5 = nn.Sequential(unit(inputs, reduce5, 1, norm), unit(reduce5, five, 3, norm), unit(five, five, 3, norm))
        self.project = nn.Sequential(nn.MaxPool2d(3, 1, 1), unit(inputs, pool, 1, norm))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.branch1(x), self.branch3(x), self.branch5(x), self.project(x)], 1)


@spec
class GoogLeNet(Scaled):
    """Stages `stem`, `inception3`, `inception4`, `inception5`, `pool`, `head`.

    >>> sum(p.numel() for p in GoogLeNet().build((3, 32, 32), 10).parameters())
    6158346
    """

    name: ClassVar[str] = "googlenet"
    pools: ClassVar[tuple[str, ...]] = ("inception4", "inception5")
    """The groups that begin with a pool."""

    def stages(self, shape: tuple[int, ...], classes: int) -> dict[str, nn.Module]:
        """The stem and three groups of inception blocks, with a pool before the second and the third."""
        channels = self.wide(192)
        parts: dict[str, nn.Module] = {"stem": unit(shape[0], channels, 3, self.norm, stride=self.stride)}
        for stage, rows in TABLE.items():
            group: list[nn.Module] = [nn.MaxPool2d(3, 2, 1)] if stage in self.pools else []
            for row in rows[-self.deep(len(rows)) :]:
                block = Inception(channels, self.row(row), self.norm)
                channels = block.outputs
                group.append(block)
            parts[stage] = nn.Sequential(*group)
        return {**parts, "pool": pooled(self.dropout), "head": nn.Linear(channels, classes)}

    def row(self, row: InceptionRow) -> InceptionRow:
        """The table's row at this width."""
        one, reduce3, three, reduce5, five, pool = map(self.wide, row)
        return one, reduce3, three, reduce5, five, pool


@spec
class GoogLeNetSlim(GoogLeNet):
    """`googlenet` at a quarter of the width and half the depth for a CPU: strided stem, and a pool before every group as in the paper.

    >>> sum(p.numel() for p in GoogLeNetSlim().build((3, 32, 32), 10).parameters())
    260586
    """

    name: ClassVar[str] = "googlenet-slim"
    pools: ClassVar[tuple[str, ...]] = ("inception3", "inception4", "inception5")
    width: Multiplier = 0.25
    depth: Multiplier = 0.5
    stride: Stride = 2
