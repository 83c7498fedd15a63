"""Descent in place is what automatic differentiation and an optimiser would do, up to rounding, whatever the network and objective."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from coterie.methods.fedavg import FedAvg
from coterie.methods.fml import Mutual
from coterie.methods.mmd import MMD, SquaredDistance
from coterie.methods.scaffold import Correction
from coterie.models import CNN, MLP
from coterie.models.pair import PairNet
from coterie.site import ModelCache
from coterie.testing import small_experiment
from coterie.training.descent import descent_of
from coterie.training.loop import derived
from coterie.training.objectives import CrossEntropy, Distillation, Objective, Proximal, Step
from coterie.training.optimisers import Adam, Sgd
from coterie.training.settings import Training

OBJECTIVES = {
    "labels": CrossEntropy(),
    "a teacher": 0.5 * CrossEntropy() + 0.5 * Distillation("teacher"),
    "MMD": CrossEntropy() + 0.1 * MMD(),
    "L2": CrossEntropy() + 0.1 * SquaredDistance(),
    "near the start": CrossEntropy() + 0.1 * Proximal(),
    "near the start, between others": CrossEntropy() + 0.1 * Proximal() + 0.2 * MMD(),
    "only near the start": Proximal(),
}


def dense(sizes: list[int]) -> nn.Sequential:
    layers = [layer for one, two in itertools.pairwise(sizes) for layer in (nn.Linear(one, two), nn.ReLU())][:-1]
    return nn.Sequential(nn.Flatten(), *layers).double()


def descended(net: nn.Module, objective: Objective, steps: list[tuple], lr: float) -> tuple[list[list[float]], dict[str, torch.Tensor]]:
    """By automatic differentiation: losses and the terms of each, and what comes out; the network is as it was."""
    before, losses = {name: value.detach().clone() for name, value in net.named_parameters()}, []
    for step in steps:
        seen = Step(net, *step)
        loss = objective(seen)
        losses.append([loss.item(), *(part.item() for part in seen.parts)])
        gradients = torch.autograd.grad(loss, list(net.parameters()), allow_unused=True)
        with torch.no_grad():
            for parameter, gradient in zip(net.parameters(), gradients, strict=True):
                parameter.sub_(lr * (torch.zeros_like(parameter) if gradient is None else gradient))
    after = {name: value.detach().clone() for name, value in net.named_parameters()}
    net.load_state_dict(before)
    return losses, after


def same(net: nn.Module, objective: Objective, steps: list[tuple], lr: float = 0.3, in_a_row: bool = False) -> None:
    """Both ways give the same losses, terms of them and weights, however these lie in memory."""
    losses, after = descended(net, objective, steps, lr)
    parameters = dict(net.named_parameters())
    if in_a_row:
        row = torch.cat([value.detach().flatten() for value in parameters.values()]).split([value.numel() for value in parameters.values()])
        parameters = {name: part.view(value.shape) for part, (name, value) in zip(row, parameters.items(), strict=True)}
    descent = descent_of(net, parameters, objective, Training(), derived)
    assert descent is not None
    for step, expected in zip(steps, losses, strict=True):
        seen = Step(net, *step)
        assert [descent(seen, lr).item(), *(part.item() for part in seen.parts)] == pytest.approx(expected, rel=1e-9, abs=1e-12)
    for name, value in parameters.items():
        torch.testing.assert_close(value.detach(), after[name], rtol=1e-8, atol=1e-10)


@settings(max_examples=100, deadline=None)
@given(
    widths=st.lists(st.integers(1, 20), min_size=1, max_size=3),
    classes=st.integers(2, 8),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    objective=st.sampled_from([*OBJECTIVES, "along a direction"]),
    in_a_row=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_it_is_plain_descent(widths, classes, sizes, objective, in_a_row, seed) -> None:
    torch.manual_seed(seed)
    net = dense([16, *widths, classes])
    start = {name: torch.randn_like(value) for name, value in net.named_parameters()}
    given = [torch.randn(n, classes).double() for n in sizes]
    steps = [
        (torch.randn(n, 1, 4, 4).double(), torch.randint(classes, (n,)), start, {"teacher": each, "global logits": each})
        for n, each in zip(sizes, given, strict=True)
    ]
    same(net, OBJECTIVES.get(objective) or CrossEntropy() + Correction(start), steps, in_a_row=in_a_row)


@settings(max_examples=60, deadline=None)
@given(
    widths=st.lists(st.lists(st.integers(1, 20), min_size=0, max_size=2), min_size=2, max_size=2),
    weights=st.tuples(*[st.sampled_from([0.0, 0.3, 1.0])] * 2),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    curved=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_two_networks_that_teach_each_other_do_so_too(widths, weights, sizes, curved, seed) -> None:
    torch.manual_seed(seed)
    nets = [dense([16, *each, 5]) for each in widths]
    if curved:
        nets[0].insert(0, nn.Tanh())
    net = PairNet(*nets)
    same(net, Mutual(*weights), [(torch.randn(n, 1, 4, 4).double(), torch.randint(5, (n,)), {}) for n in sizes])


@pytest.mark.parametrize(
    "training",
    [Training(clip=1.0), Training(optimiser=Sgd(momentum=0.5)), Training(optimiser=Sgd(weight_decay=0.1)), Training(optimiser=Adam())],
)
def test_who_does_more_than_descend_is_left_to_the_optimiser(training) -> None:
    net = MLP(hidden=(4,)).build((1, 4, 4), 3)
    assert descent_of(net, dict(net.named_parameters()), CrossEntropy(), training) is None


def test_where_a_parameter_stays_or_a_hook_looks_on_or_features_are_wanted_nothing_is_written_out() -> None:
    net = MLP(hidden=(4,)).build((1, 8, 8), 3)
    everything = dict(net.named_parameters())
    assert descent_of(net, everything, CrossEntropy(), Training()) is not None
    assert descent_of(net, dict(list(everything.items())[1:]), CrossEntropy(), Training()) is None
    assert descent_of(net, everything, CrossEntropy() + MMD(on="features"), Training()) is None
    net[-1].register_forward_hook(lambda module, inputs, output: 2 * output)
    assert descent_of(net, everything, CrossEntropy(), Training()) is None


def test_a_pair_descends_as_far_as_it_is_dense() -> None:
    mlp, cnn = MLP(hidden=(4,)).build((1, 8, 8), 3), CNN(channels=(2, 2), hidden=(4,)).build((1, 8, 8), 3)
    for net, found in ((PairNet(cnn, copy.deepcopy(cnn)), None), (PairNet(mlp, cnn), False), (PairNet(mlp, copy.deepcopy(mlp)), True)):
        descent = descent_of(net, dict(net.named_parameters()), Mutual(0.5, 0.5), Training(), derived)
        assert (None if descent is None else descent.written) == found


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_weights_outside_their_module_are_the_same_bits(momentum) -> None:
    training = Training(epochs=2, optimiser=Sgd(lr=0.1, momentum=momentum))
    site = small_experiment(FedAvg(), training=training).population().site(0, 1, ModelCache())
    start = site.fresh()
    outside, inside = site.fit(start, CrossEntropy()), site.fit(start, CrossEntropy(), trainable=lambda name: True)
    assert outside.params == inside.params
    assert outside.loss == inside.loss
    assert start == site.fresh()
    assert list(outside.params) == list(inside.params)


def test_what_does_not_fit_the_network_is_said_as_ever() -> None:
    site = small_experiment(FedAvg()).population().site(0, 1, ModelCache())
    with pytest.raises(RuntimeError, match="Missing key"):
        site.fit(site.fresh().drop("head"), CrossEntropy())


@pytest.mark.parametrize("objective", [CrossEntropy(), CrossEntropy() + 0.1 * Proximal()])
def test_who_keeps_a_tensor_of_what_came_out_keeps_no_other(objective) -> None:
    training = Training(epochs=1, optimiser=Sgd(lr=0.1))
    site = small_experiment(FedAvg(), training=training).population().site(0, 1, ModelCache())
    for value in site.fit(site.fresh(), objective).params.tensors.values():
        assert value.untyped_storage().nbytes() == value.nbytes
