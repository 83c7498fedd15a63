"""The one training loop. It takes a description of what to train and gives back what came out; nothing else calls `backward`.

An objective is a sum of terms, `CrossEntropy() + mu * Proximal()`; a term with weight 0 is left out, so that a method whose
extra term is switched off is bit for bit the method it extends. Networks that stay frozen beside the trained one (a teacher,
an anchor, a global extractor) are functions of the input: their outputs over the local data are computed once and looked up
by sample, or per batch when augmentation makes every image new. What is known by sample from elsewhere (the consensus of a
federation about public data) is looked up in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from coterie.data.examples import Samples
from coterie.models.pair import PairNet
from coterie.record import EMPTY, Record
from coterie.seeds import generator, scoped, seed_of
from coterie.training.objectives import Objective, Step
from coterie.training.optimisers import restore, state_of
from coterie.training.settings import Training

__all__ = ["Fitted", "fit", "frozen", "outputs_of", "snapshot"]

Frozen = Callable[[Tensor], Tensor]


EVALUATION_BATCH = 64
"""Large enough for small networks, and its maps still fit a core's cache: 500 is a third slower for the papers' CNNs."""


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
