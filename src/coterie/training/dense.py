"""Dense networks, whose gradients are written out: of one, bit for bit what automatic differentiation gives, and of a stack of them.

For a batch of ten the bookkeeping of automatic differentiation takes longer than the matrix products. A stack goes further: gradients go
into the weights as they come, where making them first and adding them then would be more memory traffic than arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coterie.training.objectives import CrossEntropy, Objective, Step

__all__ = ["Backward", "Dense", "layers_of"]

AT = torch.ops.aten


def layers_of(model: nn.Module) -> list[str] | None:
    """The names of a network's linear layers, where it is nothing but those with a ReLU between each two, after at most a flattening.

    >>> layers_of(nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)))
    ['1', '3']
    >>> layers_of(nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))) is None
    True
    """
    if any(type(each).forward is not nn.Sequential.forward for each in model.modules() if next(each.children(), None) is not None):
        return None
    if any(each._forward_hooks or each._forward_pre_hooks or each._backward_hooks for each in model.modules()):
        return None
    leaves = [(name, each) for name, each in model.named_modules() if next(each.children(), None) is None]
    named = [(name, each) for name, each in leaves if not (isinstance(each, nn.Dropout) and each.p == 0)]
    if named and type(named[0][1]) is nn.Flatten and (named[0][1].start_dim, named[0][1].end_dim) == (1, -1):
        named = named[1:]
    kinds = [type(each) for _, each in named]
    linear = [name for name, each in named if isinstance(each, nn.Linear) and each.bias is not None]
    alternate = kinds == [nn.Linear, nn.ReLU] * (len(kinds) // 2) + [nn.Linear]
    return linear if alternate and len(linear) == len(kinds) // 2 + 1 else None


class Backward:
    """The loss and the gradients of one dense network: the operations of automatic differentiation in their order, so that no bit differs.

    >>> net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> step = Step(net, torch.ones(5, 4), torch.zeros(5, dtype=torch.int64), start={})
    >>> loss, gradients = Backward(["0", "2"], dict(net.named_parameters()))(step, CrossEntropy())
    >>> same = torch.autograd.grad(CrossEntropy()(Step(net, step.x, step.y, start={})), list(net.parameters()))
    >>> all(map(torch.equal, gradients, same))
    True
    """

    def __init__(self, layers: Sequence[str], parameters: Mapping[str, Tensor]) -> None:
        self._weights = [parameters[f"{name}.weight"].detach() for name in layers]
        self._biases = [parameters[f"{name}.bias"].detach() for name in layers]

    @classmethod
    def of(cls, model: nn.Module, moving: Mapping[str, Tensor], objective: Objective) -> Backward | None:
        """For a network and an objective that it can be used with, all of whose parameters move; else None."""
        layers = layers_of(model) if objective.of_logits else None
        named = [f"{name}.{kind}" for name in layers or () for kind in ("weight", "bias")]
        return None if layers is None or list(moving) != named else cls(layers, moving)

    def __call__(self, step: Step, objective: Objective) -> tuple[Tensor, list[Tensor]]:
        """Of one batch; gradients in the order of the parameters."""
        inputs = [step.x.reshape(len(step.x), -1)]
        for weight, bias in zip(self._weights[:-1], self._biases[:-1], strict=True):
            inputs.append(torch.addmm(bias, inputs[-1], weight.t()).relu_())
        logits = torch.addmm(self._biases[-1], inputs[-1], self._weights[-1].t())
        loss, back = _cross_entropy(logits, step.y) if objective == CrossEntropy() else _differentiated(logits, step, objective)
        gradients = list[Tensor]()
        for weight, given in zip(reversed(self._weights), reversed(inputs), strict=True):
            gradients += [back.sum(0), back.t().mm(given)]
            if given is not inputs[0]:
                back = AT.threshold_backward.default(back.mm(weight), given, 0)
        return loss, gradients[::-1]


def _cross_entropy(logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The loss and its gradient by the logits."""
    scores = torch.log_softmax(logits, 1)
    loss, weight = AT.nll_loss_forward.default(scores, y, None, 1, -100)
    back = AT.nll_loss_backward.default(torch.ones_like(loss), scores, y, None, 1, -100, weight)
    return loss, AT._log_softmax_backward_data.default(back, scores, 1, scores.dtype)


def _differentiated(logits: Tensor, step: Step, objective: Objective) -> tuple[Tensor, Tensor]:
    """The same of any objective that looks at the logits."""
    step.logits = logits.requires_grad_()
    loss = objective(step)
    if "features" in vars(step):  # their part of the gradient would be lost
        raise TypeError(f"{objective} looks at features, and says `of_logits`: one that inherits from such an objective must say False")
    return loss.detach(), torch.autograd.grad(loss, logits)[0]


class Dense:
    """Stacked dense networks that minimise the cross-entropy by plain descent; what they are is changed in place.

    >>> weights = {"0.weight": torch.zeros(2, 3, 4), "0.bias": torch.zeros(2, 3)}  # two clients
    >>> net = Dense(["0"], weights, lr=0.1)
    >>> [round(float(loss), 4) for loss in net.step(torch.ones(2, 5, 4), torch.zeros(2, 5, dtype=torch.int64))]  # log 3
    [1.0986, 1.0986]
    >>> bool(weights["0.bias"][0, 0] > 0)
    True
    """

    def __init__(self, layers: Sequence[str], tensors: Mapping[str, Tensor], lr: float, decay: float = 1.0) -> None:
        self._weights = [tensors[f"{name}.weight"] for name in layers]
        self._biases = [tensors[f"{name}.bias"] for name in layers]
        self._lr, self._decay = lr, decay

    def step(self, x: Tensor, y: Tensor) -> Tensor:
        """One step on a batch of each client (clients x batch x ...): the mean loss of each before it."""
        clients, batch = y.shape
        inputs = [x.reshape(clients, batch, -1)]
        for weight, bias in zip(self._weights[:-1], self._biases[:-1], strict=True):
            inputs.append(torch.baddbmm(bias.unsqueeze(1), inputs[-1], weight.mT).clamp_(min=0))
        scores = F.log_softmax(torch.baddbmm(self._biases[-1].unsqueeze(1), inputs[-1], self._weights[-1].mT), -1)
        chosen = y.unsqueeze(-1)
        losses = -scores.gather(-1, chosen).mean((1, 2))
        back = scores.exp_().scatter_add_(-1, chosen, scores.new_full((1, 1, 1), -1.0).expand_as(chosen)).div_(batch)
        for weight, bias, given in zip(reversed(self._weights), reversed(self._biases), reversed(inputs), strict=True):
            below = torch.bmm(back, weight).mul_(given > 0) if given is not inputs[0] else back
            weight.baddbmm_(back.mT, given, beta=self._decay, alpha=-self._lr)
            bias.mul_(self._decay).sub_(back.sum(1), alpha=self._lr)
            back = below
        return losses
