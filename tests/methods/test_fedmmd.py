"""FedMMD and the two-stream L2 against equations written again in numpy, to FedAvg where they are switched off, in safety everywhere."""

from __future__ import annotations

import tomllib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from tests.methods import oracle_two_stream as oracle
from tests.methods.two_stream import Patches, assert_same, by_hand, cifar_experiment, passes, run_inline, traffic, whole_batches

from coterie.errors import UserError
from coterie.methods import FedAvg, FedMMD, FedProx, TwoStreamL2
from coterie.methods.mmd import MMD, L2Regulariser, MMDRegulariser, Regulariser, SquaredDistance, mmd2
from coterie.methods.regularisers import ProximalRegulariser
from coterie.models import MLP
from coterie.running.admission import Admission
from coterie.running.experiment import Experiment
from coterie.testing import check_method, small_experiment
from coterie.training.objectives import Step

MODEL = 4 * (64 * 16 + 16 + 16 * 10 + 10)
RULES = {"fixed": oracle.fixed_bandwidths, "mean": oracle.mean_bandwidths}
TOLERANCE = {torch.float64: 1e-11, torch.float32: 1e-6}


def streams(samples: int, displacement: float, dtype: torch.dtype, outputs: int = 10, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Logits like N(0, 2) and the same displaced, exact in `dtype`, as double precision."""
    rng = np.random.default_rng(seed)
    frozen = rng.normal(0, 2, (samples, outputs))
    local = frozen + displacement * rng.normal(size=frozen.shape)
    return tuple(torch.tensor(each).to(dtype).double().numpy() for each in (frozen, local))


def with_gradient(term, frozen: np.ndarray, local: np.ndarray, dtype: torch.dtype) -> tuple[float, np.ndarray]:
    """A term's value and its gradient with respect to the local stream."""
    ours = torch.tensor(local, dtype=dtype, requires_grad=True)
    value = term(torch.tensor(frozen, dtype=dtype), ours)
    value.backward()
    assert value.dtype == dtype
    return value.item(), ours.grad.double().numpy()


def step_of(frozen: torch.Tensor, local: torch.Tensor) -> Step:
    """A batch whose logits are given."""
    step = Step(torch.nn.Identity(), local, torch.zeros(len(local)), {}, {"global logits": frozen})
    step.logits = local
    return step


# --- the terms against the oracle ---


@pytest.mark.parametrize("rule", RULES)
def test_the_oracle_agrees_with_differences(rule) -> None:
    frozen, local = streams(5, 0.4, torch.float64, outputs=3)
    widths = RULES[rule](frozen, local)
    for value, gradient in (
        (lambda at: oracle.mmd2(frozen, at, widths), oracle.mmd2_gradient(frozen, local, widths)),
        (lambda at: oracle.l2(frozen, at), oracle.l2_gradient(frozen, local)),
        (lambda at: oracle.l2(frozen, at, "mean"), oracle.l2_gradient(frozen, local, "mean")),
    ):
        for place in np.ndindex(local.shape):
            nudge = np.zeros_like(local)
            nudge[place] = 1e-5
            assert (value(local + nudge) - value(local - nudge)) / 2e-5 == pytest.approx(gradient[place], abs=1e-7)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("samples", [1, 2, 32])
@pytest.mark.parametrize("displacement", [1e-4, 1e-3, 1e-2, 0.1, 0.5, 1.0, 3.0, 100.0])
def test_mmd2_and_its_gradient(dtype, rule, samples, displacement) -> None:
    frozen, local = streams(samples, displacement, dtype)
    widths = RULES[rule](frozen, local)
    value, gradient = with_gradient(lambda x, y: mmd2(x, y, rule), frozen, local, dtype)
    expected, slope = oracle.mmd2(frozen, local, widths), oracle.mmd2_gradient(frozen, local, widths)
    assert value == pytest.approx(expected, rel=TOLERANCE[dtype], abs=5 * TOLERANCE[dtype])
    assert np.abs(gradient - slope).max() <= TOLERANCE[dtype] * max(1.0, np.abs(slope).max())


def test_mmd2_of_batches_of_different_sizes() -> None:
    frozen, local = streams(7, 0.5, torch.float64)
    for rule in RULES:
        widths = RULES[rule](frozen[:4], local)
        value, gradient = with_gradient(lambda x, y, rule=rule: mmd2(x, y, rule), frozen[:4], local, torch.float64)
        assert value == pytest.approx(oracle.mmd2(frozen[:4], local, widths), rel=1e-12)
        np.testing.assert_allclose(gradient, oracle.mmd2_gradient(frozen[:4], local, widths), atol=1e-12)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("samples", [1, 16])
def test_l2_and_its_gradient(dtype, reduction, samples) -> None:
    frozen, local = streams(samples, 0.5, dtype)
    term = SquaredDistance("logits", reduction)
    value, gradient = with_gradient(lambda x, y: term(step_of(x, y)), frozen, local, dtype)
    assert value == pytest.approx(oracle.l2(frozen, local, reduction), rel=TOLERANCE[dtype])
    np.testing.assert_allclose(gradient, oracle.l2_gradient(frozen, local, reduction), rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("rule", RULES)
def test_the_mmd_term_takes_its_kernels_and_its_floor(rule) -> None:
    frozen, local = streams(8, 0.5, torch.float64)
    expected = oracle.mmd2(frozen, local, RULES[rule](frozen, local))
    for floor in (0.0, expected / 2, expected * 2):
        term = MMDRegulariser(lam=0.3, kernels=rule, floor=floor).objective()
        value, gradient = with_gradient(lambda x, y, term=term: term(step_of(x, y)), frozen, local, torch.float64)
        assert value == pytest.approx(0.3 * max(expected, floor), rel=1e-11)
        pushes = 0.3 * oracle.mmd2_gradient(frozen, local, RULES[rule](frozen, local)) * (floor < expected)
        np.testing.assert_allclose(gradient, pushes, rtol=0, atol=1e-11)


# --- properties ---

NUMBERS = st.floats(-50, 50, allow_subnormal=False, width=32)
PAIRS = st.tuples(st.integers(1, 6), st.integers(1, 4)).flatmap(
    lambda shape: st.tuples(arrays(float, shape, elements=NUMBERS), st.randoms())
)


@settings(max_examples=40, deadline=None)
@given(PAIRS, st.sampled_from(sorted(RULES)), st.sampled_from(sorted(TOLERANCE, key=str)), st.integers(0, 99))
def test_mmd2_is_zero_at_home_symmetric_and_blind_to_order(pair, rule, dtype, seed) -> None:
    values, random = pair
    x = torch.tensor(values, dtype=dtype)
    y = x + torch.randn(x.shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))
    order = random.sample(range(len(x)), len(x))
    near = {"rel": 100 * torch.finfo(dtype).eps, "abs": 100 * torch.finfo(dtype).eps}
    assert mmd2(x, x, rule).item() == 0
    assert mmd2(x, x[order], rule).item() == pytest.approx(0, **near)
    assert mmd2(x, y, rule).item() >= 0
    assert mmd2(x, y, rule).item() == pytest.approx(mmd2(y, x, rule).item(), **near)
    assert mmd2(x[order], y, rule).item() == pytest.approx(mmd2(x, y, rule).item(), **near)
    assert mmd2(x, y[order], rule).item() == pytest.approx(mmd2(x, y, rule).item(), **near)


@settings(max_examples=60, deadline=None)
@given(
    st.one_of(st.sampled_from([0.0, 1e6]), st.floats(-45, 6).map(lambda power: 10.0**power)),
    st.sampled_from(sorted(RULES)),
    st.sampled_from(sorted(TOLERANCE, key=str)),
    st.sampled_from([1, 2, 5]),
    st.booleans(),
)
def test_mmd2_is_safe_from_no_distance_to_a_million(distance, rule, dtype, samples, together) -> None:
    """Finite value and gradient, with the samples of a stream apart or all in one place."""
    rng = torch.Generator().manual_seed(1)
    base = torch.zeros(samples, 3, dtype=dtype) if together else torch.randn(samples, 3, dtype=dtype, generator=rng)
    local = (base + distance / 3**0.5).requires_grad_()
    value = mmd2(base, local, rule)
    value.backward()
    assert 0 <= value.item() <= 2 * 19 + 1e-4
    assert torch.isfinite(local.grad).all()


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_mmd2_is_safe_between_distances_that_square_to_nothing(rule, dtype) -> None:
    """The square of 1e-20 is a subnormal in float32, that of 1e-160 in float64; a little below, both are 0."""
    for power in [*range(-170, -150), *range(-25, 7)]:
        for base in (torch.zeros(1, 2, dtype=dtype), torch.zeros(3, 2, dtype=dtype)):
            local = (base + 10.0**power).requires_grad_()
            value = mmd2(base, local, rule)
            value.backward()
            assert torch.isfinite(value), power
            assert torch.isfinite(local.grad).all(), power


def test_mmd2_is_never_negative() -> None:
    """The same samples in another order: what is left is rounding, of either sign."""
    for seed in range(60):
        x = torch.randn(9, 4, generator=torch.Generator().manual_seed(seed))
        assert 0 <= mmd2(x, x.flip(0)).item() < 1e-5


def test_the_gradient_at_home_is_zero() -> None:
    """To rounding: what rounds is the sum over pairs, whose entries the narrowest kernel makes large for samples that are close."""
    for dtype in TOLERANCE:
        for rule in RULES:
            frozen, _ = streams(32, 0, dtype)
            value, gradient = with_gradient(lambda x, y, rule=rule: mmd2(x, y, rule), frozen, frozen, dtype)
            assert value == 0
            assert np.abs(gradient).max() <= 10 * torch.finfo(dtype).eps


def test_a_rounds_first_step_is_fedavgs(tmp_path) -> None:
    """One step a round is the first one, where the streams are one; from the second step on the term pulls."""

    def end(term: Regulariser | None, steps: int) -> torch.Tensor:
        plan = whole_batches(FedAvg(regularisers=(term,) if term else ()), steps=steps, rounds=2)
        plan = plan.replace(admission=Admission(max_ratio=1e12))  # such weights send models far away
        return run_inline(plan, tmp_path / f"{term}{steps}")[0].state.group("model").tensors["head.weight"]

    plain = {steps: end(None, steps) for steps in (1, 2)}
    for term in (
        MMDRegulariser(lam=10.0),
        MMDRegulariser(lam=10.0, kernels="mean"),
        MMDRegulariser(lam=10.0, on="features"),
        L2Regulariser(lam=10.0),
    ):
        assert (end(term, 1) - plain[1]).abs().max() < 1e-8, term
        assert (end(term, 2) - plain[2]).abs().max() > 1e-6, term


# --- whole runs against the oracle ---


@pytest.mark.parametrize(
    ("method", "objective"),
    [
        (FedMMD(lam=0.7), {"mmd": 0.7}),
        (FedMMD(lam=0.7, on="features"), {"mmd": 0.7, "on": "features"}),
        (FedMMD(lam=0.7, kernels="mean"), {"mmd": 0.7, "rule": "mean"}),
        (TwoStreamL2(lam=0.01), {"pull": 0.01}),
        (TwoStreamL2(lam=0.2, reduction="mean"), {"pull": 0.2, "reduction": "mean"}),
        (TwoStreamL2(lam=0.005, on="features"), {"pull": 0.005, "on": "features"}),
        (FedProx(mu=0.3, regularisers=(MMDRegulariser(lam=0.5), L2Regulariser(lam=0.01))), {"mu": 0.3, "mmd": 0.5, "pull": 0.01}),
    ],
)
def test_whole_runs(method, objective, tmp_path) -> None:
    plan = whole_batches(method)
    expected = by_hand(plan, **objective)
    assert_same(run_inline(plan, tmp_path / "run")[0].state.group("model"), expected)
    without = by_hand(plan)
    assert max(np.abs(expected[name] - without[name]).max() for name in without) > 1e-4, "the term must matter here"


# --- the contract ---


@pytest.mark.parametrize("method", [FedMMD(), TwoStreamL2()])
def test_conformance_on_every_engine(method) -> None:
    check_method(method, up=MODEL, down=MODEL)


@pytest.mark.parametrize(
    "method",
    [
        FedMMD(on="features", kernels="mean", floor=1e-4, weighting="uniform"),
        FedProx(mu=0.1, regularisers=(MMDRegulariser(), L2Regulariser(on="features", reduction="mean"))),
    ],
)
def test_conformance_of_the_options(method) -> None:
    check_method(method, small_experiment(method, rounds=2), up=MODEL, down=MODEL, engines=())


@pytest.mark.parametrize(
    "method",
    [
        FedMMD(lam=0.0, floor=1e-4),
        TwoStreamL2(lam=0.0),
        FedAvg(regularisers=(MMDRegulariser(lam=0.0), L2Regulariser(lam=0.0), ProximalRegulariser(mu=0.0))),
    ],
)
def test_switched_off_it_is_fedavg_to_the_bit(method) -> None:
    check_method(method, small_experiment(method, rounds=2), same_as=FedAvg(), engines=())


@pytest.mark.parametrize("method", [FedAvg(), FedMMD(), TwoStreamL2()])
def test_bytes_of_the_papers_network(method, tmp_path) -> None:
    _, seen = run_inline(cifar_experiment(method), tmp_path / "run")
    assert traffic(seen) == {"up": {7_025_704}, "down": {7_025_704}}


@pytest.mark.parametrize("method", [FedMMD(), FedMMD(on="features"), TwoStreamL2(), FedMMD(regularisers=(L2Regulariser(lam=0.001),))])
def test_the_frozen_stream_runs_once_per_client_and_round(method, tmp_path) -> None:
    plan = whole_batches(method, steps=3, rounds=2)
    sizes = plan.population().partition.train.sizes.tolist()
    found = passes(plan.replace(training=plan.training.replace(batch=7)), tmp_path / "run")
    assert found == ([*sizes, *sizes], 2 * 3 * sum(sizes))


def test_the_frozen_stream_runs_per_batch_where_images_are_augmented(tmp_path) -> None:
    plan = whole_batches(FedMMD(), steps=3, rounds=1)
    sizes = plan.population().partition.train.sizes.tolist()
    found, _ = passes(plan.replace(training=plan.training.replace(augment="crop-flip")), tmp_path / "run")
    assert found == [size for size in sizes for _ in range(3)]
    assert passes(plan.replace(method=FedMMD(lam=0.0)), tmp_path / "off") == ([], 3 * sum(sizes))


def test_a_client_of_one_sample_and_batches_of_one(tmp_path) -> None:
    for rule in RULES:
        plan = small_experiment(FedMMD(lam=1.0, kernels=rule), rounds=2)
        plan = plan.replace(training=plan.training.replace(batch=1), data={"source": "digits", "train": 30, "test": 10})
        plan = plan.replace(partition={"name": "quantity", "clients": 5, "minimum": 1}, admission=Admission(max_ratio=1e12))
        assert run_inline(plan, tmp_path / rule)[0].state.fault() is None


# --- configuration ---


def parse(method: str) -> Experiment:
    """An experiment whose method is written as TOML."""
    table = small_experiment(FedAvg(), rounds=2).resolved() | tomllib.loads(method)
    return Experiment.parse(table)


def test_written_in_toml() -> None:
    assert parse("method = 'fedmmd'").method == FedMMD(lam=0.1, on="logits", kernels="fixed", floor=0.0)
    assert parse("method = 'two-stream-l2'").method == TwoStreamL2(reduction="sum")
    composed = parse("method = { name = 'fedprox', mu = 0.1, regularisers = [{ name = 'mmd', lam = 0.5, kernels = 'mean' }, 'l2'] }")
    assert composed.method == FedProx(mu=0.1, regularisers=(MMDRegulariser(lam=0.5, kernels="mean"), L2Regulariser()))
    assert Experiment.parse(composed.resolved()) == composed
    names = [type(each.term).__name__ for each in composed.method.objective().terms[1:]]
    assert names == ["Proximal", "MMD", "SquaredDistance"]


def test_a_term_and_its_method_are_one(tmp_path) -> None:
    """FedMMD is FedAvg with the term, to the bit, and so is its rival."""
    for method, same in (
        (FedMMD(lam=0.5), "method = { name = 'fedavg', regularisers = [{ name = 'mmd', lam = 0.5 }] }"),
        (TwoStreamL2(lam=0.05), "method = { name = 'fedavg', regularisers = [{ name = 'l2', lam = 0.05 }] }"),
    ):
        check_method(method, parse(same), same_as=parse(same).method, engines=())


@pytest.mark.parametrize(
    ("method", "complaint"),
    [
        ("method = { name = 'fedavg', regularisers = ['mdm'] }", "regulariser 'mdm' is unknown: did you mean 'mmd'"),
        ("method = { name = 'fedavg', regularisers = [{ name = 'mmd', lamb = 1.0 }] }", "lamb = 1.0: no such key here, did you mean 'lam'"),
        ("method = { name = 'fedmmd', lam = -0.1 }", "method.lam = -0.1: .*greater than or equal to 0"),
        ("method = { name = 'fedmmd', on = 'outputs' }", "method.on = 'outputs': .*'logits' or 'features'"),
        ("method = { name = 'two-stream-l2', reduction = 'max' }", "method.reduction = 'max': .*'sum' or 'mean'"),
    ],
)
def test_mistakes_in_toml(method, complaint) -> None:
    with pytest.raises(UserError, match=complaint):
        parse(method)


def test_features_are_what_the_head_sees() -> None:
    """On a staged network: the objective on features compares the head's input."""
    net = MLP(hidden=(6,)).build((1, 8, 8), 10)
    x = torch.randn(4, 1, 8, 8)
    seen = net.lower("dense1")(x)
    step = Step(net, x, torch.zeros(4), {}, {"global features": seen.detach() + 1})
    expected = oracle.l2(seen.detach().numpy() + 1, seen.detach().numpy())
    assert SquaredDistance("features")(step).item() == pytest.approx(expected, rel=1e-6)
    widths = oracle.fixed_bandwidths(seen, seen)
    frozen, local = (each.detach().double().numpy() for each in (step.frozen["global features"], seen))
    assert MMD("features")(step).item() == pytest.approx(oracle.mmd2(frozen, local, widths), rel=1e-5)
    assert Patches().build((1, 8, 8), 10).features(x).shape == (4, 16)
