"""Residual networks for 32x32 images (He et al., Deep Residual Learning for Image Recognition, CVPR 2016).

The 32x32 form has a 3x3 stem with stride 1 and no max-pool. `resnet10` and `resnet12` have 1-1-1-1 and 2-1-1-1 basic
blocks, as in the code of FCCL (Huang et al., CVPR 2022); `resnet12` is not the network of that name in few-shot
learning. Shortcuts are projections (option B). He et al. have no dropout; the setting puts one before the head.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from coterie.models.base import Multiplier, Norm, Scaled, Stride, pooled, unit
from coterie.settings import spec

__all__ = ["BasicBlock", "ResNet10", "ResNet10Slim", "ResNet12", "ResNet18"]


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut, which is a 1x1 convolution where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Norm) -> None:
        super().__init__()
        same = stride == 1 and inputs == outputs
        self.first = unit(inputs, outputs, 3, norm, stride=stride)
        self.second = unit(outputs, outputs, 3, norm, act=nn.Identity)
        self.shortcut = nn.Identity() if same else unit(inputs, outputs, 1, norm, stride=stride, act=nn.Identity)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(self.first(x)) + self.shortcut(x)
        return out.relu()


@spec
class ResNet(Scaled):
    """Stages `stem`, `layer1` to `layer4`, `pool`, `head`."""

    blocks: ClassVar[tuple[int, int, int, int]]

    def stages(self, shape: tuple[int, ...], classes: int) -> dict[str, nn.Module]:
        """Four groups of blocks; every group but the first halves the map and doubles the channels."""
        widths = [self.wide(channels) for channels in (64, 64, 128, 256, 512)]
        parts: dict[str, nn.Module] = {"stem": unit(shape[0], widths[0], 3, self.norm, stride=self.stride)}
        for i, blocks in enumerate(self.blocks, 1):
            parts[f"layer{i}"] = self.group(widths[i - 1], widths[i], self.deep(blocks), 1 if i == 1 else 2)
        return {**parts, "pool": pooled(self.dropout), "head": nn.Linear(widths[-1], classes)}

    def group(self, inputs: int, outputs: int, blocks: int, stride: int) -> nn.Sequential:
        """So many blocks, the first of which changes the shape."""
        rest = (BasicBlock(outputs, outputs, 1, self.norm) for _ in range(blocks - 1))
        return nn.Sequential(BasicBlock(inputs, outputs, stride, self.norm), *rest)


@spec
class ResNet10(ResNet):
    """One basic block in each group.

    >>> sum(p.numel() for p in ResNet10().build((3, 32, 32), 10).parameters())
    4903242
    """

    name: ClassVar[str] = "resnet10"
    blocks: ClassVar[tuple[int, int, int, int]] = (1, 1, 1, 1)


@spec
class ResNet12(ResNet):
    """Two basic blocks in the first group, one in each other.

    >>> sum(p.numel() for p in ResNet12().build((3, 32, 32), 10).parameters())
    4977226
    """

    name: ClassVar[str] = "resnet12"
    blocks: ClassVar[tuple[int, int, int, int]] = (2, 1, 1, 1)


@spec
class ResNet18(ResNet):
    """Two basic blocks in each group.

    >>> sum(p.numel() for p in ResNet18().build((3, 32, 32), 10).parameters())
    11173962
    """

    name: ClassVar[str] = "resnet18"
    blocks: ClassVar[tuple[int, int, int, int]] = (2, 2, 2, 2)


@spec
class ResNet10Slim(ResNet10):
    """`resnet10` at three eighths of the width and with a strided stem, for a CPU.

    >>> sum(p.numel() for p in ResNet10Slim().build((3, 32, 32), 10).parameters())
    692482
    """

    name: ClassVar[str] = "resnet10-slim"
    width: Multiplier = 0.375
    stride: Stride = 2
