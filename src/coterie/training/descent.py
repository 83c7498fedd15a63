"""Plain descent of dense networks: what a weight gains goes into it as it comes.

Laying a gradient down that is as large as the weight, and reading it again to add it, is more memory traffic than all the rest of a small
client's step, and a machine whose cores share a cache has little of it to spare. Sums are formed in another order than by automatic
differentiation, so that bits differ in the last place; so all trainings of such networks go this way: a method whose extra term is switched
off, and one that trains a second network beside the shared one, have the bits of the one that they extend.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coterie.training.dense import KINDS, layers_of
from coterie.training.objectives import Objective, Proximal, Step, Sum, Weighted
from coterie.training.settings import Training

__all__ = ["Descends", "Descent", "descent_of", "laid_in_a_row", "tied"]

AT = torch.ops.aten
Derive: TypeAlias = Callable[[Tensor, Sequence[Tensor]], Sequence[Tensor | None]]
"""The gradients of a loss by parameters: the loop's."""


class Descends(Protocol):
    """Takes steps, in place."""

    @property
    def written(self) -> bool:
        """Whether nothing is derived, beyond what an objective derives of itself."""

    def __call__(self, step: Step, lr: float) -> Tensor:
        """One step on a batch: its loss before."""


def descent_of(
    model: nn.Module, moving: Mapping[str, Tensor], objective: Objective, training: Training, derive: Derive | None = None
) -> Descends | None:
    """How a network descends in place, all of whose parameters go against their gradients and nothing else; None where it does not.

    Where one network of several that learn side by side is not dense, `derive` is asked for its gradients; without it, none descends.

    >>> from coterie.training.objectives import CrossEntropy
    >>> net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> descent = descent_of(net, dict(net.named_parameters()), CrossEntropy(), Training())
    >>> x, y = torch.ones(5, 4), torch.zeros(5, dtype=torch.int64)
    >>> first, second = (float(descent(Step(net, x, y, start={}), lr=0.1)) for _ in range(2))
    >>> second < first
    True
    """
    if not (training.optimiser.plain and training.clip is None):
        return None
    if not objective.sides:
        return Descent.of(model, moving, objective)
    sides: dict[str, Descent | Derived] = {}
    for name, each in objective.sides.items():
        part = {key.removeprefix(f"{name}."): value for key, value in moving.items() if key.startswith(f"{name}.")}
        net = getattr(model, name)
        found = Descent.of(net, part, each) or (derive and Derived(net, list(part.values()), each, derive))
        if found is None:
            return None
        sides[name] = found
    return SideBySide(sides) if any(isinstance(each, Descent) for each in sides.values()) else None


class Descent:
    """Steps of one dense network."""

    written = True

    def __init__(self, layers: Sequence[str], parameters: Mapping[str, Tensor], objective: Objective) -> None:
        self._parameters = parameters
        self._objective, ties = _untied(objective)
        self._ties = [_Tie(*tie, parameters) for tie in ties]
        self._weights, self._biases = ([parameters[f"{name}.{kind}"].detach() for name in layers] for kind in KINDS)
        self._values = [value.detach() for value in parameters.values()]
        self._below = list(zip(self._weights, self._biases, strict=True))[:-1]
        self._above = list(zip(self._weights, self._biases, strict=True))[:0:-1]  # from the last layer down, without the lowest
        self._one = self._weights[0].new_ones(())
        self._ones = self._one.expand(0)

    @classmethod
    def of(cls, model: nn.Module, moving: Mapping[str, Tensor], objective: Objective) -> Descent | None:
        """For a dense network, all of whose parameters move, and an objective whose way back to its logits is known; else None."""
        layers = layers_of(model) if objective.shallow else None
        named = [f"{name}.{kind}" for name in layers or () for kind in KINDS]
        return cls(layers, moving, objective) if layers and list(moving) == named else None

    def __call__(self, step: Step, lr: float) -> Tensor:
        return self.back(step, self.forward(step), lr)

    def forward(self, step: Step) -> list[Tensor]:
        """Give a step its logits; what goes into every layer."""
        given = step.x.flatten(1)
        inputs = [given]
        for weight, bias in self._below:
            given = F.linear(given, weight, bias).relu_()
            inputs.append(given)
        step.logits = F.linear(given, self._weights[-1], self._biases[-1])
        return inputs

    def back(self, step: Step, inputs: Sequence[Tensor], lr: float) -> Tensor:
        """Descend in every layer; the loss."""
        loss, back, pulls = self._objective.back(step, self._one, self._parameters)
        for tie in self._ties:
            loss = tie.stretched(step, loss)
        if back is None:
            back = torch.zeros_like(step.logits)
        if self._ones.shape[0] != back.shape[0]:
            self._ones = self._one.expand(back.shape[0])
        for (weight, bias), given in zip(self._above, reversed(inputs), strict=False):
            turned = back.t()
            below = back.mm(weight)
            weight.addmm_(turned, given, alpha=-lr)
            bias.addmv_(turned, self._ones, alpha=-lr)
            back = AT.threshold_backward(below, given, 0)
        turned = back.t()
        self._weights[0].addmm_(turned, inputs[0], alpha=-lr)
        self._biases[0].addmv_(turned, self._ones, alpha=-lr)
        if pulled := [pair for pair in zip(self._values, pulls, strict=bool(pulls)) if pair[1] is not None]:
            torch._foreach_sub_(*zip(*pulled, strict=True), alpha=lr)
        for tie in self._ties:
            tie.pull(lr)
        return loss


class _Tie:
    """A proximal term of the objective, at its place among the others: over all weights at once, where they lie in a row."""

    def __init__(self, at: int, weight: float, term: Proximal, parameters: Mapping[str, Tensor]) -> None:
        self._at, self._weight, self._term, self._names = at, weight, term, list(parameters)
        self._here = _in_a_row([value.detach() for value in parameters.values()])
        self._anchor: tuple[Mapping[str, Tensor], list[Tensor]] | None = None
        self._away: tuple[Tensor, ...] = ()

    def stretched(self, step: Step, loss: Tensor) -> Tensor:
        """A loss, with what the term adds to it; the weights are still those before the step."""
        self._away = torch._foreach_sub(self._here, self._anchored(step))
        first, *rest = (row.dot(row) for row in (each.reshape(-1) for each in self._away))
        value = sum(rest, start=first) * (0.5 * self._weight)
        if not step.parts:
            step.parts.append(loss)
        step.parts.insert(self._at, value)
        return loss + value

    def pull(self, lr: float) -> None:
        """Descend."""
        torch._foreach_sub_(self._here, self._away, alpha=lr * self._weight)

    def _anchored(self, step: Step) -> list[Tensor]:
        """Where the weights are tied to, laid out as they are, once for all steps."""
        anchor = self._term.anchor_of(step)
        if self._anchor is None or self._anchor[0] is not anchor:
            tensors = [anchor[name] for name in self._names]
            self._anchor = anchor, tensors if len(self._here) > 1 else [torch.cat([each.reshape(-1) for each in tensors])]
        return self._anchor[1]


def tied(objective: Objective) -> bool:
    """Whether a proximal term is one of several, so that descent looks at all weights together: they had better lie in a row.

    >>> from coterie.training.objectives import CrossEntropy
    >>> tied(CrossEntropy() + 0.1 * Proximal()), tied(CrossEntropy())
    (True, False)
    """
    return bool(_untied(objective)[1])


def _untied(objective: Objective) -> tuple[Objective, list[tuple[int, float, Proximal]]]:
    """An objective without its proximal terms, and those, with their places and weights; as it is, where it is nothing else."""
    terms = objective.terms if isinstance(objective, Sum) else (objective,)
    both = [(each.weight, each.term) if isinstance(each, Weighted) else (1.0, each) for each in terms]
    ties = [(at, weight, term) for at, (weight, term) in enumerate(both) if type(term) is Proximal]
    rest = tuple(each for each, (_, term) in zip(terms, both, strict=True) if type(term) is not Proximal)
    if not ties or not rest:
        return objective, []
    return rest[0] if len(rest) == 1 else Sum(rest), ties


def laid_in_a_row(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies that lie one behind the other in memory, for a term that looks at all of them.

    >>> laid = laid_in_a_row({"weight": torch.ones(2, 2), "bias": torch.zeros(2)})
    >>> [each.tolist() for each in _in_a_row(list(laid.values()))]
    [[1.0, 1.0, 1.0, 1.0, 0.0, 0.0]]
    """
    row = torch.cat([value.reshape(-1) for value in tensors.values()])
    parts = torch.split(row, [value.numel() for value in tensors.values()])
    return {name: part.view(value.shape) for (name, value), part in zip(tensors.items(), parts, strict=True)}


def _in_a_row(tensors: list[Tensor]) -> list[Tensor]:
    """Tensors that lie one behind the other in memory as one, all others as they are.

    >>> a, b = torch.arange(6).split([4, 2])
    >>> [each.tolist() for each in _in_a_row([a.view(2, 2), b])], len(_in_a_row([b, a]))
    ([[0, 1, 2, 3, 4, 5]], 2)
    """
    begin = end = tensors[0].storage_offset()
    for each in tensors:
        if _memory_of(each) != _memory_of(tensors[0]) or each.storage_offset() != end or not each.is_contiguous():
            return tensors
        end += each.numel()
    return [tensors[0].as_strided((end - begin,), (1,), begin)]


def _memory_of(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


class Derived:
    """Steps of any other network, beside a dense one."""

    def __init__(self, net: nn.Module, parameters: Sequence[Tensor], objective: Objective, derive: Derive) -> None:
        self._net, self._parameters, self._objective, self._derive = net, parameters, objective, derive

    def forward(self, step: Step) -> list[Tensor]:
        """Give a step its logits."""
        step.logits = self._net(step.x)
        return []

    def back(self, step: Step, inputs: Sequence[Tensor], lr: float) -> Tensor:
        """Descend; the loss."""
        loss = self._objective(step)
        with torch.no_grad():
            for parameter, gradient in zip(self._parameters, self._derive(loss, self._parameters), strict=True):
                if gradient is not None:
                    parameter.add_(gradient, alpha=-lr)
        return loss.detach()


class SideBySide:
    """Steps of several networks on the same batch, each of which may look at the others' logits."""

    def __init__(self, each: Mapping[str, Descent | Derived]) -> None:
        self._each = each
        self.written = all(isinstance(one, Descent) for one in each.values())

    def __call__(self, step: Step, lr: float) -> Tensor:
        steps = {name: Step(step.model, step.x, step.y, step.start) for name in self._each}
        inputs = {name: descent.forward(steps[name]) for name, descent in self._each.items()}
        for name, one in steps.items():
            one.frozen = {other: each.logits.detach() for other, each in steps.items() if other != name}
        losses = [descent.back(steps[name], inputs[name], lr) for name, descent in self._each.items()]
        return sum(losses[1:], start=losses[0])
