"""How replies become one: the mean, and what stands in its place where some clients may lie or all want to stay private.

An averaging method has a setting `aggregation`. Robust rules bound what a few lying clients can do; each says what it does not
protect from. Except for the mean they count every client alike: a weight that a client names is a lever. `clip` first brings every
update (what a client sends, less what it was sent) to at most that L2 norm, over all that is averaged together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from coterie.errors import RunError, UserError
from coterie.record import Record
from coterie.settings import Count, Positive, Registry, Spec, field_of, spec

__all__ = [
    "AGGREGATIONS",
    "MEAN",
    "Aggregation",
    "Aggregator",
    "ByCoordinate",
    "Krum",
    "Median",
    "Private",
    "Sent",
    "TrimmedMean",
    "WeightedMean",
]


@dataclass(frozen=True)
class Sent:
    """What the server knows of those it aggregates."""

    around: Record = field(default_factory=Record)
    """What was sent to them: updates are differences from it."""
    asked: int = 0
    """How many were asked, whoever answered."""
    noise: Callable[[], torch.Generator] | None = None
    """What a private rule draws from, where the experiment wants noise that repeats."""


@spec
class Aggregation(Spec):
    """Base of the rules."""

    clip: Positive | None = None
    """The largest L2 norm of an update; longer ones are scaled down to it."""

    @property
    def streams(self) -> bool:
        """Whether it is the plain weighted mean, that needs no two replies at once."""
        return False

    def merged(self, replies: Sequence[Record], weights: Sequence[float], sent: Sent) -> Record:
        """One Record of many that have the same names and shapes.

        Args:
            replies: what clients sent, of what is averaged.
            weights: of each in a mean.
            sent: what the server knows.
        """
        raise NotImplementedError

    def _clipped(self, replies: Sequence[Record], around: Record) -> Sequence[Record]:
        if self.clip is None:
            return replies
        missing = next((name for name, value in replies[0].tensors.items() if value.is_floating_point() and name not in around), None)
        if missing is not None:
            raise UserError(
                f"method.aggregation.clip = {self.clip:g}: this method sends no {missing} that an update could be measured from"
            )
        return [_near(reply, around, self.clip) for reply in replies]


def _near(reply: Record, around: Record, clip: float) -> Record:
    """A reply whose distance from what was sent is at most `clip`."""
    updates = reply.combine(around, lambda new, old: new.double() - old.double())
    norm = math.sqrt(sum(float(value.square().sum()) for value in updates.tensors.values() if value.is_floating_point()))
    factor = min(1.0, clip / norm) if norm else 1.0
    return reply if factor == 1.0 else reply.combine(around, lambda new, old: (old.double() + factor * (new.double() - old)).to(new.dtype))


@spec
class ByCoordinate(Aggregation):
    """Base of rules that look at each tensor by itself; a subclass says how values, stacked in float64, become one."""

    def merged(self, replies: Sequence[Record], weights: Sequence[float], sent: Sent) -> Record:
        tensors = [reply.tensors for reply in self._clipped(replies, sent.around)]
        chosen = self.chosen(tensors)
        kept, of = [tensors[at] for at in chosen], torch.tensor([weights[at] for at in chosen], dtype=torch.float64)
        return Record({name: self._one(torch.stack([each[name] for each in kept]), of) for name in kept[0]})

    def chosen(self, replies: Sequence[Mapping[str, Tensor]]) -> Sequence[int]:
        """Whom it listens to at all."""
        return range(len(replies))

    def combined(self, stacked: Tensor, weights: Tensor) -> Tensor:
        """Of values stacked along the first dimension, the one that stands for all."""
        raise NotImplementedError

    def _one(self, stacked: Tensor, weights: Tensor) -> Tensor:
        if stacked.is_floating_point():
            return self.combined(stacked.double(), weights).to(stacked.dtype)
        return self.counted(stacked)

    def counted(self, stacked: Tensor) -> Tensor:
        """Of whole numbers (BatchNorm's counter of batches) the middle one: the largest would be anybody's to choose."""
        return stacked.sort(dim=0).values[(len(stacked) - 1) // 2]


@spec
class WeightedMean(ByCoordinate):
    """The mean, weighted as the method says. One client can move it anywhere, within what admission lets in and `clip` leaves.

    >>> WeightedMean().streams, WeightedMean(clip=1.0).streams
    (True, False)
    """

    name: ClassVar[str] = "mean"

    @property
    def streams(self) -> bool:
        return self.clip is None

    def combined(self, stacked: Tensor, weights: Tensor) -> Tensor:
        return (stacked.movedim(0, -1) * (weights / weights.sum())).sum(-1)

    def counted(self, stacked: Tensor) -> Tensor:
        return stacked.amax(0)


@spec
class Median(ByCoordinate):
    """The coordinate-wise median: Yin et al., "Byzantine-Robust Distributed Learning", ICML 2018.

    Holds against liars that are fewer than half of those who answer. It does not protect from liars that stay inside the spread of honest
    clients (they can pull every coordinate to the edge of it), nor clients whose data are rare: the median forgets them.

    >>> Median().combined(torch.tensor([[0.0], [1.0], [1e9]]).double(), torch.ones(3)).item()
    1.0
    """

    name: ClassVar[str] = "median"

    def combined(self, stacked: Tensor, weights: Tensor) -> Tensor:
        ordered, n = stacked.sort(dim=0).values, len(stacked)
        return (ordered[(n - 1) // 2] + ordered[n // 2]) / 2


@spec
class TrimmedMean(ByCoordinate):
    """The mean of each coordinate without its largest and smallest values: Yin et al., ICML 2018.

    Holds against a share of liars up to `share`; with more, it is a mean again. What is said of the median holds here too.

    >>> TrimmedMean(share=0.25).combined(torch.tensor([[-5.0], [1.0], [3.0], [1e9]]).double(), torch.ones(4)).item()
    2.0
    """

    name: ClassVar[str] = "trimmed-mean"

    share: Annotated[float, Field(gt=0, lt=0.5)] = 0.2
    """Of those who answered, left out at each end; rounded up, as far as somebody stays."""

    def combined(self, stacked: Tensor, weights: Tensor) -> Tensor:
        n = len(stacked)
        cut = min(math.ceil(self.share * n - 1e-9), (n - 1) // 2)
        return stacked.sort(dim=0).values[cut : n - cut].mean(0)


@spec
class Krum(ByCoordinate):
    """The reply that is nearest to its neighbours: Blanchard et al., "Machine Learning with Adversaries", NeurIPS 2017.

    Holds against `liars` among at least 2 `liars` + 3 who answer. It throws away what all others learned (`keep` more to lose less),
    prefers the common over the rare where data differ between clients, and liars that agree on a small lie look like good neighbours.

    >>> near = [{"w": torch.tensor([value])} for value in (0.0, 0.1, 0.3, 0.2, 9.0)]
    >>> Krum(liars=1).chosen(near), Krum(liars=1, keep=3).chosen(near)
    ([1], [0, 1, 3])
    """

    name: ClassVar[str] = "krum"

    liars: Count = 1
    """How many it must hold against."""
    keep: Count = 1
    """How many of the nearest are averaged (Multi-Krum)."""

    def chosen(self, replies: Sequence[Mapping[str, Tensor]]) -> Sequence[int]:
        n = len(replies)
        if n < 2 * self.liars + 3 or self.keep > n - self.liars:
            least = max(2 * self.liars + 3, self.keep + self.liars)
            raise RunError(f"method.aggregation: krum with liars = {self.liars} and keep = {self.keep} needs {least} replies, {n} came")
        floats = [[value.double().flatten() for value in each.values() if value.is_floating_point()] for each in replies]
        flat = torch.stack([torch.cat(each) for each in floats])
        distances = torch.stack([(flat - one).square().sum(1) for one in flat])
        scores = distances.sort(dim=1).values[:, 1 : n - self.liars - 1].sum(1)
        return sorted(sorted(range(n), key=lambda at: (float(scores[at]), at))[: self.keep])

    def combined(self, stacked: Tensor, weights: Tensor) -> Tensor:
        return stacked.mean(0)


@spec
class Private(Aggregation):
    """Central differential privacy for clients: McMahan et al., "Learning Differentially Private Recurrent Language Models", ICLR 2018.

    Updates are clipped and summed, Gaussian noise of `noise` times `clip` is added to every coordinate, and the sum is divided by how many
    were asked, so that nobody's absence shows. `epsilon` says what that is worth. It protects what a client holds from whoever sees
    the models that come out; not from the server, who sees updates before the noise, not what else is sent or measured (accuracies,
    losses, logs are exact), and it makes no liar honest. Noise from the experiment's seed can be subtracted by all who know the seed: for
    real participants say `seeded = false`, which is the one setting whose runs do not repeat.

    >>> Private(noise=1.0).clip
    1.0
    """

    name: ClassVar[str] = "private"

    clip: Positive = 1.0
    noise: Positive = 1.0
    """The standard deviation of the noise in the sum, as a multiple of `clip`."""
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    """The delta at which epsilon is told."""
    seeded: bool = True
    """Whether noise comes from the experiment's seed, to be repeated, or from the machine's own randomness, to be private."""

    def merged(self, replies: Sequence[Record], weights: Sequence[float], sent: Sent) -> Record:
        total = sent.around.map(lambda old: torch.zeros_like(old, dtype=torch.float64))
        for reply in self._clipped(replies, sent.around):
            update = reply.combine(sent.around, lambda new, old: new.double() - old.double())
            total = total.combine(update, torch.add)
        source, asked = self._source(sent), max(sent.asked, len(replies))

        def step(old: Tensor, sum_: Tensor) -> Tensor:
            drawn = torch.randn(old.shape, generator=source, dtype=torch.float64)
            return (old.double() + (sum_ + self.noise * self.clip * drawn) / asked).to(old.dtype)

        return sent.around.combine(total, step)

    def _source(self, sent: Sent) -> torch.Generator:
        if self.seeded and sent.noise is not None:
            return sent.noise()
        source = torch.Generator()
        source.seed()
        return source

    def epsilon(self, rounds: int) -> float:
        """What a client that took part in so many rounds has spent, at `delta`: adding or removing all that it holds.

        Computed by Google's dp-accounting. No credit is taken for cohorts being drawn: they come from the experiment's seed, which
        participants know.

        >>> round(Private(noise=4.0).epsilon(rounds=10), 2)
        3.62
        """
        try:
            import dp_accounting
            from dp_accounting.rdp import RdpAccountant
        except ImportError:
            raise UserError("method.aggregation = 'private' needs an accountant: pip install 'coterie[privacy]'") from None
        event = dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(self.noise), rounds)
        return float(RdpAccountant().compose(event).get_epsilon(self.delta))


AGGREGATIONS: Registry[Aggregation] = Registry("aggregation", Aggregation, [WeightedMean, Median, TrimmedMean, Krum, Private])
Aggregator = Annotated[Aggregation, field_of(AGGREGATIONS, "method.aggregation")]
"""A setting of a method that averages."""
MEAN = WeightedMean()
