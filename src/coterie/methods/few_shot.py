"""What few-shot learning offers an upper part that has few maps to learn from: options of split training beyond the paper."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coterie.record import Record
from coterie.settings import NotNegative, ShareBelowOne, spec
from coterie.training.objectives import CrossEntropy, Objective, Step

__all__ = ["FewShot", "Mixed", "prototypes"]


@spec
class FewShot:
    """How the upper part learns from few maps; by default nothing of it, as in the paper.

    >>> FewShot().objective()
    CrossEntropy()
    """

    start: Literal["initial", "global"] = "initial"
    """Where its training starts: from the first weights of all, or from those of the global model that gave the maps."""
    freeze: str | None = None
    """Its stages up to this one stay as they are in that global model; maps go through them once, in evaluation mode."""
    head: Literal["trained", "nearest-mean", "cosine"] = "trained"
    """Or made, after the training, of the mean features of each class: the nearest mean wins, or the smallest angle."""
    mixup: NotNegative = 0.0
    """Maps and labels are mixed in pairs, with shares from Beta(mixup, mixup) (Zhang et al. 2018)."""
    dropout: ShareBelowOne = 0.0
    """Probability of dropping a feature before the head."""

    def objective(self) -> Objective:
        """What the server minimises."""
        return Mixed(self.mixup, self.dropout) if self.mixup or self.dropout else CrossEntropy()


@spec
class Mixed(Objective):
    """Cross-entropy with inputs mixed in pairs and features dropped."""

    mixup: float
    dropout: float

    def __call__(self, step: Step) -> Tensor:
        net = step.model
        assert isinstance(net, nn.Sequential)
        other = torch.randperm(len(step.x))
        share = torch.distributions.Beta(self.mixup, self.mixup).sample().item() if self.mixup else 1.0
        mixed = share * step.x + (1 - share) * step.x[other] if self.mixup else step.x
        logits = net[-1](F.dropout(net[:-1](mixed), self.dropout))
        return share * F.cross_entropy(logits, step.y) + (1 - share) * F.cross_entropy(logits, step.y[other])


def prototypes(features: Tensor, labels: Tensor, classes: int, kind: Literal["nearest-mean", "cosine"]) -> Record:
    """A linear head that says whose mean feature is nearest, or has the smallest angle; classes that were not seen never win.

    |f - m|^2 = |f|^2 - 2 f.m + |m|^2, and |f|^2 is the same for all classes, so that nearness is linear in f.

    >>> head = prototypes(torch.tensor([[0.0, 1.0], [0.0, 3.0], [4.0, 0.0]]), torch.tensor([0, 0, 1]), 2, "nearest-mean").tensors
    >>> head["head.weight"].tolist(), head["head.bias"].tolist()
    ([[0.0, 4.0], [8.0, 0.0]], [-4.0, -16.0])
    """
    present = [label for label in range(classes) if bool((labels == label).any())]
    weight = features.new_zeros(classes, features.shape[1])
    bias = features.new_full((classes,), torch.finfo(features.dtype).min / 2)
    for label in present:
        mean = features[labels == label].mean(0)
        weight[label] = 2 * mean if kind == "nearest-mean" else F.normalize(mean, dim=0)
        bias[label] = -mean.square().sum() if kind == "nearest-mean" else 0.0
    return Record({"head.weight": weight, "head.bias": bias})
