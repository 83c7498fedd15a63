"""The rules against numpy, against liars, and in every method that averages."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from coterie.aggregation import AGGREGATIONS, Krum, Median, Private, Sent, TrimmedMean, WeightedMean
from coterie.engines import Inline
from coterie.errors import RunError, UserError
from coterie.method import Federation, aggregate
from coterie.methods import METHODS
from coterie.record import EMPTY, Record
from coterie.replies import Reply
from coterie.running.experiment import Experiment
from coterie.running.rounds import run
from coterie.testing import small_experiment

SHAPES = {"conv": (2, 3, 2), "bias": (4,)}


@pytest.fixture
def values() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    return {name: rng.normal(size=(7, *shape)) for name, shape in SHAPES.items()}


def replies(values: dict[str, np.ndarray]) -> list[Record]:
    return [Record({name: torch.from_numpy(each[at].copy()) for name, each in values.items()}) for at in range(7)]


def merged(rule, values, weights=(1.0,) * 7, sent=Sent()) -> dict[str, np.ndarray]:  # noqa: B008
    return {name: each.numpy() for name, each in rule.merged(replies(values), weights, sent).tensors.items()}


def test_the_median_is_numpys(values) -> None:
    for name, found in merged(Median(), values).items():
        np.testing.assert_array_equal(found, np.median(values[name], axis=0))


def test_the_median_of_an_even_number_is_between_the_middle_two() -> None:
    two = [Record(w=torch.tensor([1.0])), Record(w=torch.tensor([2.0]))]
    assert Median().merged(two, [1, 1], Sent())["w"].item() == 1.5


def test_the_trimmed_mean_is_scipys(values) -> None:
    from scipy.stats import trim_mean

    for name, found in merged(TrimmedMean(share=2 / 7), values).items():
        np.testing.assert_allclose(found, trim_mean(values[name], 2 / 7 + 1e-9, axis=0), rtol=1e-12)


def test_the_clipped_mean_is_weighted_and_no_update_is_longer_than_said(values) -> None:
    weights, around = np.arange(1.0, 8.0), {name: np.full(shape, 0.5) for name, shape in SHAPES.items()}
    sent = Sent(Record({name: torch.from_numpy(each) for name, each in around.items()}))
    norms = np.sqrt(sum(((values[name] - around[name]) ** 2).reshape(7, -1).sum(1) for name in SHAPES))
    factors = np.minimum(1, 2.0 / norms)
    assert (factors < 1).any()
    for name, found in merged(WeightedMean(clip=2.0), values, weights, sent).items():
        near = np.stack([around[name] + f * (v - around[name]) for f, v in zip(factors, values[name], strict=True)])
        np.testing.assert_allclose(found, np.average(near, axis=0, weights=weights), rtol=1e-12)


def test_krum_takes_the_reply_with_the_nearest_neighbours(values) -> None:
    flat = np.concatenate([each.reshape(7, -1) for each in values.values()], axis=1)
    distances = ((flat[:, None] - flat[None]) ** 2).sum(2)
    scores = np.array([np.sort(np.delete(row, at))[: 7 - 2 - 2].sum() for at, row in enumerate(distances)])
    best = np.argsort(scores)[:3]
    for name, found in merged(Krum(liars=2), values).items():
        np.testing.assert_array_equal(found, values[name][best[0]])
    for name, found in merged(Krum(liars=2, keep=3), values).items():
        np.testing.assert_allclose(found, values[name][best].mean(0), rtol=1e-12)


def test_krum_says_how_many_it_needs(values) -> None:
    with pytest.raises(RunError, match="needs 9 replies, 7 came"):
        merged(Krum(liars=3), values)


@pytest.mark.parametrize("rule", [Median(), TrimmedMean(share=0.3), Krum(liars=2)], ids=lambda rule: rule.name)
def test_two_liars_of_seven_cannot_move_what_is_robust(rule, values) -> None:
    lying = {name: each.copy() for name, each in values.items()}
    for each in lying.values():
        each[[1, 4]] = 1e9
    for name, found in merged(rule, lying).items():
        honest = np.delete(values[name], [1, 4], axis=0)
        assert (found >= honest.min(0)).all()
        assert (found <= honest.max(0)).all()


def test_whole_numbers_stay_and_no_liar_chooses_them() -> None:
    counted = [Record(n=torch.tensor(value)) for value in (3, 4, 10**12)]
    assert Median().merged(counted, [1] * 3, Sent())["n"].item() == 4
    assert WeightedMean(clip=1.0).merged(counted, [1] * 3, Sent())["n"].item() == 10**12


def test_private_noise_has_the_promised_size() -> None:
    around, width = Record(w=torch.zeros(200_000, dtype=torch.float64)), 200_000
    far = [Record(w=torch.full((width,), value, dtype=torch.float64)) for value in (5.0, -3.0, 1.0, 1.0)]
    sent = Sent(around, asked=8, noise=lambda: torch.Generator().manual_seed(1))
    found = Private(clip=0.5, noise=3.0).merged(far, [1] * 4, sent).tensors["w"]
    share = 0.5 / math.sqrt(width) / 8  # a clipped update's coordinate, among the eight that were asked
    assert found.std().item() == pytest.approx(3.0 * 0.5 / 8, rel=0.01)
    assert found.mean().item() == pytest.approx(2 * share, abs=4 * 3.0 * 0.5 / 8 / math.sqrt(width))


def test_private_noise_that_is_not_seeded_does_not_repeat() -> None:
    sent = Sent(Record(w=torch.zeros(3)), 1, lambda: torch.Generator().manual_seed(1))
    reply = [Record(w=torch.ones(3))]
    assert Private().merged(reply, [1], sent) == Private().merged(reply, [1], sent)
    assert Private(seeded=False).merged(reply, [1], sent) != Private(seeded=False).merged(reply, [1], sent)


def test_epsilon_is_the_gaussian_mechanisms() -> None:
    """Against the bound by hand: Renyi divergence of order a is a r / (2 z^2), turned into epsilon by the classical conversion."""
    rounds, noise, delta = 20, 5.0, 1e-5
    orders = np.linspace(1.01, 200, 20_000)
    by_hand = (orders * rounds / (2 * noise**2) + np.log(1 / delta) / (orders - 1)).min()
    found = Private(noise=noise, delta=delta).epsilon(rounds)
    assert 0.7 * by_hand < found <= by_hand


AVERAGING = ["fedavg", "fedprox", "scaffold", "ditto", "fedper", "fml"]


@pytest.mark.parametrize("name", AVERAGING)
@pytest.mark.parametrize("rule", ["median", {"name": "krum", "liars": 1}, {"name": "private", "clip": 0.1}], ids=str)
def test_every_averaging_method_takes_every_rule(name, rule, tmp_path) -> None:
    method = METHODS.resolve({"name": name, "aggregation": rule})
    found = run(small_experiment(method, rounds=1, cohort=1.0), tmp_path / "run", engine=Inline())
    plain = run(small_experiment(METHODS.resolve(name), rounds=1, cohort=1.0), tmp_path / "plain", engine=Inline())
    assert found.state.digest() != plain.state.digest()
    assert found.state.fault() is None


def test_the_mean_by_name_is_the_mean(tmp_path) -> None:
    plain, named = METHODS.resolve("fedavg"), METHODS.resolve({"name": "fedavg", "aggregation": "mean"})
    assert plain == named


def test_the_ledger_says_what_privacy_costs(tmp_path) -> None:
    seen = []
    method = METHODS.resolve({"name": "fedavg", "aggregation": {"name": "private", "noise": 2.0}})
    run(small_experiment(method, rounds=2), tmp_path / "run", engine=Inline(), callbacks=[seen.append])
    logged = [event["values"] for event in seen if event["event"] == "log" and event["name"] == "epsilon"]
    assert logged == [[Private(noise=2.0).epsilon(1)], [Private(noise=2.0).epsilon(2)]]


@pytest.mark.parametrize(("name", "why"), [("feddf", "every client's own model"), ("split-metadata", "maps of single samples")])
def test_private_is_refused_where_something_else_is_sent(name, why) -> None:
    table = small_experiment(METHODS.resolve("fedavg")).resolved()
    table["data"]["public"] = {"source": "digits", "samples": 20}
    table |= {"model": {"name": "cnn", "channels": [3, 5], "hidden": [12]}, "method": {"name": name, "aggregation": "private"}}
    with pytest.raises(UserError, match=why):
        Experiment.parse(table).population()


def test_an_unknown_rule_is_named() -> None:
    with pytest.raises(UserError, match="aggregation 'medain' is unknown: did you mean 'median'"):
        METHODS.resolve({"name": "fedavg", "aggregation": "medain"})
    assert set(AGGREGATIONS) == {"mean", "median", "trimmed-mean", "krum", "private"}


def test_a_group_that_no_reply_has_is_named_with_the_nearest_whatever_the_rule() -> None:
    fed = Federation()
    fed.cohort = (0,)
    for rule in (WeightedMean(), Median()):
        with pytest.raises(LookupError, match="no reply has a group 'modle' of tensors: did you mean 'model'"):
            aggregate(rule, fed, [Reply(0, Record(model={"w": torch.ones(1)}, examples=1))], EMPTY, "modle")
