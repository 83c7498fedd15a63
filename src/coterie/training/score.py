"""How well a network does: sums over examples that add up over slices of a test set, and metrics of a user's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coterie.data.examples import Samples
from coterie.devices import CPU, Device
from coterie.errors import UserError
from coterie.own import imported
from coterie.record import Record

__all__ = ["EVALUATION_BATCH", "Metric", "Output", "Scores", "find_metric", "load", "metric_name", "score"]

Metric: TypeAlias = Callable[[Tensor, Tensor], float]
"""A function of all logits (N x classes) and labels (N) of what is measured."""
Output: TypeAlias = Callable[[nn.Module, Tensor], Tensor]
"""How a network answers a batch, where that is not `network(x)`."""
EVALUATION_BATCH = 64
"""Large enough for small networks, and its maps still fit a core's cache: 500 is a third slower for the papers' CNNs."""


@dataclass(frozen=True)
class Scores:
    """Sums over examples.

    >>> both = Scores(10, 9, 10, 2.0) + Scores(10, 5, 9, 4.0)
    >>> both.metrics()
    {'accuracy': 0.7, 'top5': 0.95, 'loss': 0.3}
    """

    examples: int = 0
    correct: int = 0
    correct5: int = 0
    loss: float = 0.0
    confusion: Mapping[str, int] = field(default_factory=dict)
    """How often `true:predicted` came, for what came at all."""
    own: Mapping[str, float] = field(default_factory=dict)
    """Metrics of a user's own, times the examples."""

    def __add__(self, other: Scores) -> Scores:
        sums = (self.examples + other.examples, self.correct + other.correct, self.correct5 + other.correct5, self.loss + other.loss)
        return Scores(*sums, _added(self.confusion, other.confusion), _added(self.own, other.own))

    def metrics(self) -> dict[str, float]:
        """By name: means over the examples."""
        n = max(self.examples, 1)
        usual = {"accuracy": self.correct / n, "top5": self.correct5 / n, "loss": self.loss / n}
        return usual | {name: value / n for name, value in self.own.items()}


def _added(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    return {key: a.get(key, 0) + b.get(key, 0) for key in {**a, **b}}


def load(model: nn.Module, params: Record) -> None:
    """Give a network its weights: `load_state_dict` where they fit one to one, which need not ask every module for its wishes.

    >>> net = nn.Linear(2, 1, bias=False)
    >>> load(net, Record(weight=torch.ones(1, 2)))
    >>> net.weight.tolist()
    [[1.0, 1.0]]
    """
    own, given = model.state_dict(), params.tensors
    if own.keys() != given.keys() or any(not isinstance(own[name], Tensor) or own[name].shape != given[name].shape for name in own):
        model.load_state_dict(given)  # says what does not fit
        return
    with torch.no_grad():
        for name, value in own.items():
            value.copy_(given[name])


@torch.inference_mode()
def score(
    model: nn.Module,
    params: Record,
    data: Samples,
    span: tuple[int, int] | None = None,
    *,
    output: Output = lambda net, x: net(x),
    metrics: Mapping[str, Metric] | None = None,
    device: Device = CPU,
) -> Scores:
    """How well `model` under `params` does on `data`, or on the examples of a span of it.

    Args:
        model: the network; its present weights do not matter.
        params: those it is measured with.
        data: what it is measured on.
        span: from which example to which; None for all.
        output: how the network answers.
        metrics: further metrics by name; they see all logits and labels at once.
        device: where `model` is; what is counted is fetched from there once, after the last batch.
    """
    load(model, params)
    model.eval()
    seen, answers = list[_Seen](), list[tuple[Tensor, Tensor]]()
    for x, y in data.batches(EVALUATION_BATCH, *(span or (0, None))):
        logits = output(model, x)
        seen.append(_Seen.of(logits, y))
        if metrics:
            answers.append((logits, y))
    total = _summed(seen, device) if seen else Scores()
    if not answers:
        return total
    logits, labels = (torch.cat(each) for each in zip(*answers, strict=True))
    own = {name: _measured(name, metric, logits, labels) * len(labels) for name, metric in (metrics or {}).items()}
    return total + Scores(own=own)


def _measured(name: str, metric: Metric, logits: Tensor, labels: Tensor) -> float:
    try:
        return float(metric(logits, labels))
    except Exception as error:
        raise ValueError(f"evaluation.metrics, '{name}': {type(error).__name__}: {error}") from error


class _Seen(NamedTuple):
    """What is counted of a batch."""

    y: Tensor
    top: Tensor
    """The likeliest five classes of every example, or all if there are fewer."""
    loss: Tensor
    classes: int

    @classmethod
    def of(cls, logits: Tensor, y: Tensor) -> _Seen:
        classes = logits.shape[1]
        return cls(y, logits.topk(min(5, classes)).indices, F.cross_entropy(logits.double(), y, reduction="sum"), classes)


def _summed(seen: Sequence[_Seen], device: Device) -> Scores:
    y, top = (device.fetch(torch.cat(each)) for each in ([batch.y for batch in seen], [batch.top for batch in seen]))
    losses, classes = device.fetch(torch.stack([batch.loss for batch in seen])).tolist(), seen[0].classes
    right = top == y[:, None]
    pairs, counts = torch.unique(y * classes + top[:, 0], return_counts=True)
    confusion = {f"{pair // classes}:{pair % classes}": n for pair, n in zip(pairs.tolist(), counts.tolist(), strict=True)}
    return Scores(y.shape[0], int(right[:, 0].sum()), int(right.sum()), sum(losses), confusion)


def metric_name(path: str) -> str:
    """What a user's own metric is called in ledgers and tables.

    >>> metric_name("my.metrics:f1")
    'f1'
    """
    return path.partition(":")[2]


def find_metric(path: str) -> Metric:
    """A user's own metric by `package.module:function`.

    >>> find_metric("operator:add")(1, 2)
    3
    >>> find_metric("accuracy")
    Traceback (most recent call last):
    ...
    coterie.errors.UserError: evaluation.metrics = 'accuracy': expected package.module:function, a function of logits and labels
    """
    if ":" not in path:
        raise UserError(f"evaluation.metrics = '{path}': expected package.module:function, a function of logits and labels")
    found = imported(path, f"evaluation.metrics = '{path}'")
    if not callable(found):
        raise UserError(f"evaluation.metrics = '{path}' is a {type(found).__name__}, expected a function of logits and labels")
    metric: Metric = found
    return metric
