"""Dense networks, whose gradients are written out: of one, bit for bit what automatic differentiation gives, and of a stack of them.

For a batch of ten the bookkeeping of automatic differentiation takes longer than the matrix products. A stack goes further: gradients go
into the weights as they come, where making them first and adding them then would be more memory traffic than arithmetic. Where all of a
stack start from the same weights and see few samples, which is what small clients do, weights are not even written until the end:
what plain descent has added to them is a sum of as many outer products as there were samples, and products with it need only those.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coterie.training.objectives import Objective, Step

__all__ = ["KINDS", "Backward", "Dense", "Span", "layers_of", "mean_of", "norms_of", "one_of"]

AT = torch.ops.aten
KINDS = ("weight", "bias")


def layers_of(model: nn.Module) -> list[str] | None:
    """The names of a network's linear layers, where it is nothing but those with a ReLU between each two, after at most a flattening.

    >>> layers_of(nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)))
    ['1', '3']
    >>> layers_of(nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))) is None
    True
    """
    named = list[tuple[str, nn.Module]]()
    for name, each in model.named_modules():
        if each._forward_hooks or each._forward_pre_hooks or each._backward_hooks:
            return None
        if not each._modules:
            if not (isinstance(each, nn.Dropout) and each.p == 0):
                named.append((name, each))
        elif type(each).forward is not nn.Sequential.forward:
            return None
    if named and type(named[0][1]) is nn.Flatten and (named[0][1].start_dim, named[0][1].end_dim) == (1, -1):
        named = named[1:]
    kinds = [type(each) for _, each in named]
    linear = [name for name, each in named if isinstance(each, nn.Linear) and each.bias is not None]
    alternate = kinds == [nn.Linear, nn.ReLU] * (len(kinds) // 2) + [nn.Linear]
    return linear if alternate and len(linear) == len(kinds) // 2 + 1 else None


class Backward:
    """The loss and the gradients of one dense network: the operations of automatic differentiation in their order, so that no bit differs.

    >>> from coterie.training.objectives import CrossEntropy
    >>> net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> step = Step(net, torch.ones(5, 4), torch.zeros(5, dtype=torch.int64), start={})
    >>> loss, gradients = Backward(["0", "2"], dict(net.named_parameters()))(step, CrossEntropy())
    >>> same = torch.autograd.grad(CrossEntropy()(Step(net, step.x, step.y, start={})), list(net.parameters()))
    >>> all(map(torch.equal, gradients, same))
    True
    """

    def __init__(self, layers: Sequence[str], parameters: Mapping[str, Tensor]) -> None:
        self._parameters = parameters
        self._weights = [parameters[f"{name}.weight"].detach() for name in layers]
        self._biases = [parameters[f"{name}.bias"].detach() for name in layers]
        self._turned = [weight.t() for weight in self._weights]  # what moves a weight moves this view of it
        self._one = self._weights[0].new_ones(())

    @classmethod
    def of(cls, model: nn.Module, moving: Mapping[str, Tensor], objective: Objective) -> Backward | None:
        """For a network and an objective that it can be used with, all of whose parameters move; else None."""
        layers = layers_of(model) if objective.shallow else None
        named = [f"{name}.{kind}" for name in layers or () for kind in KINDS]
        if layers is None or list(moving) != named:
            return None
        narrow = any(moving[f"{name}.weight"].shape[1] == 1 for name in layers[1:])  # a product of one by one is taken the other way round
        return None if narrow else cls(layers, moving)

    def __call__(self, step: Step, objective: Objective) -> tuple[Tensor, list[Tensor]]:
        """Of one batch; gradients in the order of the parameters."""
        inputs = [step.x.reshape(len(step.x), -1)]
        for turned, bias in zip(self._turned[:-1], self._biases[:-1], strict=True):
            inputs.append(torch.addmm(bias, inputs[-1], turned).relu_())
        step.logits = torch.addmm(self._biases[-1], inputs[-1], self._turned[-1])
        loss, by_logits, added = objective.back(step, self._one, self._parameters)
        back = torch.zeros_like(step.logits) if by_logits is None else by_logits
        gradients = list[Tensor]()
        for weight, given in zip(reversed(self._weights), reversed(inputs), strict=True):
            gradients += [back.sum(0), back.t().mm(given)]
            if given is not inputs[0]:
                back = AT.threshold_backward(back.mm(weight), given, 0)
        if not added:
            return loss, gradients[::-1]
        return loss, [each if more is None else each + more for each, more in zip(reversed(gradients), added, strict=True)]


class Dense:
    """Stacked dense networks that minimise the cross-entropy by plain descent; what they are is changed in place.

    >>> weights = {"0.weight": torch.zeros(2, 3, 4), "0.bias": torch.zeros(2, 3)}  # two clients
    >>> net = Dense(["0"], weights, lr=0.1)
    >>> [loss] = net.steps(torch.ones(2, 5, 4), torch.zeros(2, 5, dtype=torch.int64), [5])
    >>> [round(float(each), 4) for each in loss]  # log 3
    [1.0986, 1.0986]
    >>> bool(weights["0.bias"][0, 0] > 0)
    True
    """

    def __init__(self, layers: Sequence[str], tensors: Mapping[str, Tensor], lr: float, decay: float = 1.0) -> None:
        self._layers = [_Stacked(tensors[f"{name}.weight"], tensors[f"{name}.bias"], lr, decay) for name in layers]
        self._tensors = tensors

    def steps(self, x: Tensor, y: Tensor, sizes: list[int]) -> list[Tensor]:
        """Steps on batches that follow each other (clients x samples x ...): the mean losses of each client before every step."""
        batches = zip(torch.split(x.flatten(2), sizes, 1), torch.split(y, sizes, 1), strict=True)
        return [_step(self._layers, given, labels) for given, labels in batches]

    def trained(self, at: int) -> dict[str, Tensor]:
        """What a client's network has become, by name."""
        return one_of(self._tensors, at)

    def mean(self, shares: Tensor) -> dict[str, Tensor]:
        """The mean of all clients' networks, each with its share."""
        return mean_of(self._tensors, shares)

    def norms(self) -> Tensor:
        """The L2 norm of each client's network, or more."""
        return norms_of(self._tensors.values())


def one_of(stacked: Mapping[str, Tensor], at: int) -> dict[str, Tensor]:
    """Of stacked tensors one client's, for itself: nobody who keeps it keeps the whole stack.

    >>> one_of({"w": torch.tensor([1.0, 2.0])}, 1)
    {'w': tensor(2.)}
    """
    return {name: value[at].clone() for name, value in stacked.items()}


def mean_of(stacked: Mapping[str, Tensor], shares: Tensor) -> dict[str, Tensor]:
    """The mean of stacked tensors, each with its share.

    >>> mean_of({"w": torch.tensor([[1.0], [2.0]])}, torch.tensor([0.5, 0.5]))
    {'w': tensor([1.5000])}
    """
    return {name: torch.tensordot(shares, value, 1) for name, value in stacked.items()}


def norms_of(stacked: Iterable[Tensor]) -> Tensor:
    """Of stacked tensors the L2 norm of each client's.

    >>> norms_of([torch.tensor([[3.0], [1.0]]), torch.tensor([[4.0], [0.0]])])
    tensor([5., 1.])
    """
    return _together([torch.linalg.vector_norm(value.flatten(1), dim=1) for value in stacked])


def _together(norms: Sequence[Tensor]) -> Tensor:
    together: Tensor = torch.linalg.vector_norm(torch.stack(list(norms)), dim=0)
    return together


class Span:
    """The same of networks that all start from one, in the span of the samples that they see.

    >>> start = {"0.weight": torch.zeros(3, 4), "0.bias": torch.zeros(3)}
    >>> nets = Span(["0"], start, clients=2, samples=5, lr=0.1)
    >>> [loss] = nets.steps(torch.ones(2, 5, 4), torch.zeros(2, 5, dtype=torch.int64), [5])
    >>> [round(float(each), 4) for each in loss]
    [1.0986, 1.0986]
    >>> [bool(nets.trained(at)["0.bias"][0] > 0) for at in range(2)]
    [True, True]
    """

    def __init__(
        self, layers: Sequence[str], start: Mapping[str, Tensor], clients: int, samples: int, lr: float, decay: float = 1.0
    ) -> None:
        lowest, *above = ((start[f"{name}.weight"], start[f"{name}.bias"]) for name in layers)
        self._lowest = _Lowest(*lowest, clients, samples, lr, decay)
        self._names, self._layers = layers, [self._lowest, *(_shorter(*each, clients, samples, lr, decay) for each in above)]

    def steps(self, x: Tensor, y: Tensor, sizes: list[int]) -> list[Tensor]:
        """All steps, on batches that follow each other (clients x samples x ...): the mean losses of each client before every step."""
        given = x.flatten(2)
        self._lowest.look_ahead(given)
        batches = zip(torch.split(given, sizes, 1), torch.split(y, sizes, 1), strict=True)
        return [_step(self._layers, each, labels) for each, labels in batches]

    def trained(self, at: int) -> dict[str, Tensor]:
        """What a client's network has become, by name."""
        return _named(self._names, [each.trained(at) for each in self._layers])

    def mean(self, shares: Tensor) -> dict[str, Tensor]:
        """The mean of all clients' networks, each with its share."""
        return _named(self._names, [each.mean(shares) for each in self._layers])

    def norms(self) -> Tensor:
        """The L2 norm of each client's network, or more."""
        return _together([each.norms() for each in self._layers])


def _named(layers: Sequence[str], values: Sequence[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    return {f"{name}.{kind}": value for name, both in zip(layers, values, strict=True) for kind, value in zip(KINDS, both, strict=True)}


class _Layer(Protocol):
    """A linear layer of each of some clients."""

    def forward(self, given: Tensor) -> Tensor:
        """Outputs of clients x batch x inputs."""

    def back(self, back: Tensor, given: Tensor, *, lowest: bool) -> Tensor:
        """Descend by the gradient of the outputs; what that of the inputs was before, which of the lowest layer nobody asks for."""

    def trained(self, at: int) -> tuple[Tensor, Tensor]:
        """A client's weight and bias, for itself."""

    def mean(self, shares: Tensor) -> tuple[Tensor, Tensor]:
        """The mean of all clients' weights and biases, each with its share."""

    def norms(self) -> Tensor:
        """The L2 norm of each client's, or more."""


def _step(layers: Sequence[_Layer], x: Tensor, y: Tensor) -> Tensor:
    """One step on a batch of each client (clients x batch x inputs): the mean loss of each before it."""
    batch, inputs = y.shape[1], [x]
    for layer in layers[:-1]:
        inputs.append(layer.forward(inputs[-1]).clamp_(min=0))
    scores = F.log_softmax(layers[-1].forward(inputs[-1]), -1)
    chosen = y.unsqueeze(-1)
    losses = -scores.gather(-1, chosen).mean((1, 2))
    back = scores.exp_().scatter_add_(-1, chosen, scores.new_full((1, 1, 1), -1.0).expand_as(chosen)).div_(batch)
    for layer, given in zip(reversed(layers), reversed(inputs), strict=True):
        back = layer.back(back, given, lowest=given is inputs[0])
        if given is not inputs[0]:
            back = AT.threshold_backward(back, given, 0)
    return losses


class _Stacked:
    """Every client's own weights (clients x outputs x inputs), changed as gradients come."""

    def __init__(self, weight: Tensor, bias: Tensor, lr: float, decay: float) -> None:
        self._weight, self._bias, self._lr, self._decay = weight, bias, lr, decay

    def forward(self, given: Tensor) -> Tensor:
        return torch.baddbmm(self._bias.unsqueeze(1), given, self._weight.mT)

    def back(self, back: Tensor, given: Tensor, *, lowest: bool) -> Tensor:
        below = back if lowest else torch.bmm(back, self._weight)
        self._weight.baddbmm_(back.mT, given, beta=self._decay, alpha=-self._lr)
        self._bias.mul_(self._decay).sub_(back.sum(1), alpha=self._lr)
        return below

    def trained(self, at: int) -> tuple[Tensor, Tensor]:
        return self._weight[at].clone(), self._bias[at].clone()

    def mean(self, shares: Tensor) -> tuple[Tensor, Tensor]:
        return torch.tensordot(shares, self._weight, 1), torch.tensordot(shares, self._bias, 1)

    def norms(self) -> Tensor:
        return norms_of([self._weight, self._bias])


def _shorter(weight: Tensor, bias: Tensor, clients: int, samples: int, lr: float, decay: float) -> _Layer:
    """A layer in the span of its samples, or, where that has more numbers than its weight, with a weight for each client."""
    if samples * sum(weight.shape) < weight.numel():
        return _Spanned(weight, bias, clients, samples, lr, decay)
    return _Stacked(weight.repeat(clients, 1, 1), bias.repeat(clients, 1), lr, decay)


class _Spanned:
    """One weight for all, and what each client adds to it: -lr times the sum of `backs` (outer) `inputs` over the samples it has seen."""

    def __init__(self, weight: Tensor, bias: Tensor, clients: int, samples: int, lr: float, decay: float) -> None:
        self._weight, self._bias, self._lr, self._decay = weight, bias.repeat(clients, 1), lr, decay
        self._inputs = weight.new_empty(clients, samples, weight.shape[1])
        self._backs = weight.new_empty(clients, samples, weight.shape[0])
        self._seen, self._scale = 0, 1.0

    def forward(self, given: Tensor) -> Tensor:
        out = self._of_start(given, self._weight.t()).add_(self._bias.unsqueeze(1))
        return self._of_change(out, given, self._inputs, self._backs)

    def back(self, back: Tensor, given: Tensor, *, lowest: bool) -> Tensor:
        below = back if lowest else self._of_change(self._of_start(back, self._weight), back, self._backs, self._inputs)
        self._inputs[:, self._seen : self._seen + back.shape[1]] = given
        self._descend(back)
        return below

    def _descend(self, back: Tensor) -> None:
        """Add what the last batch adds, of which the inputs are known."""
        seen = slice(self._seen, self._seen + back.shape[1])
        if self._decay != 1:
            self._backs[:, : self._seen] *= self._decay
        self._backs[:, seen] = back
        self._bias.mul_(self._decay).sub_(back.sum(1), alpha=self._lr)
        self._seen, self._scale = seen.stop, self._scale * self._decay

    def _of_start(self, rows: Tensor, weight: Tensor) -> Tensor:
        """All clients' rows times the weights they started from: one product."""
        out = rows.reshape(-1, rows.shape[-1]).mm(weight).view(*rows.shape[:2], -1)
        return out if self._scale == 1 else out.mul_(self._scale)

    def _of_change(self, out: Tensor, rows: Tensor, left: Tensor, right: Tensor) -> Tensor:
        """Add what the change of the weights adds: rows by `left` by `right`, none of which is as large as a weight."""
        seen = slice(self._seen)
        return out.baddbmm_(rows.bmm(left[:, seen].mT), right[:, seen], alpha=-self._lr) if self._seen else out

    def trained(self, at: int) -> tuple[Tensor, Tensor]:
        backs, inputs = self._backs[at, : self._seen].mT, self._inputs[at, : self._seen]
        return torch.addmm(self._weight, backs, inputs, beta=self._scale, alpha=-self._lr), self._bias[at].clone()

    def mean(self, shares: Tensor) -> tuple[Tensor, Tensor]:
        """In one product over all that all have seen: none of their weights is laid down."""
        backs, inputs = self._backs[:, : self._seen] * shares.view(-1, 1, 1), self._inputs[:, : self._seen]
        weight = torch.addmm(self._weight, backs.flatten(0, 1).t(), inputs.flatten(0, 1), beta=self._scale, alpha=-self._lr)
        return weight, torch.tensordot(shares, self._bias, 1)

    def norms(self) -> Tensor:
        """No product is longer than its factors' lengths multiplied."""
        backs, inputs = (torch.linalg.vector_norm(each[:, : self._seen], dim=(1, 2)) for each in (self._backs, self._inputs))
        weights = abs(self._scale) * torch.linalg.vector_norm(self._weight) + self._lr * backs * inputs
        return _together([weights, torch.linalg.vector_norm(self._bias, dim=1)])


class _Lowest(_Spanned):
    """The layer whose inputs are the samples, known before the first step: what they are multiplied with that does not change (the weights
    at the start, and each other) they are multiplied with in one go."""

    def look_ahead(self, samples: Tensor) -> None:
        """All that there will be of each client (clients x samples x inputs), in the order of the steps."""
        self._inputs, self._with_start = samples, self._of_start(samples, self._weight.t())
        self._with_others = samples.bmm(samples.mT)

    def forward(self, given: Tensor) -> Tensor:
        now = slice(self._seen, self._seen + given.shape[1])
        out = torch.add(self._bias.unsqueeze(1), self._with_start[:, now], alpha=self._scale)
        return out.baddbmm_(self._with_others[:, now, : self._seen], self._backs[:, : self._seen], alpha=-self._lr) if self._seen else out

    def back(self, back: Tensor, given: Tensor, *, lowest: bool) -> Tensor:
        self._descend(back)
        return back
