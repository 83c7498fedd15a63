"""The one training loop. It takes a description of what to train and gives back what came out; nothing else calls `backward`.

An objective is a sum of terms, `CrossEntropy() + mu * Proximal()`; a term with weight 0 is left out, so that a method whose
extra term is switched off is bit for bit the method it extends. Networks that stay frozen beside the trained one (a teacher,
an anchor, a global extractor) are functions of the input: their outputs over the local data are computed once and looked up
by sample, or per batch when augmentation makes every picture new. What is known by sample from elsewhere (the consensus of a
federation about public data) is looked up in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from dataclasses import replace as replace_fields
from functools import cached_property
from typing import Annotated, Any, Literal

import torch
from pydantic import BeforeValidator, Field, PlainSerializer
from pydantic.dataclasses import dataclass as settings
from torch import Tensor, nn
from torch.nn import functional as F

from coterie.data.examples import Samples
from coterie.models import Staged
from coterie.models.pair import PairNet
from coterie.named import STRICT
from coterie.optim import OPTIMISERS, SCHEDULES, Constant, Optimiser, Schedule, Sgd, StatePolicy, restore, state_of
from coterie.record import EMPTY, Record
from coterie.seeds import generator, scoped, seed_of

__all__ = [
    "CrossEntropy",
    "Fitted",
    "Imitation",
    "Objective",
    "Proximal",
    "Scores",
    "Step",
    "Training",
    "divergence",
    "fit",
    "frozen",
    "outputs_of",
    "score",
    "snapshot",
]

Frozen = Callable[[Tensor], Tensor]
EVALUATION_BATCH = 64
"""Large enough for small networks, and its maps still fit a core's cache: 500 is a third slower for the papers' CNNs."""


@settings(frozen=True, config=STRICT)
class Training:
    """How a participant trains in one round.

    >>> Training(epochs=5, batch="all").optimiser.lr
    0.1
    """

    epochs: Annotated[int, Field(ge=0)] = 1
    batch: Annotated[int, Field(ge=1)] | Literal["all"] = 32
    optimiser: Annotated[
        Optimiser,
        BeforeValidator(lambda value: OPTIMISERS.resolve(value, "training.optimiser")),
        PlainSerializer(OPTIMISERS.dump),
    ] = field(default_factory=Sgd)
    schedule: Annotated[
        Schedule, BeforeValidator(lambda value: SCHEDULES.resolve(value, "training.schedule")), PlainSerializer(SCHEDULES.dump)
    ] = field(default_factory=Constant)
    state: StatePolicy = "fresh"
    """Whether the optimiser's state (momentum, moments) starts anew every round or is kept by the client."""
    clip: Annotated[float, Field(gt=0)] | None = None
    """Gradient norms above this are scaled down to it; two networks trained side by side are clipped each by itself."""
    augment: Literal["none", "crop-flip"] = "none"

    def but(self, **changes: Any) -> Training:
        """These settings with some of them changed."""
        return replace_fields(self, **changes)


@dataclass
class Step:
    """What an objective sees of one batch."""

    model: nn.Module
    x: Tensor
    y: Tensor
    start: Mapping[str, Tensor]
    """The tensors training began from, by name."""
    frozen: Mapping[str, Tensor] = field(default_factory=dict)
    """Outputs of the frozen networks for this batch."""
    parts: list[float] = field(default_factory=list)
    """What each term of a sum came to, its weight included."""

    @cached_property
    def features(self) -> Tensor:
        """What the head of a staged network sees."""
        if not isinstance(self.model, Staged):
            raise TypeError("features need a coterie.models.Staged network: named stages ending in a head")
        return self.model.features(self.x)

    @cached_property
    def logits(self) -> Tensor:
        """Class scores; of a staged network they come from `features`, so that both cost one pass."""
        out: Tensor = self.model[-1](self.features) if isinstance(self.model, Staged) else self.model(self.x)
        return out


class Objective:
    """A term to minimise; terms add up and can be weighted.

    >>> 0.5 * CrossEntropy() + 0.0 * Proximal()
    Sum(terms=(Weighted(weight=0.5, term=CrossEntropy()),))
    """

    def __call__(self, step: Step) -> Tensor:
        """The scalar loss of one batch."""
        raise NotImplementedError

    def __add__(self, other: Objective) -> Objective:
        return Sum((*_terms(self), *_terms(other)))

    def __rmul__(self, weight: float) -> Objective:
        return Weighted(float(weight), self)


@dataclass(frozen=True)
class Weighted(Objective):
    """A term times a number."""

    weight: float
    term: Objective

    def __call__(self, step: Step) -> Tensor:
        return self.weight * self.term(step)


@dataclass(frozen=True)
class Sum(Objective):
    """Terms added up, those with weight 0 left out."""

    terms: tuple[Objective, ...]

    def __call__(self, step: Step) -> Tensor:
        first, *rest = values = [term(step) for term in self.terms]
        step.parts.extend(value.item() for value in values)
        return sum(rest, start=first)


def _terms(objective: Objective) -> tuple[Objective, ...]:
    if isinstance(objective, Sum):
        return objective.terms
    return () if isinstance(objective, Weighted) and objective.weight == 0 else (objective,)


@dataclass(frozen=True)
class CrossEntropy(Objective):
    """Mean cross-entropy of the logits.

    >>> step = Step(nn.Identity(), torch.zeros(2, 4), torch.tensor([0, 3]), start={})
    >>> round(CrossEntropy()(step).item(), 4)  # log 4
    1.3863
    """

    def __call__(self, step: Step) -> Tensor:
        return F.cross_entropy(step.logits, step.y)


@dataclass(frozen=True)
class Proximal(Objective):
    """Half the squared distance of the parameters (not the buffers) to where they started (Li et al. 2020, Eq. 2).

    >>> net = nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.constant_(net.weight, 0.5)
    >>> away = {"weight": net.weight.detach() - 2.0}
    >>> Proximal()(Step(net, torch.zeros(1, 1), torch.zeros(1), start=away)).item()
    2.0
    """

    def __call__(self, step: Step) -> Tensor:
        distances = [(p - step.start[name]).square().sum() for name, p in step.model.named_parameters() if p.requires_grad]
        return 0.5 * torch.stack(distances).sum()


def divergence(teacher: Tensor, student: Tensor) -> Tensor:
    """KL(teacher || student) of logits, at temperature 1: summed over classes, averaged over the batch, the teacher detached.

    >>> divergence(torch.tensor([[0.0, 1.0]]), torch.tensor([[1.0, 2.0]])).item()  # a shift of all logits changes nothing
    0.0
    """
    return F.kl_div(student.log_softmax(1), teacher.detach().log_softmax(1), reduction="batchmean", log_target=True)


@dataclass(frozen=True)
class Imitation(Objective):
    """The divergence of the logits from those of a teacher, found among the frozen outputs by its name."""

    teacher: str

    def __call__(self, step: Step) -> Tensor:
        return divergence(step.frozen[self.teacher], step.logits)


@dataclass(frozen=True)
class Fitted:
    """What training gives back."""

    params: Record
    """The whole state of the network: parameters and buffers."""
    carried: Record
    """The optimiser's state as `Record(optimiser=...)` where it is kept between rounds, else empty."""
    loss: float
    """Mean loss over the last epoch; nan when there was no step."""
    parts: tuple[float, ...]
    """The same for each term of the objective, where it is a sum of several."""
    steps: int


def fit(
    model: nn.Module,
    start: Record,
    data: Samples,
    objective: Objective,
    training: Training,
    *,
    seed: int,
    round: int = 1,
    frozen: Mapping[str, Frozen | Tensor] | None = None,
    carried: Record = EMPTY,
    trainable: Callable[[str], bool] = lambda name: True,
    step: type[Step] = Step,
    rate: Callable[[int], float] = lambda step: 1.0,
) -> Fitted:
    """Train `model` from `start` on `data` for `training.epochs` epochs.

    Args:
        model: the network; its present weights do not matter.
        start: the state it begins from; never changed.
        data: what to train on; the order of samples comes from `seed`.
        objective: what to minimise.
        training: epochs, batch, optimiser and so on.
        seed: decides the order of samples, dropout and augmentation.
        round: for the learning-rate schedule.
        frozen: functions whose outputs the objective finds in `step.frozen`, or tensors with a row for each sample of `data`.
        carried: what an earlier `fit` returned as `carried`.
        trainable: which parameters move, by name.
        step: how features and logits come about, where that is not `model(x)`.
        rate: what the learning rate is multiplied with at each step (the first is 0), beside the schedule over rounds.
    """
    model.load_state_dict(start.tensors)
    model.train()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(trainable(name))
    moving = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    lr = training.optimiser.lr * training.schedule.factor(round)
    optimiser = training.optimiser.build(moving.values(), lr)
    if training.state == "kept":
        restore(optimiser, moving, carried.group("optimiser"))
    anchor, losses, parts, steps = start.tensors, list[float](), list[list[float]](), 0
    known = _lookup(frozen or {}, data, training)
    with scoped(seed_of(seed, "dropout")):
        for epoch in range(training.epochs):
            losses, parts = [], []
            for chosen in batches_of(model, len(data), training, seed, epoch):
                x, y = data.batch(chosen, generator(seed, "augment", epoch, steps) if training.augment != "none" else None)
                seen = step(model, x, y, anchor, {name: outputs(chosen, x) for name, outputs in known.items()})
                loss = objective(seen)
                for group in optimiser.param_groups:
                    group["lr"] = lr * rate(steps)
                optimiser.zero_grad(set_to_none=True)
                loss.backward()  # type: ignore[no-untyped-call]
                if training.clip is not None:
                    for part in model.networks if isinstance(model, PairNet) else ("",):
                        nn.utils.clip_grad_norm_([p for name, p in moving.items() if name.startswith(part)], training.clip)
                optimiser.step()
                losses.append(loss.item())
                parts.append(seen.parts)
                steps += 1
    kept = Record(optimiser=state_of(optimiser, moving)) if training.state == "kept" else EMPTY
    means = tuple(sum(column) / len(column) for column in zip(*parts, strict=True))
    return Fitted(snapshot(model), kept, sum(losses) / len(losses) if losses else float("nan"), means, steps)


def snapshot(model: nn.Module) -> Record:
    """The network's parameters and buffers as they are now."""
    return Record({name: value.detach().clone() for name, value in model.state_dict().items()})


def batches_of(model: nn.Module, samples: int, training: Training, seed: int, epoch: int) -> list[Tensor]:
    """The positions of each batch of one epoch, in a seeded order.

    A last batch of one sample is left out where the network has BatchNorm: one sample has no batch statistics.
    """
    size = samples if training.batch == "all" else training.batch
    order = torch.randperm(samples, generator=generator(seed, "order", epoch))
    normed = any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())
    return [batch for batch in torch.split(order, max(size, 1)) if len(batch) > (1 if normed else 0)]


def _lookup(frozen: Mapping[str, Frozen | Tensor], data: Samples, training: Training) -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    """For each frozen function, how to get its outputs for a batch: from a table made once, or by running it on the batch."""

    def lookup(run: Frozen | Tensor) -> Callable[[Tensor, Tensor], Tensor]:
        if not isinstance(run, Tensor) and training.augment != "none":
            return lambda chosen, x: run(x)
        table = run if isinstance(run, Tensor) else outputs_of(run, data)
        return lambda chosen, x: table[chosen]

    return {name: lookup(run) for name, run in frozen.items()}


def frozen(model: nn.Module, params: Record, output: Callable[[nn.Module, Tensor], Tensor] = lambda net, x: net(x)) -> Frozen:
    """A network that only looks: its output under `params`, in evaluation mode, without gradients."""
    model.load_state_dict(params.tensors)
    model.eval()

    def run(x: Tensor) -> Tensor:
        with torch.no_grad():
            return output(model, x)

    return run


def outputs_of(run: Frozen, data: Samples) -> Tensor:
    """The outputs of a frozen function over all of `data`, in order."""
    return torch.cat([run(x) for x, _ in data.batches(EVALUATION_BATCH)])


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
