"""The one training loop. It takes a description of what to train and gives back what came out; nothing else follows a gradient.

Networks that stay frozen beside the trained one (a teacher, an anchor, a global extractor) are functions of the input: their outputs
over the local data are computed once and looked up by sample, or per batch when augmentation makes every image new. What is known by
sample from elsewhere (the consensus of a federation about public data) is looked up in the same way.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TypeAlias, TypedDict, Unpack

import torch
from torch import Tensor, nn

from coterie.data.examples import Samples
from coterie.devices import CPU, Device
from coterie.record import EMPTY, Record
from coterie.seeds import generator, scoped, seed_of
from coterie.training.dense import Backward, layers_of
from coterie.training.descent import Descends, descent_of, laid_in_a_row, tied
from coterie.training.objectives import Objective, Step
from coterie.training.score import EVALUATION_BATCH, Output, load, score
from coterie.training.settings import Training

__all__ = ["Fitted", "Frozen", "Options", "fit", "frozen", "outputs_of", "snapshot"]

Frozen: TypeAlias = Callable[[Tensor], Tensor]
Batch: TypeAlias = tuple[Tensor, Tensor, Mapping[str, Tensor]]
"""Inputs, labels, and what the frozen networks say of them."""
MADE_AT_ONCE = 8 * 2**20
"""Bytes of inputs that are made in one go: a small client's whole epoch, and never much of a large one's."""


@dataclass(frozen=True)
class Fitted:
    """What training gives back.

    >>> from coterie.testing import small_experiment
    >>> from coterie.methods.fedavg import FedAvg
    >>> from coterie.site import ModelCache
    >>> from coterie.training.objectives import CrossEntropy
    >>> site = small_experiment(FedAvg()).population().site(0, 1, ModelCache())
    >>> fitted = site.fit(site.fresh(), CrossEntropy())
    >>> fitted.samples == 2 * len(site.train), fitted.lr  # two epochs
    (True, 0.1)
    """

    params: Record
    """The whole state of the network: parameters and buffers."""
    optimiser: Record
    """The optimiser's state, by parameter, where it is kept between rounds, else empty."""
    loss: float
    """Mean loss over the last epoch; nan when there was no step."""
    parts: tuple[float, ...]
    """The same for each term of the objective, where it is a sum of several."""
    steps: int
    samples: int
    """How many samples it went through, those seen twice counted twice."""
    lr: float
    """The learning rate of this fit, its schedule included."""


class Options(TypedDict, total=False):
    """What a training may have beside the usual; `Site.fit` takes the same."""

    frozen: Mapping[str, Frozen | Tensor]
    """Functions whose outputs the objective finds in `step.frozen`, or tensors with a row for each sample of the data."""
    optimiser: Record
    """The optimiser's state that an earlier fit returned, where `training` keeps it."""
    trainable: Callable[[str], bool]
    """Which parameters move, by name; all, unless said."""
    step: type[Step]
    """How features and logits come about, where that is not `model(x)`."""
    rate: Callable[[int], float]
    """What the learning rate is multiplied with at each step (the first is 0), beside the schedule over rounds."""
    clip_apart: Sequence[str]
    """Beginnings of names: gradients of the parameters under each are clipped by themselves."""
    validation: Samples
    """What is looked at after every epoch: what was best on it is given back."""
    patience: int  # steps without a better accuracy on it, after which training stops


def fit(
    model: nn.Module,
    start: Record,
    data: Samples,
    objective: Objective,
    training: Training,
    *,
    seed: int,
    round: int = 1,
    device: Device = CPU,
    **options: Unpack[Options],
) -> Fitted:
    """Train `model` from `start` on `data` for the epochs, or the steps, of `training`.

    Args:
        model: the network; its present weights do not matter.
        start: the state it begins from; never changed.
        data: what to train on; the order of samples comes from `seed`.
        objective: what to minimise.
        training: epochs, batch, optimiser and so on.
        seed: decides the order of samples, dropout and augmentation.
        round: for the learning-rate schedule.
        device: where `model` is.
        options: see `Options`.
    """
    if device.at != CPU.at:
        objective = objective.placed(device.put)
    trained = _Tensors.of(model, start, objective, training, device, options) or _Network(model, start, device, options)
    loop = _Loop(trained, start, data, objective, training, seed, round, device, options)
    best = _Best(trained, options.get("validation"), options.get("patience"), device)
    losses = list[list[Tensor]]()
    with scoped(dropout := seed_of(seed, "dropout")):
        device.seed(dropout)
        for epoch, sizes in enumerate(sizes_of(model, len(data), training)):
            losses = loop.epoch(sizes, epoch)
            if best.settled(loop.steps):
                break
    loss, *parts = _means(losses, device) or [math.nan]
    return Fitted(best.params(), loop.optimiser_state(), loss, tuple(parts), loop.steps, loop.samples, loop.lr)


class _Network:
    """What is trained: a network, in its module."""

    descent: Descends | None = None
    gradients: Backward | None = None
    """How it takes a step, or how its gradients come about, where that is written out."""

    def __init__(self, model: nn.Module, start: Record, device: Device, options: Options) -> None:
        load(model, start)
        model.train()
        self.model, self._device = model, device
        self.moving: Mapping[str, Tensor] = _moving(model, options.get("trainable", lambda name: True))

    def write_out(self, objective: Objective, training: Training) -> None:
        """See whether its steps, or at least its gradients, can be written out."""
        self.descent = descent_of(self.model, self.moving, objective, training, derived)
        self.gradients = None if self.descent else Backward.of(self.model, self.moving, objective)

    @property
    def written(self) -> bool:
        """Whether they are, and nothing of the network is derived."""
        return self.descent.written if self.descent is not None else self.gradients is not None

    def params(self) -> Record:
        """What it is now."""
        return snapshot(self.model, self._device)


class _Tensors(_Network):
    """Dense networks whose steps are written out: nobody asks a module for anything, so weights are not brought there and back."""

    def __init__(self, model: nn.Module, start: Mapping[str, Tensor], device: Device, *, in_a_row: bool) -> None:
        self.model, self._device, self._in_a_row = model, device, in_a_row
        given = {name: device.put(value) for name, value in start.items()}
        self.moving = laid_in_a_row(given) if in_a_row else {name: value.clone() for name, value in given.items()}

    @classmethod
    def of(
        cls, model: nn.Module, start: Record, objective: Objective, training: Training, device: Device, options: Options
    ) -> _Tensors | None:
        """For a training that can do so; else None."""
        if not objective.written or options.keys() & {"step", "trainable", "validation"}:
            return None
        nets = [getattr(model, name) for name in objective.sides] or [model]
        given, own = start.tensors, dict(model.named_parameters())
        if own.keys() != given.keys() or any(layers_of(net) is None for net in nets):
            return None
        if any(own[name].shape != value.shape or own[name].dtype != value.dtype for name, value in given.items()):
            return None
        one_type = len({value.dtype for value in given.values()}) == 1
        made = cls(model, {name: given[name] for name in own}, device, in_a_row=one_type and tied(objective))
        made.write_out(objective, training)
        return made if made.written else None

    def params(self) -> Record:
        """What it is now, and will not change any more; whoever keeps one tensor keeps no other."""
        return Record({name: self._device.fetch(value.clone() if self._in_a_row else value) for name, value in self.moving.items()})


class _Loop:
    """What stays the same from step to step."""

    def __init__(
        self,
        trained: _Network,
        start: Record,
        data: Samples,
        objective: Objective,
        training: Training,
        seed: int,
        round: int,
        device: Device,
        options: Options,
    ) -> None:
        self._data, self._objective, self._training, self._seed, self._device = data, objective, training, seed, device
        self._start = {name: device.put(value) for name, value in start.tensors.items()}
        self._trained, self._model, self._moving = trained, trained.model, trained.moving
        self._parameters = tuple(self._moving.values())
        self._kind, self._apart = options.get("step", Step), options.get("clip_apart", ("",))
        self._rate: Callable[[int], float] = options.get("rate", lambda step: 1.0)
        self._known = _lookup(options.get("frozen", {}), data, training, device)
        self.lr = training.optimiser.lr * training.schedule.factor(round)
        self.steps, self.samples, self._together = 0, 0, 1
        self._mover = training.optimiser.mover(self._moving, device)
        if self._kind is Step and not trained.written:
            trained.write_out(objective, training)
        written = trained.written and objective.written
        self._following: Callable[[], AbstractContextManager[object]] = torch.inference_mode if written else nullcontext
        if training.state == "kept":
            self._mover.restore(options.get("optimiser", EMPTY))

    def epoch(self, sizes: list[int], epoch: int) -> list[list[Tensor]]:
        """A step on each batch: the losses. Where no gradient is derived, nobody keeps account of what one would need."""
        with self._following():
            return [self.step(*batch) for batch in self.made(sizes, epoch)]

    def made(self, sizes: list[int], epoch: int) -> Iterator[Batch]:
        """The batches of an epoch, of these sizes, in a seeded order; many small ones are made in one go."""
        order = order_of(len(self._data), self._seed, epoch)
        if self._training.augment != "none":
            for chosen in torch.split(order[: sum(sizes)], sizes):
                x, y = map(self._device.put, self._data.batch(chosen, generator(self._seed, "augment", epoch, self.steps)))
                yield x, y, {name: outputs(chosen, x) for name, outputs in self._known.items()}
            return
        while sizes:
            some, sizes = sizes[: self._together], sizes[self._together :]
            chosen, order = torch.split(order, [sum(some), order.shape[0] - sum(some)])
            x, y = map(self._device.put, self._data.batch(chosen))
            known = {name: outputs(chosen, x) for name, outputs in self._known.items()}
            yield from _cut(x, y, known, some)
            weight = x.nbytes + sum(each.nbytes for each in known.values())
            self._together = max(1, MADE_AT_ONCE * len(some) // max(weight, 1))

    def step(self, x: Tensor, y: Tensor, known: Mapping[str, Tensor]) -> list[Tensor]:
        """One step on some samples: its loss, and the terms of it."""
        seen = self._kind(self._model, x, y, self._start, known)
        lr, descent = self.lr * self._rate(self.steps), self._trained.descent
        loss = self._moved(seen, lr) if descent is None else descent(seen, lr)
        self.steps, self.samples = self.steps + 1, self.samples + x.shape[0]
        return [loss, *seen.parts]

    def _moved(self, seen: Step, lr: float) -> Tensor:
        """Gradients first, then what the optimiser makes of them: the loss before."""
        known = self._trained.gradients
        loss, gradients = self._differentiated(seen) if known is None else known(seen, self._objective)
        if self._training.clip is not None:
            _clip(dict(zip(self._moving, gradients, strict=True)), self._apart, self._training.clip)
        self._mover.move(gradients, lr)
        return loss

    def _differentiated(self, seen: Step) -> tuple[Tensor, Sequence[Tensor | None]]:
        loss = self._objective(seen)
        return loss.detach(), derived(loss, self._parameters)

    def optimiser_state(self) -> Record:
        """What the next fit may go on from."""
        return self._mover.state() if self._training.state == "kept" else EMPTY


def _cut(x: Tensor, y: Tensor, known: Mapping[str, Tensor], sizes: list[int]) -> Iterator[Batch]:
    """Batches that were made in one go, one by one."""
    parts = zip(*(torch.split(each, sizes) for each in known.values()), strict=True) if known else itertools.repeat(())
    for inputs, labels, said in zip(torch.split(x, sizes), torch.split(y, sizes), parts, strict=False):
        yield inputs, labels, dict(zip(known, said, strict=True))


def derived(loss: Tensor, parameters: Sequence[Tensor]) -> Sequence[Tensor | None]:
    """The gradients of a loss by parameters; None for one that it does not depend on."""
    return torch.autograd.grad(loss, list(parameters), allow_unused=True)


def _moving(model: nn.Module, trainable: Callable[[str], bool]) -> dict[str, nn.Parameter]:
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(trainable(name))
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def _clip(gradients: Mapping[str, Tensor | None], apart: Sequence[str], most: float) -> None:
    """Scale gradients down in place, those under each beginning of names by themselves: what `nn.utils.clip_grad_norm_` does to `.grad`."""
    for part in apart:
        chosen = [each for name, each in gradients.items() if each is not None and name.startswith(part)]
        factor = (most / (nn.utils.get_total_norm(chosen) + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_(chosen, factor)


def _means(rows: Sequence[Sequence[Tensor]], device: Device) -> list[float]:
    """Of each column; numbers leave the device at the end."""
    columns = [device.fetch(torch.stack(each)).tolist() for each in zip(*rows, strict=True)]
    return [sum(column) / len(column) for column in columns]


class _Best:
    """The network as it is, or, with validation data, as it was when it did best on them."""

    def __init__(self, trained: _Network, validation: Samples | None, patience: int | None, device: Device) -> None:
        self._trained, self._patience, self._device = trained, patience, device
        self._validation = validation if validation is not None and len(validation) else None
        self._found = None if self._validation is None else (self._accuracy(self._validation), trained.params(), 0)

    def settled(self, steps: int) -> bool:
        """Look at the network after an epoch; whether it has not become better for too long."""
        if self._validation is None or self._found is None:
            return False
        if (accuracy := self._accuracy(self._validation)) > self._found[0]:
            self._found = (accuracy, self._trained.params(), steps)
        return self._patience is not None and steps - self._found[2] >= self._patience

    def params(self) -> Record:
        """The state to give back."""
        return self._trained.params() if self._found is None else self._found[1]

    def _accuracy(self, validation: Samples) -> float:
        model = self._trained.model
        accuracy = score(model, snapshot(model, self._device), validation, device=self._device).metrics()["accuracy"]
        model.train()
        return accuracy


def snapshot(model: nn.Module, device: Device = CPU) -> Record:
    """The network's parameters and buffers as they are now, laid out as everybody expects them."""
    return Record(
        {name: device.fetch(value.detach().clone(memory_format=torch.contiguous_format)) for name, value in model.state_dict().items()}
    )


def sizes_of(model: nn.Module, samples: int, training: Training) -> Iterator[list[int]]:
    """The sizes of every epoch's batches, until there were enough epochs or, where steps are counted, enough steps.

    A last batch of one sample is left out where the network has BatchNorm: one sample has no batch statistics.

    >>> list(sizes_of(nn.Identity(), 5, Training(batch=2, epochs=2)))
    [[2, 2, 1], [2, 2, 1]]
    """
    size = max(samples if training.batch == "all" else training.batch, 1)
    sizes = [min(size, samples - at) for at in range(0, samples, size)]
    if sizes and sizes[-1] == 1 and any(isinstance(each, nn.modules.batchnorm._BatchNorm) for each in model.modules()):
        sizes = [each for each in sizes if each > 1]
    if training.steps is None:
        yield from itertools.repeat(sizes, training.epochs)
    left = training.steps or 0
    while sizes and left > 0:
        yield sizes[:left]
        left -= len(sizes)


def order_of(samples: int, seed: int, epoch: int) -> Tensor:
    """The order in which an epoch goes through samples: its batches are pieces of it, one after the other."""
    return torch.randperm(samples, generator=generator(seed, "order", epoch))


def _lookup(
    frozen: Mapping[str, Frozen | Tensor], data: Samples, training: Training, device: Device
) -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    """For each frozen function, how to get its outputs for a batch: from a table made once, or by running it on the batch."""

    def lookup(run: Frozen | Tensor) -> Callable[[Tensor, Tensor], Tensor]:
        if not isinstance(run, Tensor) and training.augment != "none":
            return lambda chosen, x: run(x)
        table = device.put(run) if isinstance(run, Tensor) else outputs_of(run, data)
        return lambda chosen, x: table[chosen]

    return {name: lookup(run) for name, run in frozen.items()}


def frozen(model: nn.Module, params: Record, output: Output = lambda net, x: net(x)) -> Frozen:
    """A network that only looks: its output under `params`, in evaluation mode, without gradients.

    >>> net = nn.Linear(2, 1, bias=False)
    >>> frozen(net, Record(weight=torch.ones(1, 2)))(torch.ones(1, 2)).tolist()
    [[2.0]]
    """
    load(model, params)
    model.eval()

    def run(x: Tensor) -> Tensor:
        with torch.no_grad():
            return output(model, x)

    return run


def outputs_of(run: Frozen, data: Samples) -> Tensor:
    """The outputs of a frozen function over all of `data`, in order.

    >>> from coterie.testing import small_experiment
    >>> from coterie.methods.fedavg import FedAvg
    >>> from coterie.site import ModelCache
    >>> site = small_experiment(FedAvg()).population().site(0, 1, ModelCache())
    >>> len(outputs_of(lambda x: x.sum(dim=(1, 2, 3)), site.train)) == len(site.train)
    True
    """
    return torch.cat([run(x) for x, _ in data.batches(EVALUATION_BATCH)])
