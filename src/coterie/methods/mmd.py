"""The two-stream constraint of FedMMD's paper and its L2 rival: Yao et al., arXiv 1908.05891, section 3.1.

Beside the network that a client trains runs a second stream, the received model, frozen, on the same samples. What the outputs of
the two differ by is added to the loss: the squared maximum mean discrepancy under several Gaussian kernels (MMD), or half the squared
difference (L2).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from coterie.models import staged
from coterie.models.fused import FusedNet
from coterie.record import Record
from coterie.settings import NotNegative, Spec, spec
from coterie.site import Site
from coterie.training.loop import Frozen
from coterie.training.objectives import Objective, Slope, Step

__all__ = ["MMD", "WIDTHS", "L2Regulariser", "L2Settings", "MMDRegulariser", "MMDSettings", "Regulariser", "SquaredDistance", "mmd2"]

AT = torch.ops.aten
BY_DIFFERENCES = 2
"""How `torch.cdist` is asked for distances that are sums of squared differences, not differences of squares."""
Output = Literal["logits", "features"]
Kernels = Literal["fixed", "mean"]
Reduction = Literal["sum", "mean"]

WIDTHS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 35.0, 100.0, 1e3, 1e4, 1e5, 1e6)
"""The authors' nineteen kernels: each number plays the role of a variance, exp(-d^2 / (2 width))."""


def mmd2(x: Tensor, y: Tensor, kernels: Kernels = "fixed") -> Tensor:
    """The biased estimate of MMD^2 (all pairs, diagonals included) under a sum of Gaussian kernels.

    >>> x = torch.tensor([[0.0], [1.0]])
    >>> mmd2(x, x).item(), mmd2(x, x + 1).item() > 0
    (0.0, True)
    """
    value: Tensor = _Discrepancy.apply(x, y, kernels)  # type: ignore[no-untyped-call]
    return value


class _Discrepancy(torch.autograd.Function):
    """MMD^2, whose gradient is found with it, at a fraction of what deriving costs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, kernels: Kernels) -> Tensor:
        value, slope = _discrepancy(torch.cat([x, y]), len(x), kernels)
        ctx.save_for_backward(slope)
        ctx.of_x = len(x)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, weight: Tensor) -> tuple[Tensor, Tensor, None]:
        slope = ctx.saved_tensors[0] * weight
        return slope[: ctx.of_x], slope[ctx.of_x :], None


def _discrepancy(joint: Tensor, n: int, kernels: Kernels) -> tuple[Tensor, Tensor]:
    """MMD^2 of the first n rows and the others, and its gradient by every row: not cut off where rounding leaves the value below 0."""
    distances = AT._cdist_forward(joint, joint, 2.0, BY_DIFFERENCES)
    squared = distances.square()
    rates = _fixed_rates(squared.dtype, squared.device) if kernels == "fixed" else _rates_by_mean(squared)
    each = torch.outer(rates, squared.view(-1)).clamp_(min=_least(squared.dtype)).exp_()
    value = _blocks(each.sum(0).view_as(squared), n).dot(_contrast(squared.dtype, squared.device)).clamp_(min=0)
    by_squared = rates.unsqueeze(0).mm(each).view_as(squared).mul_(_signs(n, joint.shape[0] - n, squared.dtype, squared.device))
    by_distance = by_squared.mul_(distances).mul_(4)  # every pair is there twice, and the slope of a square is twice its root
    return value, AT._cdist_backward(by_distance, joint, joint, 2.0, distances)


def _blocks(kernel: Tensor, n: int) -> Tensor:
    """The means over pairs within the first n samples, of one of them and another, of another and one of them, and within the others."""
    if 2 * n == kernel.shape[0]:
        return kernel.view(2, n, 2, n).mean((1, 3)).view(-1)
    rows = (kernel[:n], kernel[n:])
    return torch.stack([block.mean() for row in rows for block in (row[:, :n], row[:, n:])])


@cache
def _least(dtype: torch.dtype) -> float:
    """Exponents below it are cut off: the processor is twenty times slower at an exponential that underflows, and no sum sees it."""
    return math.log(torch.finfo(dtype).tiny) + 1


@cache
@torch.inference_mode(mode=False)  # what is kept may be derived from later
def _fixed_rates(dtype: torch.dtype, device: torch.device) -> Tensor:
    """What squared distances are multiplied with in the exponent."""
    return -1 / (2 * torch.tensor(WIDTHS, dtype=dtype, device=device))


def _rates_by_mean(squared: Tensor) -> Tensor:
    mean = squared.sum() / (len(squared) ** 2 - len(squared))
    least = torch.finfo(mean.dtype).tiny / torch.finfo(mean.dtype).eps  # so that one over a quarter of it is still a number
    return -1 / (mean.clamp(min=least) * squared.new_tensor([0.25, 0.5, 1.0, 2.0, 4.0]))


@cache
@torch.inference_mode(mode=False)
def _contrast(dtype: torch.dtype, device: torch.device) -> Tensor:
    """How the means over blocks of pairs count: alike within both, and against those between them."""
    return torch.tensor([1.0, -2.0, 0.0, 1.0], dtype=dtype, device=device)


@lru_cache(8)
@torch.inference_mode(mode=False)
def _signs(n: int, m: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """How the pairs of n and m samples count."""
    share = torch.cat([torch.full((n,), 1 / n, dtype=dtype, device=device), torch.full((m,), -1 / m, dtype=dtype, device=device)])
    return torch.outer(share, share)


def _streams(step: Step, on: Output) -> tuple[Tensor, Tensor]:
    return step.frozen[f"global {on}"].flatten(1), (step.logits if on == "logits" else step.features).flatten(1)


@dataclass(frozen=True)
class MMD(Objective):
    """MMD^2 between the frozen global stream and the local one."""

    on: Output = "logits"
    kernels: Kernels = "fixed"
    floor: float = 0.0

    @property
    def shallow(self) -> bool:
        return self.on == "logits"

    def __call__(self, step: Step) -> Tensor:
        value = mmd2(*_streams(step, self.on), kernels=self.kernels)
        return value.clamp(min=self.floor) if self.floor > 0 else value

    def back(self, step: Step, weight: Tensor, parameters: Mapping[str, Tensor]) -> Slope:
        theirs, ours = _streams(step, self.on)
        n = theirs.shape[0]
        value, slope = _discrepancy(torch.cat([theirs, ours]), n, self.kernels)
        if self.floor > 0:
            weight, value = weight * (value >= self.floor), value.clamp(min=self.floor)
        return Slope(value, slope[n:].mul_(weight).view_as(step.logits))


@dataclass(frozen=True)
class SquaredDistance(Objective):
    """Half the squared difference between the streams, summed over outputs, and over the batch or its mean."""

    on: Output = "logits"
    reduction: Reduction = "sum"

    @property
    def shallow(self) -> bool:
        return self.on == "logits"

    def __call__(self, step: Step) -> Tensor:
        theirs, ours = _streams(step, self.on)
        total = 0.5 * (ours - theirs).square().sum()
        return total if self.reduction == "sum" else total / len(ours)

    def back(self, step: Step, weight: Tensor, parameters: Mapping[str, Tensor]) -> Slope:
        theirs, ours = _streams(step, self.on)
        total = 0.5 * (ours - theirs).square().sum()
        share = 1 if self.reduction == "sum" else len(ours)
        return Slope(total / share, (ours - theirs).mul_(weight / share).view_as(step.logits))


class Regulariser(Spec):
    """One addition to the clients' loss."""

    def objective(self) -> Objective:
        """The term with its weight."""
        raise NotImplementedError

    def frozen(self, site: Site, start: Record) -> Mapping[str, Frozen]:
        """The frozen functions it looks at, by name; none where its weight is 0."""
        return {}


@spec
class MMDSettings:
    """How the two streams are compared by MMD."""

    lam: NotNegative = 0.1
    """Weight of the discrepancy."""
    on: Output = "logits"
    """What the two streams are compared on; the authors' code takes the logits, the paper says "outputs"."""
    kernels: Kernels = "fixed"
    """`fixed`: the authors' nineteen widths; `mean`: five around the mean squared distance of the joint batch."""
    floor: NotNegative = 0.0
    """Values below it do not push; the authors' code has 1e-4."""


@spec
class L2Settings:
    """How the two streams are compared by their squared difference."""

    lam: NotNegative = 0.01
    """Weight of the squared difference."""
    on: Output = "logits"
    """What the two streams are compared on."""
    reduction: Reduction = "sum"
    """Over the batch: the authors' code sums, which makes it strong."""


class TwoStream(Regulariser):
    """A second stream beside the trained one: the received model, frozen, on the same samples."""

    lam: float
    on: Output

    def frozen(self, site: Site, start: Record) -> Mapping[str, Frozen]:
        if self.lam == 0:
            return {}
        look = (lambda net, x: net(x)) if self.on == "logits" else _features
        return {f"global {self.on}": site.frozen(start, "global stream", look)}


def _features(net: nn.Module, x: Tensor) -> Tensor:
    seen: Tensor = net.features(x) if isinstance(net, FusedNet) else staged(net).features(x)
    return seen


@spec
class MMDRegulariser(MMDSettings, TwoStream):
    """FedMMD's: lambda times the squared maximum mean discrepancy between the two streams."""

    name: ClassVar[str] = "mmd"

    def objective(self) -> Objective:
        return self.lam * MMD(self.on, self.kernels, self.floor)


@spec
class L2Regulariser(L2Settings, TwoStream):
    """The rival in FedMMD's paper: lambda/2 times the squared difference of the two streams."""

    name: ClassVar[str] = "l2"

    def objective(self) -> Objective:
        return self.lam * SquaredDistance(self.on, self.reduction)
