"""Stacked clients: close to what each is by itself, and the same wherever they run."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from torch import nn

from coterie.data.partitions import PARTITIONS
from coterie.engines import Inline, stacks
from coterie.engines.processes import Processes
from coterie.errors import UserError
from coterie.methods import FML, FedAvg
from coterie.methods.fedprox import FedProx
from coterie.models import MLP
from coterie.record import EMPTY
from coterie.replies import norm_of
from coterie.running.rounds import run
from coterie.settings import spec
from coterie.site import ModelCache
from coterie.testing import small_experiment
from coterie.training.dense import Dense, Span, layers_of
from coterie.training.objectives import CrossEntropy, Proximal
from coterie.training.optimisers import Adam, Sgd
from coterie.training.settings import Training
from coterie.training.stacking import SPAN, Request, Stack, _Derived, fit_together, reason

CLOSE = 1e-5
"""How far a weight may be from what it is without a stack, after the few steps of these tests; weights are of the order of 0.1."""


DECAYS = [(FedAvg(), 0.0), (FML(), 0.01)]
"""Methods and their weight decay: with it, FML's networks do not descend in place, and a stack of them is derived."""


def stacked(method, size=3, decay=0.0, **changes):
    evenly = PARTITIONS.resolve({"name": "iid", "clients": 5})
    training = Training(epochs=2, batch=16, optimiser=Sgd(lr=0.1, weight_decay=decay))
    plain = small_experiment(method, rounds=2, cohort=1.0, partition=evenly, training=training, **changes)
    return plain, plain.replace(training=plain.training.replace(stack=size))


def state(experiment, folder, engine=None):
    return run(experiment, folder, engine=engine or Inline()).state


@pytest.mark.parametrize(("method", "decay"), DECAYS)
def test_a_stack_is_close_to_each_client_by_itself(method, decay, tmp_path, monkeypatch) -> None:
    sizes = []

    def fitted(wanted):
        found = fit_together(wanted)
        sizes.append(found and len(found))
        return found

    monkeypatch.setattr(stacks, "fit_together", fitted)
    plain, together = stacked(method, decay=decay)
    one, other = state(plain, tmp_path / "plain"), state(together, tmp_path / "stacked")
    assert sizes == [3, 2] * 2
    for name, value in one.tensors.items():
        assert (value - other.tensors[name]).abs().max() < CLOSE


@pytest.mark.parametrize(("method", "decay"), DECAYS)
def test_a_stack_has_the_same_bits_on_every_engine_and_number_of_workers(method, decay, tmp_path) -> None:
    _, together = stacked(method, decay=decay)
    engines = {"inline": Inline(), "one": Processes(1), "three": Processes(3)}
    assert len({state(together, tmp_path / name, engine).digest() for name, engine in engines.items()}) == 1


class Apart(Inline):
    """Tears every stack apart: each job is performed as if none of the others had been."""

    def deliver(self, jobs):
        for job in jobs:
            self._performer._stacks = stacks.Stacks(self._performer._attempt, self._performer._encode)
            yield self._performer.perform(job)


class Backwards(Inline):
    """Asks for the last of a stack first."""

    def deliver(self, jobs):
        return reversed([self._performer.perform(job) for job in reversed(jobs)])


@spec
class SomeTwice(FedAvg):
    """Every other client trains a second time."""

    name: ClassVar[str] = "some-twice"

    def trained(self, site, memory, message, start):
        fitted = super().trained(site, memory, message, start)
        return super().trained(site, memory, message, fitted.params) if site.id % 2 else fitted


@pytest.mark.parametrize("method", [FedAvg(), SomeTwice()])
def test_an_engine_that_takes_jobs_apart_or_in_another_order_gets_the_same_bits(method, tmp_path) -> None:
    _, together = stacked(method)
    engines = {"plain": Inline(), "apart": Apart(), "backwards": Backwards()}
    assert len({state(together, tmp_path / name, engine).digest() for name, engine in engines.items()}) == 1


def test_who_trains_again_does_so_with_the_others_that_do(tmp_path, monkeypatch) -> None:
    sizes = []
    monkeypatch.setattr(stacks, "fit_together", lambda wanted: sizes.append(len(wanted)) or fit_together(wanted))
    state(stacked(SomeTwice(), size=5)[1], tmp_path / "run")
    assert sizes == [5, 2] * 2


def test_where_clients_are_apart_a_stack_is_refused(tmp_path) -> None:
    class Deployed(Inline):
        stacks = False

    _, together = stacked(FedAvg())
    with pytest.raises(UserError, match=r"training\.stack = 3: clients are apart on this engine"):
        run(together, tmp_path / "run", engine=Deployed())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("method", [FedProx(mu=0.1), FML()])
def test_what_cannot_be_stacked_has_the_bits_it_has_by_itself(method, tmp_path) -> None:
    plain, together = stacked(method)
    assert state(plain, tmp_path / "plain") == state(together, tmp_path / "stacked")


def test_a_stack_is_part_of_what_decides_a_result() -> None:
    plain, together = stacked(FedAvg())
    assert plain.training.stack is None
    assert plain.digest() != together.digest()


def requests(count=3, training=None, objective=None, dropout=0.0, alike=False):
    """Trainings of some clients, who may all begin with the same weights."""
    population = small_experiment(FedAvg(), model=MLP(hidden=(8,), dropout=dropout)).population()
    cache = ModelCache()
    sites = [population.site(client, 1, cache) for client in range(count)]
    least = min(len(site.train) for site in sites)
    data = [site.train.only(torch.arange(least)) for site in sites]
    trained = training or Training(epochs=2, batch=7, optimiser=Sgd(lr=0.1, weight_decay=0.01))
    goal = objective or CrossEntropy()
    starts = [(sites[0] if alike else site).fresh() for site in sites]
    return [Request(s.model(), start, d, goal, trained, s.id, 1, {}) for s, start, d in zip(sites, starts, data, strict=True)]


@pytest.fixture(params=[Dense, Span])
def alike(request, monkeypatch):
    """Trainings from the same weights, in the one way and in the other."""
    monkeypatch.setattr("coterie.training.stacking.SPAN", SPAN if request.param is Span else 0)
    wanted = requests(alike=True)
    assert type(Stack(wanted)._way) is request.param
    return wanted


def trained(wanted):
    """What has come of each of some trainings that are done together."""
    together = fit_together(wanted)
    assert together is not None
    return [together.fitted(at) for at in range(len(wanted))]


def test_steps_samples_and_losses_are_those_of_each() -> None:
    wanted = requests(objective=CrossEntropy() + 0.5 * CrossEntropy())
    together = fit_together(wanted)
    assert together is not None
    for at, each in enumerate(wanted):
        found, alone = together.fitted(at), each.fit()
        assert (found.steps, found.samples, found.lr, found.optimiser) == (alone.steps, alone.samples, alone.lr, EMPTY)
        assert found.loss == pytest.approx(alone.loss, abs=CLOSE)
        assert found.parts == pytest.approx(alone.parts, abs=CLOSE)
        assert found.params.tensors.keys() == alone.params.tensors.keys()
        assert not any(value.is_inference() for value in found.params.tensors.values())  # else nothing could be derived from it


def test_what_a_task_does_to_its_message_or_its_weights_is_nothing_to_the_others_of_its_stack(alike) -> None:
    expected = [each.params for each in trained(alike)]
    together = Stack(alike)
    for edited in (together.fitted(0).params, *(each.start for each in alike)):
        for value in edited.tensors.values():
            value.fill_(7.0)
    assert [together.fitted(at).params for at in range(len(alike))] == expected


@pytest.mark.parametrize("way", [_Derived, Dense, Span])
@pytest.mark.parametrize("decay", [0.0, 0.5, 30.0])
def test_a_mean_of_all_is_the_mean_of_each_and_no_norm_is_told_too_small(way, decay, monkeypatch) -> None:
    monkeypatch.setattr("coterie.training.stacking.SPAN", SPAN if way is Span else 0)
    if way is _Derived:
        monkeypatch.setattr("coterie.training.stacking.layers_of", lambda model: None)
    together = Stack(requests(alike=True, training=Training(epochs=2, batch=7, optimiser=Sgd(lr=0.1, weight_decay=decay))))
    assert type(together._way) is way
    assert together.averages
    each, weights = [together.fitted(at).params.tensors for at in range(3)], [1, 5, 2]
    for name, value in together.mean(weights).items():
        expected = sum(weight * one[name].double() for weight, one in zip(weights, each, strict=True)) / 8
        assert (value - expected).abs().max() <= CLOSE * max(1.0, float(expected.abs().max()))
        assert value.dtype == each[0][name].dtype
    exact = [norm_of(one.values()) for one in each]
    told = together.norms()
    assert all(norm <= 1.00001 * most for norm, most in zip(exact, told, strict=True))
    assert way is Span or told == pytest.approx(exact, rel=1e-4)


def test_the_step_that_is_written_out_is_the_one_that_is_derived(alike, monkeypatch) -> None:
    written = trained(alike)
    monkeypatch.setattr("coterie.training.stacking.layers_of", lambda model: None)
    for ours, derived in zip(written, trained(alike), strict=True):
        assert ours.loss == pytest.approx(derived.loss, abs=CLOSE)
        for name, value in derived.params.tensors.items():
            assert (value - ours.params.tensors[name]).abs().max() < CLOSE


@pytest.mark.parametrize(
    ("network", "layers"),
    [
        (MLP(hidden=(8, 4)).build((1, 2, 2), 3), 3),
        (nn.Sequential(nn.Linear(4, 2)), 1),
        (nn.Sequential(nn.Linear(4, 2, bias=False)), None),
        (nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)), None),
        (nn.Sequential(nn.Flatten(0), nn.Linear(4, 2)), None),
        (nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Dropout(0.5), nn.Linear(3, 2)), None),
        (nn.Bilinear(2, 2, 2), None),
    ],
)
def test_only_plain_dense_networks_are_written_out(network, layers) -> None:
    assert len(layers_of(network) or ()) == (layers or 0)


def test_a_network_whose_forward_is_its_own_is_not_taken_for_its_layers() -> None:
    class Twice(nn.Sequential):
        def forward(self, x):
            return 2 * super().forward(x)

    assert layers_of(Twice(nn.Linear(4, 2))) is None


def test_steps_in_place_of_epochs_are_counted() -> None:
    wanted = requests(training=Training(steps=5, batch=7))
    together = fit_together(wanted)
    assert together is not None
    assert [together.told(at).steps for at in range(3)] == [5, 5, 5]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"training": Training(optimiser=Adam())}, "its optimiser keeps a state"),
        ({"training": Training(optimiser=Sgd(momentum=0.9))}, "its optimiser keeps a state"),
        ({"training": Training(augment="crop-flip")}, "images are changed at random"),
        ({"objective": Proximal()}, "its objective looks at more than logits and labels"),
        ({"dropout": 0.5}, "its network has layers that look at the batch or draw at random"),
        (
            {"objective": 0.5 * CrossEntropy(), "training": Training()},
            "its steps are written out for one client only, which is faster than a stack whose steps are derived",
        ),
    ],
)
def test_what_cannot_be_stacked_says_why(changes, why) -> None:
    wanted = requests(**changes)
    assert reason(wanted[0]) == why
    assert fit_together(wanted) is None
