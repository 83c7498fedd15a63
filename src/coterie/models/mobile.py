"""Networks of inverted residuals: MobileNetV2 and EfficientNet-B0, for 32x32 images.

- Sandler et al., MobileNetV2: Inverted Residuals and Linear Bottlenecks, CVPR 2018.
- Tan & Le, EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks, ICML 2019.

The 32x32 forms have a stem with stride 1, and MobileNetV2 also a second group with stride 1, as in the code of FCCL
(Huang et al., CVPR 2022). That code adds 1x1 convolutions to MobileNetV2's shortcuts where the channels change and
leaves out EfficientNet's last 1x1 convolution; we keep to the papers, so the parameters are those of the published networks.
EfficientNet's stochastic depth is left out: a training trick, not a layer. Dropout stands before the head, as in
both authors' code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, NamedTuple

from torch import Tensor, nn

from coterie.models.base import Multiplier, Norm, Scaled, Stride, pooled, unit
from coterie.settings import spec

__all__ = ["EfficientNetB0", "EfficientNetSlim", "InvertedResidual", "MobileNetV2", "MobileNetV2Slim"]


class Group(NamedTuple):
    """A row of the papers' tables: blocks that share a shape, the first of which has the stride."""

    expand: int
    channels: int
    blocks: int
    stride: int
    kernel: int = 3


class SqueezeExcite(nn.Module):
    """Scales each channel by a gate computed from all channels' means (Hu et al., CVPR 2018)."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        squeeze, excite = nn.Conv2d(channels, squeezed, 1), nn.Conv2d(squeezed, channels, 1)
        self.gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), squeeze, nn.SiLU(), excite, nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x * self.gate(x)
        return out


class InvertedResidual(nn.Module):
    """Expand by a 1x1 convolution, convolve each channel, project back; a shortcut where the shape stays."""

    def __init__(self, inputs: int, group: Group, stride: int, norm: Norm, act: Callable[[], nn.Module], excite: bool) -> None:
        super().__init__()
        inner = inputs * group.expand
        layers: list[nn.Module] = [unit(inputs, inner, 1, norm, act=act)] if group.expand > 1 else []
        layers.append(unit(inner, inner, group.kernel, norm, stride=stride, groups=inner, act=act))
        if excite:
            layers.append(SqueezeExcite(inner, max(1, inputs // 4)))
        self.layers = nn.Sequential(*layers, unit(inner, group.channels, 1, norm, act=nn.Identity))
        self.shortcut = stride == 1 and inputs == group.channels

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return x + out if self.shortcut else out


@spec
class Mobile(Scaled):
    """Stages `stem`, `group1` to `group7`, `last` (the 1x1 convolution to 1280 channels), `pool`, `head`."""

    groups: ClassVar[tuple[Group, ...]]
    act: ClassVar[type[nn.Module]]
    excite: ClassVar[bool]

    def stages(self, shape: tuple[int, ...], classes: int) -> dict[str, nn.Module]:
        """The stem, the table's groups, and the last convolution."""
        channels = self.wide(32)
        parts: dict[str, nn.Module] = {"stem": unit(shape[0], channels, 3, self.norm, stride=self.stride, act=self.act)}
        for i, paper in enumerate(self.groups, 1):
            group = paper._replace(channels=self.wide(paper.channels), blocks=self.deep(paper.blocks))
            parts[f"group{i}"] = self.group(channels, group)
            channels = group.channels
        last = self.wide(1280)
        parts["last"] = unit(channels, last, 1, self.norm, act=self.act)
        return {**parts, "pool": pooled(self.dropout), "head": nn.Linear(last, classes)}

    def group(self, inputs: int, group: Group) -> nn.Sequential:
        """The blocks of one row, the first of which changes the shape."""
        first = InvertedResidual(inputs, group, group.stride, self.norm, self.act, self.excite)
        rest = (InvertedResidual(group.channels, group, 1, self.norm, self.act, self.excite) for _ in range(group.blocks - 1))
        return nn.Sequential(first, *rest)


@spec
class MobileNetV2(Mobile):
    """MobileNetV2 for 32x32 images.

    >>> sum(p.numel() for p in MobileNetV2().build((3, 32, 32), 10).parameters())
    2236682
    """

    name: ClassVar[str] = "mobilenetv2"
    act: ClassVar[type[nn.Module]] = nn.ReLU6
    excite: ClassVar[bool] = False
    groups: ClassVar[tuple[Group, ...]] = (
        Group(1, 16, 1, 1),
        Group(6, 24, 2, 1),
        Group(6, 32, 3, 2),
        Group(6, 64, 4, 2),
        Group(6, 96, 3, 1),
        Group(6, 160, 3, 2),
        Group(6, 320, 1, 1),
    )


@spec
class EfficientNetB0(Mobile):
    """EfficientNet-B0 for 32x32 images.

    >>> sum(p.numel() for p in EfficientNetB0().build((3, 32, 32), 10).parameters())
    4020358
    """

    name: ClassVar[str] = "efficientnet-b0"
    act: ClassVar[type[nn.Module]] = nn.SiLU
    excite: ClassVar[bool] = True
    groups: ClassVar[tuple[Group, ...]] = (
        Group(1, 16, 1, 1),
        Group(6, 24, 2, 2),
        Group(6, 40, 2, 2, kernel=5),
        Group(6, 80, 3, 2),
        Group(6, 112, 3, 1, kernel=5),
        Group(6, 192, 4, 2, kernel=5),
        Group(6, 320, 1, 1),
    )


@spec
class MobileNetV2Slim(MobileNetV2):
    """`mobilenetv2` at a quarter of the width and half the depth, with a strided stem, for a CPU.

    >>> sum(p.numel() for p in MobileNetV2Slim().build((3, 32, 32), 10).parameters())
    119850
    """

    name: ClassVar[str] = "mobilenetv2-slim"
    width: Multiplier = 0.25
    depth: Multiplier = 0.5
    stride: Stride = 2


@spec
class EfficientNetSlim(EfficientNetB0):
    """`efficientnet-b0` at a quarter of the width and half the depth for a CPU: strided stem, unstrided fourth group, 3x3 kernels.

    >>> sum(p.numel() for p in EfficientNetSlim().build((3, 32, 32), 10).parameters())
    188208
    """

    name: ClassVar[str] = "efficientnet-slim"
    groups: ClassVar[tuple[Group, ...]] = tuple(
        group._replace(kernel=3, stride=1 if group.channels == 80 else group.stride) for group in EfficientNetB0.groups
    )
    width: Multiplier = 0.25
    depth: Multiplier = 0.5
    stride: Stride = 2
