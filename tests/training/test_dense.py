"""Gradients of a dense network that are written out are those of automatic differentiation, to the bit, whatever shape and objective."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from coterie.methods import mmd
from coterie.methods.mmd import MMD, SquaredDistance
from coterie.methods.scaffold import Correction
from coterie.models import MLP
from coterie.training.dense import Backward, Dense, Span, layers_of
from coterie.training.objectives import CrossEntropy, Distillation, Proximal, Step

OBJECTIVES = {
    "labels": CrossEntropy(),
    "weighted": 0.3 * CrossEntropy(),
    "a teacher": 0.5 * CrossEntropy() + 0.5 * Distillation("teacher"),
    "MMD": CrossEntropy() + 0.1 * MMD(),
    "near the start": CrossEntropy() + 0.1 * Proximal(),
    "only near the start": Proximal(),
    "MMD near the start": CrossEntropy() + 0.1 * MMD() + 0.3 * Proximal(),
    "MMD, mean kernels": CrossEntropy() + 0.1 * MMD(kernels="mean"),
    "MMD, above a floor": CrossEntropy() + 10.0 * MMD(floor=3.0),
    "L2, mean": 0.7 * CrossEntropy() + 0.3 * SquaredDistance(reduction="mean"),
    "weighted twice": 0.3 * (0.7 * (CrossEntropy() + 0.9 * Distillation("teacher"))),
    "L2 and MMD": CrossEntropy() + 0.1 * SquaredDistance() + 0.1 * MMD(),
}


@settings(max_examples=120, deadline=None)
@given(
    widths=st.lists(st.integers(1, 40), min_size=0, max_size=3),
    inputs=st.integers(1, 60),
    classes=st.integers(2, 12),
    batch=st.integers(1, 23),
    objective=st.sampled_from([*OBJECTIVES, "along a direction"]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    seed=st.integers(0, 2**31),
)
def test_no_bit_differs(widths, inputs, classes, batch, objective, dtype, seed) -> None:
    torch.manual_seed(seed)
    sizes = [inputs, *widths]
    hidden = [layer for one, two in itertools.pairwise(sizes) for layer in (nn.Linear(one, two), nn.ReLU())]
    net = nn.Sequential(nn.Flatten(), *hidden, nn.Linear(sizes[-1], classes)).to(dtype)
    x, y = torch.randn(batch, 1, inputs, dtype=dtype), torch.randint(classes, (batch,))
    frozen = {"teacher": torch.randn(batch, classes, dtype=dtype), "global logits": torch.randn(batch, classes, dtype=dtype)}
    start = {name: torch.randn_like(value) for name, value in net.named_parameters()}
    derived, ours = Step(net, x, y, start, frozen), Step(net, x, y, start, frozen)
    minimised = OBJECTIVES.get(objective) or CrossEntropy() + Correction(start)
    backward = Backward.of(net, dict(net.named_parameters()), minimised)
    assert (backward is None) == (1 in widths)
    if backward is None:
        return
    assert minimised.written
    for kept in (mmd._fixed_rates, mmd._signs):
        kept.cache_clear()
    with torch.inference_mode():  # as the loop does; what is kept from there must not be in the way of who derives
        loss, gradients = backward(ours, minimised)
    same = minimised(derived)
    assert loss.item() == same.item()
    assert [each.item() for each in ours.parts] == [each.item() for each in derived.parts]
    for one, other in zip(gradients, torch.autograd.grad(same, list(net.parameters())), strict=True):
        assert torch.equal(one, other)


def test_what_looks_at_features_is_derived() -> None:
    net = MLP().build((1, 4, 4), 3)
    assert Backward.of(net, dict(net.named_parameters()), CrossEntropy() + 0.1 * MMD(on="features")) is None


def test_where_a_parameter_stays_all_is_derived() -> None:
    net = MLP().build((1, 4, 4), 3)
    moving = dict(list(net.named_parameters())[2:])
    assert Backward.of(net, moving, CrossEntropy()) is None


def test_a_hook_is_not_passed_over() -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    assert layers_of(net)
    net[1].register_forward_hook(lambda module, inputs, output: 2 * output)
    assert layers_of(net) is None


def test_an_objective_that_only_says_so_is_found_out() -> None:
    class Own(CrossEntropy):
        def __call__(self, step):
            return super().__call__(step) + step.features.square().mean()

    net = MLP().build((1, 4, 4), 3)
    backward = Backward.of(net, dict(net.named_parameters()), Own())
    with pytest.raises(TypeError, match="looks at features"):
        backward(Step(net, torch.ones(2, 1, 4, 4), torch.zeros(2, dtype=torch.int64), {}), Own())


def test_a_loss_of_ones_own_is_not_taken_for_the_one_it_inherits_from() -> None:
    class Own(CrossEntropy):
        def __call__(self, step):
            return 2 * super().__call__(step)

    net = MLP().build((1, 4, 4), 3)
    parameters = dict(net.named_parameters())
    x, y = torch.ones(2, 1, 4, 4), torch.zeros(2, dtype=torch.int64)
    loss, gradients = Backward.of(net, parameters, Own())(Step(net, x, y, {}), Own())
    same = Own()(Step(net, x, y, {}))
    assert loss.item() == same.item()
    assert all(map(torch.equal, gradients, torch.autograd.grad(same, list(parameters.values()))))


def descended(net, lr, decay, batches) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Plain descent by automatic differentiation: losses, and what came out."""
    losses = []
    for x, y in batches:
        loss = nn.functional.cross_entropy(net(x), y)
        losses.append(loss.item())
        with torch.no_grad():
            for parameter, gradient in zip(net.parameters(), torch.autograd.grad(loss, list(net.parameters())), strict=True):
                parameter.mul_(decay).sub_(lr * gradient)
    return losses, {name: value.detach() for name, value in net.named_parameters()}


@settings(max_examples=120, deadline=None)
@given(
    widths=st.lists(st.integers(1, 20), min_size=0, max_size=3),
    inputs=st.integers(1, 30),
    classes=st.integers(2, 6),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    clients=st.integers(1, 4),
    decay=st.sampled_from([1.0, 0.97]),
    spanned=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_a_stack_descends_as_each_client_would_by_itself(widths, inputs, classes, sizes, clients, decay, spanned, seed) -> None:
    torch.manual_seed(seed)
    shape = [inputs, *widths]
    hidden = [layer for one, two in itertools.pairwise(shape) for layer in (nn.Linear(one, two), nn.ReLU())]
    net = nn.Sequential(*hidden, nn.Linear(shape[-1], classes)).double()
    start = {name: value.detach().clone() for name, value in net.named_parameters()}
    steps = [(torch.randn(clients, size, inputs).double(), torch.randint(classes, (clients, size))) for size in sizes]
    if spanned:
        stack = Span(layers_of(net), start, clients, sum(sizes), lr=0.3, decay=decay)
    else:
        stack = Dense(layers_of(net), {name: value.repeat(clients, *(1,) * value.dim()) for name, value in start.items()}, 0.3, decay)
    x, y = (torch.cat(each, 1) for each in zip(*steps, strict=True))
    losses = torch.stack(stack.steps(x, y, sizes))
    for client in range(clients):
        found = stack.trained(client)
        net.load_state_dict(start)
        own, expected = descended(net, 0.3, decay, [(x[client], y[client]) for x, y in steps])
        assert losses[:, client].tolist() == pytest.approx(own, abs=1e-9)
        for name, value in expected.items():
            assert torch.allclose(found[name], value, rtol=0, atol=1e-9)
