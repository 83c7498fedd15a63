"""Plain networks: convolutions with pooling, then dense layers; no normalisation.

- `mlp` and `cnn`: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS
  2017. They count 1,663,370 parameters for the CNN and 199,210 for the MLP on MNIST, and so do we.
- `lenet5`: LeCun et al., Gradient-Based Learning Applied to Document Recognition, 1998, as everyone writes it since:
  ReLU, max-pooling, all maps connected, a softmax head. It does not pad, so 28x28 images leave 4x4 maps, not 5x5.
- `cifar-cnn`: Yao et al., Federated Learning with Additional Mechanisms on Clients to Reduce Communication Costs, arXiv
  1908.05891, section 4.1.1 (FedMMD and FedFusion). The pools are 3x3 with stride 2, as written; they pad by one so that the fusion
  point is 64x8x8. The authors' FedMMD code trains another network (five convolutions, 1024-1024).
- `cnn1`, `cnn2`: Shen et al., Federated Mutual Learning, arXiv 2006.16765, which gives the convolutions only. Ours do
  not pad, pool 2x2 after every convolution, and have the dense layers 120-84 (`cnn1`, so that it is LeNet5 with smaller
  kernels) and 256 (`cnn2`).

Dropout stands after every hidden dense layer and nowhere else, as Yao et al. write of theirs.
"""

from __future__ import annotations

import math
from itertools import count, pairwise
from typing import Annotated, ClassVar

from pydantic import Field, PositiveInt
from torch import nn

from coterie.models.base import StagedArchitecture
from coterie.settings import spec

__all__ = ["CNN", "CNN1", "CNN2", "MLP", "CifarCNN", "LeNet5"]

Sizes = Annotated[tuple[PositiveInt, ...], Field(min_length=1)]


@spec
class MLP(StagedArchitecture):
    """Two dense layers of 200 units: stages `flat`, `dense1`, `dense2`, `head`.

    >>> sum(p.numel() for p in MLP().build((1, 28, 28), 10).parameters())
    199210
    """

    name: ClassVar[str] = "mlp"
    takes: ClassVar[tuple[int, ...]] = (1, 2, 3, 4)
    hidden: Sizes = (200, 200)
    """Units of each hidden layer."""

    def stages(self, shape: tuple[int, ...], classes: int) -> dict[str, nn.Module]:
        """The sample as a vector, then the dense layers."""
        return {"flat": nn.Flatten(), **dense((math.prod(shape), *self.hidden), classes, self.dropout)}


@spec
class ConvNet(StagedArchitecture):
    """Convolutions with pooling (`conv1`, `conv2`...), `flat`, dense layers (`dense1`...), `head`."""

    kernel: ClassVar[int] = 5
    padding: ClassVar[int] = 0
    pool: ClassVar[tuple[int, int, int]] = (2, 2, 0)
    """Size, stride and padding."""

    channels: Sizes = (6, 16)
    """Channels of each convolution."""
    hidden: Sizes = (120, 84)
    """Units of each dense layer before the head."""

    @property
    def smallest(self) -> int:
        """The side that leaves one pixel after the last pool."""
        return next(side for side in count(1) if self.left(side))

    def left(self, side: int) -> int:
        """What all convolutions and pools leave of a side; 0 when nothing."""
        size, stride, padding = self.pool
        for _ in self.channels:
            side += 2 * self.padding - self.kernel + 1
            side = max(0, (side + 2 * padding - size) // stride + 1) if side > 0 else 0
        return side

    def stages(self, shape: tuple[int, ...], classes: int) -> dict[str, nn.Module]:
        """The convolutions, the last map as a vector, the dense layers."""
        depth, height, width = shape
        steps = enumerate(pairwise((depth, *self.channels)), 1)
        convs: dict[str, nn.Module] = {f"conv{i}": self.conv(a, b) for i, (a, b) in steps}
        flat = self.channels[-1] * self.left(height) * self.left(width)
        convs["flat"] = nn.Flatten()
        return convs | dense((flat, *self.hidden), classes, self.dropout)

    def conv(self, inputs: int, outputs: int) -> nn.Sequential:
        """Convolution, pool, activation: as with the activation first, to the bit, which then would have four times as many pixels."""
        return nn.Sequential(nn.Conv2d(inputs, outputs, self.kernel, padding=self.padding), nn.MaxPool2d(*self.pool), nn.ReLU())


@spec
class LeNet5(ConvNet):
    """LeNet5, 5x5 convolutions of 6 and 16 channels, dense 120 and 84.

    >>> sum(p.numel() for p in LeNet5().build((3, 32, 32), 10).parameters())
    62006
    """

    name: ClassVar[str] = "lenet5"


@spec
class CNN(ConvNet):
    """FedAvg's network for MNIST: padded 5x5 convolutions of 32 and 64 channels, dense 512.

    >>> sum(p.numel() for p in CNN().build((1, 28, 28), 10).parameters())
    1663370
    """

    name: ClassVar[str] = "cnn"
    padding: ClassVar[int] = 2
    channels: Sizes = (32, 64)
    hidden: Sizes = (512,)


@spec
class CifarCNN(ConvNet):
    """FedMMD's and FedFusion's network for CIFAR-10: padded 5x5 convolutions of 64 channels, dense 384 and 192.

    >>> net = CifarCNN().build((3, 32, 32), 10)
    >>> sum(p.numel() for p in net.parameters())
    1756426
    """

    name: ClassVar[str] = "cifar-cnn"
    padding: ClassVar[int] = 2
    pool: ClassVar[tuple[int, int, int]] = (3, 2, 1)
    channels: Sizes = (64, 64)
    hidden: Sizes = (384, 192)


@spec
class CNN1(ConvNet):
    """FML's CNN1: 3x3 convolutions of 6 and 16 channels; the dense layers, which the paper does not give, are 120 and 84.

    >>> sum(p.numel() for p in CNN1().build((3, 32, 32), 10).parameters())
    81302
    """

    name: ClassVar[str] = "cnn1"
    kernel: ClassVar[int] = 3


@spec
class CNN2(ConvNet):
    """FML's CNN2: three 3x3 convolutions of 128 channels; the dense layer, which the paper does not give, is 256.

    >>> sum(p.numel() for p in CNN2().build((3, 32, 32), 10).parameters())
    432650
    """

    name: ClassVar[str] = "cnn2"
    kernel: ClassVar[int] = 3
    channels: Sizes = (128, 128, 128)
    hidden: Sizes = (256,)


def dense(sizes: tuple[int, ...], classes: int, dropout: float) -> dict[str, nn.Module]:
    """Hidden layers `dense1`, `dense2`... between the given sizes, and the head."""
    layers: dict[str, nn.Module] = {
        f"dense{i}": nn.Sequential(nn.Linear(a, b), nn.ReLU(), nn.Dropout(dropout)) for i, (a, b) in enumerate(pairwise(sizes), 1)
    }
    return {**layers, "head": nn.Linear(sizes[-1], classes)}
