"""Wide residual networks (Zagoruyko & Komodakis, BMVC 2016), in the pre-activation form of He et al., ECCV 2016.

WRN-40-1 is the global model of Shi & Radu (EuroMLSys 2022, arXiv 2111.03512), who cut it after its groups G1, G2 and G3. A 1x1
convolution stands in a shortcut only where the number of channels changes, and reads the activated input, as in the
authors' code. Dropout is where the paper has it: between the two convolutions of a block.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from coterie.models.base import Norm, Normed, normalise, pooled
from coterie.settings import spec

__all__ = ["WRN10x1", "WRN16x1", "WRN40x1", "WideBlock"]


def conv(inputs: int, outputs: int, kernel: int, norm: Norm, stride: int = 1) -> nn.Conv2d:
    """A convolution that keeps the size up to the stride."""
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=norm == "none")


class WideBlock(nn.Module):
    """Normalise, activate and convolve, twice, beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Norm, dropout: float) -> None:
        super().__init__()
        self.enter = nn.Sequential(normalise(inputs, norm), nn.ReLU())
        self.first = conv(inputs, outputs, 3, norm, stride)
        self.second = nn.Sequential(normalise(outputs, norm), nn.ReLU(), nn.Dropout(dropout), conv(outputs, outputs, 3, norm))
        self.shortcut = None if inputs == outputs else conv(inputs, outputs, 1, norm, stride)

    def forward(self, x: Tensor) -> Tensor:
        active = self.enter(x)
        out: Tensor = self.second(self.first(active))
        return out + (x if self.shortcut is None else self.shortcut(active))


@spec
class WideResNet(Normed):
    """Stages `stem`, `G1`, `G2`, `G3`, `pool` (with the last normalisation), `head`."""

    depth: ClassVar[int]
    widen: ClassVar[int]

    def stages(self, shape: tuple[int, ...], classes: int) -> dict[str, nn.Module]:
        """Three groups; the second and the third halve the map and double the channels."""
        widths = (16, 16 * self.widen, 32 * self.widen, 64 * self.widen)
        parts: dict[str, nn.Module] = {"stem": conv(shape[0], widths[0], 3, self.norm)}
        for i in (1, 2, 3):
            parts[f"G{i}"] = self.group(widths[i - 1], widths[i], 1 if i == 1 else 2)
        parts["pool"] = pooled(0.0, normalise(widths[-1], self.norm), nn.ReLU())
        return {**parts, "head": nn.Linear(widths[-1], classes)}

    def group(self, inputs: int, outputs: int, stride: int) -> nn.Sequential:
        """The blocks of one group, of two convolutions each; the first block changes the shape."""
        blocks = (self.depth - 4) // 6
        rest = (WideBlock(outputs, outputs, 1, self.norm, self.dropout) for _ in range(blocks - 1))
        return nn.Sequential(WideBlock(inputs, outputs, stride, self.norm, self.dropout), *rest)


@spec
class WRN40x1(WideResNet):
    """WRN-40-1: six blocks in each group, 16, 32 and 64 channels.

    >>> net = WRN40x1().build((3, 32, 32), 10)
    >>> [sum(p.numel() for p in part.parameters()) for part in (net, net.upper("G1"), net.upper("G2"), net.upper("G3"))]
    [563930, 535466, 428234, 778]
    """

    name: ClassVar[str] = "wrn-40-1"
    depth: ClassVar[int] = 40
    widen: ClassVar[int] = 1


@spec
class WRN16x1(WideResNet):
    """WRN-16-1: two blocks in each group; the same cuts and maps as WRN-40-1, for a laptop.

    >>> sum(p.numel() for p in WRN16x1().build((3, 32, 32), 10).parameters())
    175066
    """

    name: ClassVar[str] = "wrn-16-1"
    depth: ClassVar[int] = 16
    widen: ClassVar[int] = 1


@spec
class WRN10x1(WideResNet):
    """WRN-10-1: one block in each group; the same cuts and maps as WRN-40-1, for a laptop.

    >>> sum(p.numel() for p in WRN10x1().build((3, 32, 32), 10).parameters())
    77850
    """

    name: ClassVar[str] = "wrn-10-1"
    depth: ClassVar[int] = 10
    widen: ClassVar[int] = 1
