"""How well a network does: sums over examples that add up over slices."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from coterie.data.examples import Samples
from coterie.record import Record
from coterie.training.loop import EVALUATION_BATCH

__all__ = ["Scores", "score"]


@dataclass(frozen=True)
class Scores:
    """Sums over examples, so that scores of slices add up to the score of the whole.

    >>> both = Scores(10, 9, 10, 2.0) + Scores(10, 5, 9, 4.0)
    >>> both.values()
    {'accuracy': 0.7, 'top5': 0.95, 'loss': 0.3}
    """

    examples: int = 0
    correct: int = 0
    correct5: int = 0
    loss: float = 0.0

    def __add__(self, other: Scores) -> Scores:
        return Scores(self.examples + other.examples, self.correct + other.correct, self.correct5 + other.correct5, self.loss + other.loss)

    def values(self) -> dict[str, float]:
        """The metrics by name: means over the examples."""
        n = max(self.examples, 1)
        return {"accuracy": self.correct / n, "top5": self.correct5 / n, "loss": self.loss / n}


@torch.inference_mode()
def score(model: nn.Module, params: Record, data: Samples, start: int = 0, stop: int | None = None) -> Scores:
    """How well `model` under `params` does on `data`, or on the examples from `start` to `stop`."""
    model.load_state_dict(params.tensors)
    model.eval()
    total = Scores()
    for x, y in data.batches(EVALUATION_BATCH, start, stop):
        logits = model(x)
        best = logits.topk(min(5, logits.shape[1])).indices == y[:, None]
        loss = F.cross_entropy(logits.double(), y, reduction="sum").item()
        total += Scores(len(y), int(best[:, 0].sum()), int(best.sum()), loss)
    return total
