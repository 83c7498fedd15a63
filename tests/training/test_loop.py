"""The one training loop, against plain torch and against numpy."""

from __future__ import annotations

import subprocess
import sys
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from coterie.data.examples import Examples, crop_and_flip
from coterie.data.pool import Pool
from coterie.errors import UserError
from coterie.methods import FedAvg
from coterie.models import Staged
from coterie.record import Record
from coterie.seeds import generator, scoped, seed_of
from coterie.settings import spec
from coterie.site import ModelCache
from coterie.testing import small_experiment
from coterie.training.loop import fit, frozen, sizes_of, snapshot
from coterie.training.objectives import CrossEntropy, Proximal, Step
from coterie.training.optimisers import OPTIMISERS, Adam, AdamW, Exponential, Optimiser, Sgd, Steps
from coterie.training.score import score
from coterie.training.settings import Training


def data(n: int = 23, seed: int = 0, dtype: torch.dtype = torch.float64) -> Examples:
    rng = np.random.default_rng(seed)
    pool = Pool(rng.integers(0, 256, (n, 1, 2, 3), dtype=np.uint8), rng.integers(0, 3, n), train=n, classes=3)
    return Examples(pool, np.arange(n), dtype=dtype)


def net(norm: bool = False, dropout: float = 0.0) -> Staged:
    with scoped(3):
        body = [nn.Flatten(), nn.Linear(6, 5), *([nn.BatchNorm1d(5)] if norm else []), nn.ReLU(), nn.Dropout(dropout)]
        return Staged(body=nn.Sequential(*body), head=nn.Linear(5, 3)).double()


def torchs(optimiser: Optimiser, model: nn.Module) -> torch.optim.Optimizer:
    """Torch's own, with the same settings."""
    kinds = {Sgd: torch.optim.SGD, Adam: torch.optim.Adam, AdamW: torch.optim.AdamW}
    extra = {"momentum": optimiser.momentum, "nesterov": optimiser.nesterov} if isinstance(optimiser, Sgd) else {}
    return kinds[type(optimiser)](model.parameters(), lr=optimiser.lr, weight_decay=optimiser.weight_decay, **extra)


@pytest.mark.parametrize(
    "optimiser", [Sgd(lr=0.1), Sgd(lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True), Adam(lr=0.01, weight_decay=0.1), AdamW(lr=0.01)]
)
@pytest.mark.parametrize("clip", [None, 0.01])
def test_fit_is_the_plain_loop(optimiser, clip) -> None:
    model, examples = net(norm=True), data()
    training = Training(epochs=3, batch=5, optimiser=optimiser, clip=clip)
    fitted = fit(model, snapshot(net(norm=True)), examples, CrossEntropy(), training, seed=7)

    plain = net(norm=True).train()
    torch_optimiser = torchs(optimiser, plain)
    x, y = examples.one_batch()
    for epoch in range(3):
        for chosen in torch.randperm(23, generator=generator(7, "order", epoch)).split(5):
            torch_optimiser.zero_grad()
            F.cross_entropy(plain(x[chosen]), y[chosen]).backward()
            if clip:
                torch.nn.utils.clip_grad_norm_(plain.parameters(), clip)
            torch_optimiser.step()
    assert fitted.params == snapshot(plain)
    assert fitted.steps == 15


def test_the_start_is_never_changed() -> None:
    start = snapshot(net())
    before = start.digest()
    fit(net(), start, data(), CrossEntropy() + 0.1 * Proximal(), Training(epochs=2), seed=0)
    assert start.digest() == before


def test_proximal_term_and_its_gradient_by_hand() -> None:
    model = net()
    start = snapshot(net())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.25)
    x, y = data().one_batch()
    value = Proximal()(Step(model, x, y, start.tensors))
    count = sum(parameter.numel() for parameter in model.parameters())
    assert value.item() == pytest.approx(0.5 * count * 0.25**2, abs=1e-12)
    value.backward()
    assert all(np.allclose(parameter.grad.numpy(), 0.25, atol=1e-12) for parameter in model.parameters())


def test_a_term_of_weight_zero_is_not_there() -> None:
    plain = fit(net(), snapshot(net()), data(), CrossEntropy(), Training(epochs=2), seed=0)
    off = fit(net(), snapshot(net()), data(), CrossEntropy() + 0.0 * Proximal(), Training(epochs=2), seed=0)
    on = fit(net(), snapshot(net()), data(), CrossEntropy() + 0.5 * Proximal(), Training(epochs=2), seed=0)
    assert plain.params == off.params != on.params


def test_what_comes_out_can_be_derived_from_though_nothing_was_derived_on_the_way() -> None:
    training = Training(epochs=2, batch=5, optimiser=Sgd(lr=0.1, momentum=0.9), state="kept")
    fitted = fit(net(), snapshot(net()), data(), CrossEntropy(), training, seed=1, validation=data(seed=1))
    assert not any(value.is_inference() for record in (fitted.params, fitted.optimiser) for value in record.tensors.values())


def test_an_optimiser_of_ones_own_moves_in_its_own_way() -> None:
    @spec
    class Still(Sgd):
        name: ClassVar[str] = "still"

        def update(self, parameter, gradient, state, lr) -> None:
            """Stay."""

    start = snapshot(net())
    assert fit(net(), start, data(), CrossEntropy(), Training(optimiser=Still()), seed=1).params == start
    assert fit(net(), start, data(), CrossEntropy(), Training(optimiser=Sgd()), seed=1).params != start


@pytest.mark.parametrize("optimiser", [Sgd(lr=0.1, momentum=0.9), Adam(lr=0.01)])
def test_a_kept_optimiser_goes_on_where_it_stopped(optimiser) -> None:
    """Two fits of one epoch with the state carried equal a plain loop of two epochs with one optimiser."""
    training = Training(epochs=1, batch=5, optimiser=optimiser, state="kept")
    first = fit(net(), snapshot(net()), data(), CrossEntropy(), training, seed=1)
    second = fit(net(), first.params, data(), CrossEntropy(), training, seed=2, optimiser=first.optimiser)
    fresh = fit(net(), first.params, data(), CrossEntropy(), training.replace(state="fresh"), seed=2, optimiser=first.optimiser)

    plain = net().train()
    torch_optimiser = torchs(optimiser, plain)
    x, y = data().one_batch()
    for seed in (1, 2):
        for chosen in torch.randperm(23, generator=generator(seed, "order", 0)).split(5):
            torch_optimiser.zero_grad()
            F.cross_entropy(plain(x[chosen]), y[chosen]).backward()
            torch_optimiser.step()
    assert second.params == snapshot(plain)
    assert fresh.params != second.params
    assert not fresh.optimiser
    assert first.optimiser.payload_bytes > 0


def test_frozen_outputs_are_looked_up_by_sample() -> None:
    """What the objective finds in `step.frozen` is the frozen network's output for that batch, and the network ran once."""
    teacher, runs = net(), []
    look = frozen(net(), snapshot(teacher))

    def counted(x: torch.Tensor) -> torch.Tensor:
        runs.append(len(x))
        return look(x)

    class Compare(CrossEntropy):
        def __call__(self, step: Step) -> torch.Tensor:
            assert torch.allclose(step.frozen["teacher"], teacher.eval()(step.x), atol=1e-12)
            return super().__call__(step)

    training = Training(epochs=4, batch=5)
    fit(net(), snapshot(net()), data(), Compare(), training, seed=0, frozen={"teacher": counted})
    assert runs == [23]
    runs.clear()
    fit(net(), snapshot(net()), data(), Compare(), training.replace(augment="crop-flip"), seed=0, frozen={"teacher": counted})
    assert len(runs) == 20


def test_dropout_repeats_and_leaves_the_world_alone() -> None:
    before = torch.get_rng_state()
    one, two = (fit(net(dropout=0.5), snapshot(net()), data(), CrossEntropy(), Training(epochs=2), seed=5) for _ in range(2))
    other = fit(net(dropout=0.5), snapshot(net()), data(), CrossEntropy(), Training(epochs=2), seed=6)
    assert one.params == two.params != other.params
    assert torch.equal(before, torch.get_rng_state())


def test_a_last_batch_of_one_is_left_out_under_batchnorm_only() -> None:
    assert list(sizes_of(net(norm=True), 11, Training(batch=5))) == [[5, 5]]
    assert list(sizes_of(net(norm=True), 3, Training(batch=1, epochs=2))) == [[], []]
    assert list(sizes_of(net(norm=True), 3, Training(batch=1, steps=4))) == []
    assert list(sizes_of(net(), 11, Training(batch=5))) == [[5, 5, 1]]
    assert list(sizes_of(net(), 11, Training(batch="all"))) == [[11]]
    assert list(sizes_of(net(), 0, Training())) == [[]]


def test_steps_are_counted_over_epochs() -> None:
    assert list(sizes_of(net(), 11, Training(batch=5, steps=7))) == [[5, 5, 1], [5, 5, 1], [5]]
    assert list(sizes_of(net(), 11, Training(batch=5, steps=3))) == [[5, 5, 1]]


def test_no_epoch_changes_nothing() -> None:
    fitted = fit(net(), snapshot(net()), data(), CrossEntropy(), Training(epochs=0), seed=0)
    assert fitted.params == snapshot(net())
    assert np.isnan(fitted.loss)


def test_only_what_is_trainable_moves() -> None:
    fitted = fit(net(), snapshot(net()), data(), CrossEntropy(), Training(), seed=0, trainable=lambda name: name.startswith("head"))
    moved = {name for name, value in fitted.params.tensors.items() if not torch.equal(value, snapshot(net()).tensors[name])}
    assert moved == {"head.weight", "head.bias"}


def test_schedules_scale_the_rate() -> None:
    slow = Training(optimiser=Sgd(lr=0.1), schedule=Exponential(decay=0.5, floor=0.1))
    rounds = {r: fit(net(), snapshot(net()), data(), CrossEntropy(), slow, seed=0, round=r).params for r in (1, 2, 30)}
    for r, share in ((1, 1.0), (2, 0.5), (30, 0.1)):
        assert rounds[r] == fit(net(), snapshot(net()), data(), CrossEntropy(), Training(optimiser=Sgd(lr=0.1 * share)), seed=0).params
    assert [round(Steps(every=3, decay=0.1).factor(r), 6) for r in (3, 4, 7)] == [1.0, 0.1, 0.01]


def test_scores_by_hand() -> None:
    model, examples = net().eval(), data()
    x, y = examples.one_batch()
    with torch.no_grad():
        logits = model(x).numpy()
    exp = np.exp(logits - logits.max(1, keepdims=True))
    losses = -np.log(exp[np.arange(23), y] / exp.sum(1))
    whole = score(net(), snapshot(net()), examples)
    parts = score(net(), snapshot(net()), examples, (0, 10)) + score(net(), snapshot(net()), examples, (10, 23))
    assert whole.metrics()["accuracy"] == (logits.argmax(1) == y.numpy()).mean()
    assert whole.metrics()["loss"] == pytest.approx(losses.mean(), abs=1e-12)
    assert parts.metrics() == pytest.approx(whole.metrics())


def test_augmentation_moves_and_mirrors_whole_images() -> None:
    x = torch.arange(1, 26, dtype=torch.uint8).reshape(1, 1, 5, 5).repeat(300, 2, 1, 1)
    seen = crop_and_flip(x, generator(0, "a"), pad=1)
    assert torch.equal(seen[:, 0], seen[:, 1])
    padded = np.pad(x[0, 0].numpy(), 1)
    windows = [padded[i : i + 5, j : j + 5] for i in range(3) for j in range(3)]
    possible = {w.tobytes() for w in windows} | {np.ascontiguousarray(w[:, ::-1]).tobytes() for w in windows}
    assert {image.numpy().tobytes() for image in seen[:, 0]} == possible
    assert torch.equal(seen, crop_and_flip(x, generator(0, "a"), pad=1))


def test_own_order_of_pixels() -> None:
    rng = np.random.default_rng(0)
    pool = Pool(rng.integers(0, 256, (4, 2, 2, 3), dtype=np.uint8), np.arange(4), train=4, classes=4, mean=(0.0, 0.0), std=(1.0, 1.0))
    order = rng.permutation(6)
    x, _ = Examples(pool, np.arange(4), order, torch.float64).one_batch()
    assert np.allclose(x.numpy(), pool.x.reshape(4, 2, 6)[:, :, order].reshape(4, 2, 2, 3) / 255)


def test_seeds_are_counters() -> None:
    assert seed_of(0, 1, 2, "train") == seed_of(0, 1, 2, "train")
    assert len({seed_of(run, round, client, what) for run in range(5) for round in range(5) for client in range(5) for what in "ab"}) == 250
    assert Record(a=torch.rand(3, generator=generator(1, "x"))) == Record(a=torch.rand(3, generator=generator(1, "x")))


def test_a_rate_by_step_scales_the_learning_rate() -> None:
    """A rate of 0 leaves the network where it is; a rate of 1 is no rate at all; one step at half the rate is half a step."""
    plan = small_experiment(FedAvg())
    site = plan.population().site(0, 1, ModelCache())
    start, training = site.fresh(), Training(epochs=1, batch="all", optimiser=Sgd(lr=0.1))
    moved = {
        rate: fit(site.model(), start, site.train, CrossEntropy(), training, seed=0, rate=lambda step, rate=rate: rate).params.tensors
        for rate in (0.0, 0.5, 1.0)
    }
    plain = fit(site.model(), start, site.train, CrossEntropy(), training, seed=0).params.tensors
    for name, value in start.tensors.items():
        assert torch.equal(moved[0.0][name], value)
        assert torch.equal(moved[1.0][name], plain[name])
        assert torch.allclose(2 * (moved[0.5][name] - value), plain[name] - value, atol=1e-6)


def test_what_is_known_by_sample_is_looked_up_also_when_images_are_augmented() -> None:
    """A table goes with the sample, whatever its pixels look like in this batch."""
    plan = small_experiment(FedAvg())
    site = plan.population().site(0, 1, ModelCache())
    seen: list[tuple[int, int]] = []

    class Spy(CrossEntropy):
        def __call__(self, step: Step) -> torch.Tensor:
            seen.extend(zip(step.frozen["label"].tolist(), step.y.tolist(), strict=True))
            return super().__call__(step)

    training = Training(epochs=2, batch=7, augment="crop-flip", optimiser=Sgd(lr=0.1))
    fit(site.model(), site.fresh(), site.train, Spy(), training, seed=0, frozen={"label": site.train.labels})
    assert len(seen) == 2 * len(site.train)
    assert all(known == label for known, label in seen)


def test_training_does_not_import_what_compiles_networks() -> None:
    """torch's optimisers would: seconds of every start, and of every worker's."""
    code = "import sys\nfrom tests.training.test_loop import *\nfit(net(), snapshot(net()), data(), CrossEntropy(), Training(), seed=0)"
    subprocess.run([sys.executable, "-c", f"{code}\nassert 'torch._dynamo' not in sys.modules"], check=True)


def test_nesterov_without_momentum_is_a_sentence() -> None:
    with pytest.raises(UserError, match="there is no momentum, expected"):
        OPTIMISERS.resolve({"name": "sgd", "nesterov": True})
