"""What training minimises: a sum of terms, `CrossEntropy() + mu * Proximal()`.

A term with weight 0 is left out, so that a method whose extra term is switched off is bit for bit the method it extends.

A term's gradient is found by automatic differentiation, or, where small batches would make that the larger part of the work, written
out beside it (`back`): the same operations in the same order, so that no bit differs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coterie.models import Staged
from coterie.record import Record

__all__ = ["CrossEntropy", "Distillation", "Objective", "Proximal", "Slope", "Step", "Sum", "Weighted", "kl_divergence"]

AT = torch.ops.aten


@dataclass
class Step:
    """What an objective sees of one batch.

    >>> Step(nn.Linear(2, 3), torch.zeros(4, 2), torch.zeros(4), start={}).logits.shape
    torch.Size([4, 3])
    """

    model: nn.Module
    x: Tensor
    y: Tensor
    start: Mapping[str, Tensor]
    """The tensors training began from, by name."""
    frozen: Mapping[str, Tensor] = field(default_factory=dict)
    """Outputs of the frozen networks for this batch."""
    parts: list[Tensor] = field(default_factory=list)
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


class Slope(NamedTuple):
    """A shallow term of one batch and what it pulls at: the logits, and the parameters as such, where it looks at them."""

    value: Tensor
    logits: Tensor | None
    parameters: Sequence[Tensor | None] = ()
    """In their order; nothing where it looks at none of them."""


class Objective:
    """A term to minimise; terms add up and can be weighted.

    >>> 0.5 * CrossEntropy() + 0.0 * Proximal()
    Sum(terms=(Weighted(weight=0.5, term=CrossEntropy()),))
    """

    @property
    def stackable(self) -> bool:
        """Whether it looks at nothing but a step's network, inputs and labels, so that clients can be stacked (`training.stack`)."""
        return False

    @property
    def shallow(self) -> bool:
        """Whether it looks at a network's logits and its parameters as such only, so that the way back from logits may be written out."""
        return False

    @property
    def written(self) -> bool:
        """Whether its way back is written out, so that nothing of a step is derived."""
        return all(each.written for each in self.sides.values()) if self.sides else type(self).back is not Objective.back

    @property
    def sides(self) -> Mapping[str, Objective]:
        """Where it is a sum of what several networks minimise, parts of the one that is trained: that of each, by the name of its part.

        Each finds the others' logits among its frozen outputs, by their names.
        """
        return {}

    def placed(self, put: Callable[[Tensor], Tensor]) -> Objective:
        """The same, with the tensors that it holds, if any, put where training is: on a device, a step can look at no others."""
        return self

    def __call__(self, step: Step) -> Tensor:
        """The scalar loss of one batch."""
        raise NotImplementedError

    def back(self, step: Step, weight: Tensor, parameters: Mapping[str, Tensor]) -> Slope:
        """What a shallow term is, and a weight times its gradient by `step.logits` and by the parameters as such.

        Whoever writes it out says the same as `__call__`, derives nothing, because it is called in inference mode, and keeps no tensor that
        was made there. A subclass with a `__call__` of its own does not inherit what it no longer is.

        >>> step = Step(nn.Identity(), torch.zeros(1, 2), torch.tensor([0]), start={})
        >>> CrossEntropy().back(step, torch.tensor(1.0), {}).logits
        tensor([[-0.5000,  0.5000]])
        """
        step.logits = step.logits.detach().requires_grad_()
        value = self(step)
        if "features" in vars(step):  # their part of the gradient would be lost
            raise TypeError(f"{self} looks at features, and says `shallow`: one that inherits from such an objective must say False")
        logits, *added = torch.autograd.grad(value, [step.logits, *parameters.values()], weight, allow_unused=True)
        step.logits = step.logits.detach()
        return Slope(value.detach(), logits, added)

    def __init_subclass__(cls) -> None:
        if "__call__" in vars(cls) and "back" not in vars(cls):
            cls.back = Objective.back  # type: ignore[method-assign]

    def __add__(self, other: Objective) -> Objective:
        return Sum((*_terms(self), *_terms(other)))

    def __rmul__(self, weight: float) -> Objective:
        return Weighted(float(weight), self)


@dataclass(frozen=True)
class Weighted(Objective):
    """A term times a number."""

    weight: float
    term: Objective

    @property
    def stackable(self) -> bool:
        return self.term.stackable

    @property
    def shallow(self) -> bool:
        return self.term.shallow

    @property
    def written(self) -> bool:
        return self.term.written

    def placed(self, put: Callable[[Tensor], Tensor]) -> Objective:
        return Weighted(self.weight, self.term.placed(put))

    def __call__(self, step: Step) -> Tensor:
        return self.weight * self.term(step)

    def back(self, step: Step, weight: Tensor, parameters: Mapping[str, Tensor]) -> Slope:
        value, logits, added = self.term.back(step, weight * self.weight, parameters)
        return Slope(self.weight * value, logits, added)


@dataclass(frozen=True)
class Sum(Objective):
    """Terms added up, those with weight 0 left out."""

    terms: tuple[Objective, ...]

    @property
    def stackable(self) -> bool:
        return all(term.stackable for term in self.terms)

    @property
    def shallow(self) -> bool:
        return all(term.shallow for term in self.terms)

    @property
    def written(self) -> bool:
        return all(term.written for term in self.terms)

    def placed(self, put: Callable[[Tensor], Tensor]) -> Objective:
        return Sum(tuple(term.placed(put) for term in self.terms))

    def __call__(self, step: Step) -> Tensor:
        first, *rest = values = [term(step) for term in self.terms]
        step.parts.extend(value.detach() for value in values)
        return sum(rest, start=first)

    def back(self, step: Step, weight: Tensor, parameters: Mapping[str, Tensor]) -> Slope:
        slopes = [term.back(step, weight, parameters) for term in self.terms]
        first, *rest = values = [slope.value for slope in slopes]
        step.parts.extend(values)
        later = slopes[::-1]  # what came last is gone back from first
        pulls = [slope.parameters for slope in later if slope.parameters]
        added = pulls[0] if len(pulls) == 1 else [_added(each) for each in zip(*pulls, strict=True)]
        return Slope(sum(rest, start=first), _added([slope.logits for slope in later]), added)


def _added(pulls: Sequence[Tensor | None]) -> Tensor | None:
    there = [each for each in pulls if each is not None]
    return sum(there[1:], start=there[0]) if there else None


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

    @property
    def stackable(self) -> bool:
        return True

    @property
    def shallow(self) -> bool:
        return True

    def __call__(self, step: Step) -> Tensor:
        return F.cross_entropy(step.logits, step.y)

    def back(self, step: Step, weight: Tensor, parameters: Mapping[str, Tensor]) -> Slope:
        scores = torch.log_softmax(step.logits, 1)
        loss, total = AT.nll_loss_forward(scores, step.y, None, 1, -100)
        by_scores = AT.nll_loss_backward(weight, scores, step.y, None, 1, -100, total)
        return Slope(loss, torch._log_softmax_backward_data(by_scores, scores, 1, scores.dtype))


@dataclass(frozen=True)
class Proximal(Objective):
    """Half the squared distance of the parameters (not the buffers) to an anchor, or to where they started (Li et al. 2020, Eq. 2).

    >>> net = nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.constant_(net.weight, 0.5)
    >>> away = {"weight": net.weight.detach() - 2.0}
    >>> Proximal()(Step(net, torch.zeros(1, 1), torch.zeros(1), start=away)).item()
    2.0
    """

    anchor: Record | Mapping[str, Tensor] | None = field(default=None, repr=False, compare=False)

    @property
    def shallow(self) -> bool:
        return True

    def placed(self, put: Callable[[Tensor], Tensor]) -> Objective:
        return self if self.anchor is None else Proximal({name: put(value) for name, value in self._anchored.items()})

    def anchor_of(self, step: Step) -> Mapping[str, Tensor]:
        """What the parameters of a step are held near, by name."""
        return step.start if self.anchor is None else self._anchored

    @cached_property
    def _anchored(self) -> Mapping[str, Tensor]:
        return self.anchor.tensors if isinstance(self.anchor, Record) else self.anchor or {}

    def __call__(self, step: Step) -> Tensor:
        anchor = self.anchor_of(step)
        return _half_square([p - anchor[name] for name, p in step.model.named_parameters() if p.requires_grad])

    def back(self, step: Step, weight: Tensor, parameters: Mapping[str, Tensor]) -> Slope:
        anchor = self.anchor_of(step)
        with torch.no_grad():
            away = torch._foreach_sub(list(parameters.values()), [anchor[name] for name in parameters])
            value = _half_square(away)
            torch._foreach_mul_(away, weight)
        return Slope(value, None, away)


def _half_square(away: Sequence[Tensor]) -> Tensor:
    return 0.5 * torch.stack([flat.dot(flat) for flat in (each.reshape(-1) for each in away)]).sum()


def kl_divergence(teacher: Tensor, student: Tensor) -> Tensor:
    """KL(teacher || student) of logits, at temperature 1: summed over classes, averaged over the batch, the teacher detached.

    >>> kl_divergence(torch.tensor([[0.0, 1.0]]), torch.tensor([[1.0, 2.0]])).item()  # a shift of all logits changes nothing
    0.0
    """
    return F.kl_div(student.log_softmax(1), teacher.detach().log_softmax(1), reduction="batchmean", log_target=True)


@dataclass(frozen=True)
class Distillation(Objective):
    """The divergence of the logits from those of a teacher, found among the frozen outputs by its name.

    >>> alike = Step(nn.Identity(), torch.zeros(1, 2), torch.zeros(1), start={}, frozen={"teacher": torch.ones(1, 2)})
    >>> Distillation("teacher")(alike).item()  # a shift of all logits changes nothing
    0.0
    """

    teacher: str

    @property
    def shallow(self) -> bool:
        return True

    def __call__(self, step: Step) -> Tensor:
        return kl_divergence(step.frozen[self.teacher], step.logits)

    def back(self, step: Step, weight: Tensor, parameters: Mapping[str, Tensor]) -> Slope:
        student, teacher = step.logits.log_softmax(1), step.frozen[self.teacher].detach().log_softmax(1)
        value = F.kl_div(student, teacher, reduction="batchmean", log_target=True)
        by_scores = (teacher.exp() * (weight / len(student))).neg_()
        return Slope(value, torch._log_softmax_backward_data(by_scores, student, 1, student.dtype))
