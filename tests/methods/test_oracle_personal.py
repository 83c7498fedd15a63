"""The oracles of SCAFFOLD, Ditto, FedPer and FedProto: gradients by differences, what the equations imply, and the library's batches."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from tests.methods import oracle_personal as oracle
from tests.methods import oracle_training as plain
from tests.methods import personal
from tests.methods.oracle_training import Client, Federation, Sgd, Weights

from coterie.engines import Inline
from coterie.methods import FedAvg, Local
from coterie.running.rounds import run

INPUTS, HIDDEN, CLASSES = 6, 5, 4
SIZES = (5, 11, 17, 8)
EVERYBODY = ((0, 1, 2, 3),) * 3
SOME = ((2, 0), (1, 3), (3, 2, 0))
STEADY = Sgd(0.1, momentum=0.9, decay=0.01)


def some_weights(seed: int) -> Weights:
    rng = np.random.default_rng(seed)
    shapes = {"A": (HIDDEN, INPUTS), "a": (HIDDEN,), "B": (CLASSES, HIDDEN), "b": (CLASSES,)}
    return {name: rng.normal(size=shape) for name, shape in shapes.items()}


def shuffled(sizes: tuple[int, ...], round: int, client: int, purpose: str) -> plain.Epochs:
    """Two epochs in batches of four."""
    rng = np.random.default_rng([round, client, len(purpose)])
    return [np.array_split(rng.permutation(sizes[client]), -(-sizes[client] // 4)) for _ in range(2)]


def all_at_once(sizes: tuple[int, ...], epochs: int, round: int, client: int, purpose: str) -> plain.Epochs:
    return [[np.arange(sizes[client])]] * epochs


def federation(cohorts=EVERYBODY, sgd: Sgd = STEADY, sizes: tuple[int, ...] = SIZES, epochs: int | None = None) -> Federation:
    """Clients with data of their own, whose labels lean to one class each; `epochs` of whole batches, or two of small ones."""
    clients = []
    for k, size in enumerate(sizes):
        rng = np.random.default_rng(100 + k)
        y = rng.integers(CLASSES, size=size)
        y[: size // 2] = k % CLASSES
        clients.append(Client(rng.normal(size=(size, INPUTS)) + y[:, None], y))
    orders = partial(shuffled, sizes) if epochs is None else partial(all_at_once, sizes, epochs)
    return Federation(clients, cohorts, orders, sgd)


def own_starts(number: int = len(SIZES)) -> list[Weights]:
    return [some_weights(10 + k) for k in range(number)]


def close(found: Weights, expected: Weights, atol: float = 1e-12) -> None:
    assert found.keys() == expected.keys()
    for name, part in expected.items():
        np.testing.assert_allclose(found[name], part, rtol=0, atol=atol, err_msg=name)


def distance(a: Weights, b: Weights) -> float:
    return float(np.sqrt(sum(((a[name] - b[name]) ** 2).sum() for name in a)))


def by_differences(function, w: Weights, step: float = 1e-6) -> Weights:
    """Central differences of a function of weights."""
    found = {name: np.zeros_like(part) for name, part in w.items()}
    for name, part in w.items():
        for place in np.ndindex(part.shape):
            up, down = ({**w, name: part.copy()} for _ in range(2))
            up[name][place] += step
            down[name][place] -= step
            found[name][place] = (function(up) - function(down)) / (2 * step)
    return found


# --- the network and its training ---


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("kind", [None, *oracle.KINDS])
def test_gradients_agree_with_finite_differences(activation, kind) -> None:
    data, w = federation().clients[2], some_weights(0)
    prototypes = {j: np.random.default_rng(j).normal(size=HIDDEN) for j in (0, 2, 3)}
    assert set(data.y.tolist()) == {0, 1, 2, 3}, "one class of the batch must have no prototype"
    how = {} if kind is None else {"lam": 0.7, "term": partial(oracle.prototype_term, prototypes, kind)}
    _, found = plain.loss_and_gradient(w, data.x, data.y, activation, **how)
    expected = by_differences(lambda at: plain.loss_and_gradient(at, data.x, data.y, activation, **how)[0], w)
    close(found, expected, atol=1e-7)


def test_the_slopes_of_ditto_and_scaffold_agree_with_finite_differences() -> None:
    fed, w, anchor, c, ci = federation(), *(some_weights(seed) for seed in range(4))
    x, y = fed.clients[1].x, fed.clients[1].y

    def pulled(at: Weights) -> float:
        return plain.loss_and_gradient(at, x, y)[0] + 0.3 / 2 * distance(at, anchor) ** 2

    def corrected(at: Weights) -> float:
        return plain.loss_and_gradient(at, x, y)[0] + sum(float(((c[name] - ci[name]) * at[name]).sum()) for name in at)

    close(oracle._pulled(fed, 0.3, anchor, w, x, y), by_differences(pulled, w), atol=1e-7)
    close(oracle._corrected(fed, c, ci, w, x, y), by_differences(corrected, w), atol=1e-7)


def test_momentum_and_decay_are_those_of_the_recursion_written_out() -> None:
    fed, w = federation(cohorts=((0,),), epochs=3), some_weights(0)
    g = partial(fed.loss_gradient, x=fed.clients[0].x, y=fed.clients[0].y)
    first = {name: g(w)[name] + 0.01 * w[name] for name in w}
    w1 = {name: w[name] - 0.1 * first[name] for name in w}
    second = {name: 0.9 * first[name] + g(w1)[name] + 0.01 * w1[name] for name in w}
    w2 = {name: w1[name] - 0.1 * second[name] for name in w}
    third = {name: 0.9 * second[name] + g(w2)[name] + 0.01 * w2[name] for name in w}
    close(plain.fedavg(fed, w), {name: w2[name] - 0.1 * third[name] for name in w})


def test_a_kept_speed_makes_two_rounds_one_and_a_fresh_one_does_not() -> None:
    start = own_starts(1)
    once = plain.local(federation(((0,),), sizes=(5,), epochs=4), start)[0]
    kept, fresh = (dataclasses.replace(STEADY, kept=kept) for kept in (True, False))
    close(plain.local(federation(((0,), (0,)), kept, (5,), epochs=2), start)[0], once)
    assert distance(plain.local(federation(((0,), (0,)), fresh, (5,), epochs=2), start)[0], once) > 0.01


def test_the_schedule_multiplies_the_rate_of_its_round() -> None:
    halved = federation(sgd=Sgd(0.2, schedule=lambda round: 0.5))
    close(plain.fedavg(halved, some_weights(0)), plain.fedavg(federation(sgd=Sgd(0.1)), some_weights(0)))


# --- SCAFFOLD ---


@pytest.mark.parametrize("sgd", [Sgd(0.1), STEADY])
def test_scaffold_of_one_client_is_its_training_alone(sgd) -> None:
    """c equals c_1 at all times, so the correction vanishes."""
    fed, start = federation(((0,),) * 4, sgd, sizes=(17,)), some_weights(0)
    found = oracle.scaffold(fed, start)
    close(found.x, plain.local(fed, [start])[0], atol=1e-10)
    close(found.c, found.variates[0])
    assert distance(found.c, plain.zeros(start)) > 0.1


@pytest.mark.parametrize("cohort", [(0, 1, 2, 3), (3, 1)])
@pytest.mark.parametrize("weighting", ["uniform", "samples"])
def test_the_first_round_of_scaffold_is_fedavg(cohort, weighting) -> None:
    fed, start = federation((cohort,)), some_weights(0)
    expected = plain.fedavg(fed, start, weighting)
    close(oracle.scaffold(fed, start, weighting=weighting).x, expected)
    half = oracle.scaffold(fed, start, eta_g=0.5, weighting=weighting).x
    close(half, plain.mean([start, expected], [1, 1]))


@pytest.mark.parametrize("cohorts", [EVERYBODY, SOME])
def test_the_servers_variate_is_the_mean_of_all_clients_variates(cohorts) -> None:
    """c grows by |S| / N times the mean over S, which is the sum over S divided by N."""
    found = oracle.scaffold(federation(cohorts), some_weights(0), eta_g=0.8)
    close(found.c, plain.mean(found.variates, [1.0] * len(SIZES)))


def test_a_variate_is_the_mean_gradient_of_the_clients_last_round(monkeypatch) -> None:
    """Option II of plain SGD: the corrections cancel, whatever c and c_i were."""
    seen: list[tuple[Weights, Weights]] = []

    def watch(fed, c, ci, w, x, y, corrected=oracle._corrected) -> Weights:
        seen.append((ci, fed.loss_gradient(w, x, y)))
        return corrected(fed, c, ci, w, x, y)

    monkeypatch.setattr(oracle, "_corrected", watch)
    found = oracle.scaffold(federation(((0, 1, 2, 3), (1, 2)), Sgd(0.1)), some_weights(0))
    own = [gradient for ci, gradient in seen if ci is seen[-1][0]]
    assert len(own) == 10, "client 2, the last of the second round: two epochs of five batches"
    close(found.variates[2], plain.mean(own, [1.0] * len(own)))


def test_one_full_step_of_every_client_makes_scaffold_gradient_descent() -> None:
    """The corrections sum to zero over all clients, so x goes down the mean of their losses."""
    fed, w = federation(((0, 1, 2, 3),) * 5, Sgd(0.1), epochs=1), some_weights(0)
    found = oracle.scaffold(fed, w, eta_g=1.5).x
    for _ in range(5):
        slope = plain.mean([fed.loss_gradient(w, data.x, data.y) for data in fed.clients], [1.0] * 4)
        w = plain.plus(w, -1.5 * 0.1, slope)
    close(found, w)


def test_scaffold_leaves_fedavg_after_the_first_round() -> None:
    assert distance(oracle.scaffold(federation(), some_weights(0)).x, plain.fedavg(federation(), some_weights(0), "uniform")) > 0.01


def test_a_client_without_a_step_keeps_its_variate() -> None:
    found = oracle.scaffold(federation(epochs=0), some_weights(0))
    close(found.x, some_weights(0))
    close(found.variates[1], plain.zeros(found.x))


# --- Ditto ---


@pytest.mark.parametrize("cohorts", [EVERYBODY, SOME])
def test_ditto_without_its_pull_is_fedavg_beside_local_training(cohorts) -> None:
    fed, start = federation(cohorts), some_weights(0)
    found = oracle.ditto(fed, start, lam=0.0, personal=own_starts())
    close(found.w, plain.fedavg(fed, start))
    for k, expected in enumerate(plain.local(fed, own_starts(), "personal")):
        close(found.v[k], expected)


def test_the_pull_does_not_touch_dittos_global_model() -> None:
    close(oracle.ditto(federation(), some_weights(0), lam=0.5).w, plain.fedavg(federation(), some_weights(0)))


def test_a_personal_model_without_a_start_begins_at_the_first_global_model_received() -> None:
    fed, start = federation(SOME), some_weights(0)
    found = oracle.ditto(dataclasses.replace(fed, cohorts=SOME[:2]), start, lam=0.4)
    received = plain.fedavg(dataclasses.replace(fed, cohorts=SOME[:1]), start)
    alone, _ = plain.Training(fed).fit(2, 1, received, partial(oracle._pulled, fed, 0.4, received), "personal")
    close(found.v[1], alone)
    assert oracle.ditto(dataclasses.replace(fed, cohorts=SOME[:1]), start, lam=0.4).v.keys() == {0, 2}


def test_a_growing_pull_draws_the_personal_model_to_the_received_one() -> None:
    """With lr = 1 / lam a step is v = w - grad F(v) / lam: no further from w than the gradient over lam."""
    fed, start = federation(((0, 1, 2, 3),)), some_weights(0)
    away = [distance(oracle.ditto(fed, start, lam, own_starts(), Sgd(1 / lam)).v[2], start) for lam in (1e2, 1e4, 1e6)]
    assert away[0] > away[1] > away[2]
    assert away[1] / away[2] == pytest.approx(100, rel=0.05)
    assert away[2] < 1e-5


def test_the_personal_model_settles_where_the_loss_and_the_pull_balance() -> None:
    smooth = dataclasses.replace(federation(((1,),), epochs=400), activation="tanh")  # at a kink of ReLU descent does not settle
    v, data, start = oracle.ditto(smooth, some_weights(0), 1.0, None, Sgd(0.1)).v[1], smooth.clients[1], some_weights(0)
    close(smooth.loss_gradient(v, data.x, data.y), plain.plus(start, -1.0, v), atol=1e-8)


# --- FedPer ---


@pytest.mark.parametrize("cohorts", [EVERYBODY, SOME])
def test_fedper_without_personal_layers_is_fedavg(cohorts) -> None:
    fed, start = federation(cohorts), some_weights(0)
    found = oracle.fedper(fed, start, own_starts(), layers=())
    close(found.base, plain.fedavg(fed, start))
    assert found.personal == [{}] * 4


@pytest.mark.parametrize("cohorts", [EVERYBODY, SOME])
def test_fedper_with_all_layers_personal_is_local_training(cohorts) -> None:
    fed = federation(cohorts)
    found = oracle.fedper(fed, some_weights(0), own_starts(), layers=("A", "a", "B", "b"))
    assert found.base == {}
    for own, expected in zip(found.personal, plain.local(fed, own_starts()), strict=True):
        close(own, expected)


def test_a_round_of_fedper_averages_the_base_and_leaves_the_heads() -> None:
    fed, start, starts = federation(((3, 1),)), some_weights(0), own_starts()
    found = oracle.fedper(fed, start, starts)
    mixed = [{**own, "A": start["A"], "a": start["a"]} for own in starts]
    trained = plain.local(fed, mixed)
    assert found.base.keys() == {"A", "a"}
    np.testing.assert_allclose(found.base["A"], (8 * trained[3]["A"] + 11 * trained[1]["A"]) / 19, rtol=0, atol=1e-12)
    for k in range(4):
        close(found.personal[k], {name: (trained if k in (1, 3) else starts)[k][name] for name in ("B", "b")})


# --- FedProto ---


@pytest.mark.parametrize("kind", oracle.KINDS)
def test_fedproto_without_its_regulariser_is_local_training(kind) -> None:
    found = oracle.fedproto(federation(SOME), own_starts(), 0.0, kind)
    for own, expected in zip(found.models, plain.local(federation(SOME), own_starts()), strict=True):
        close(own, expected)


def test_the_first_round_of_fedproto_knows_no_prototypes() -> None:
    fed = federation(EVERYBODY[:1])
    for own, expected in zip(oracle.fedproto(fed, own_starts(), 5.0).models, plain.local(fed, own_starts()), strict=True):
        close(own, expected)


def test_prototypes_of_agreeing_models_are_the_class_means_of_the_pooled_features() -> None:
    fed, w = federation(), some_weights(0)
    found = oracle.aggregate([oracle.prototypes_of(w, data) for data in fed.clients])
    f = plain.features(w, np.concatenate([data.x for data in fed.clients]))
    y = np.concatenate([data.y for data in fed.clients])
    assert found.keys() == set(y.tolist())
    for j, prototype in found.items():
        np.testing.assert_allclose(prototype, f[y == j].mean(axis=0), rtol=0, atol=1e-12)


def test_a_global_prototype_is_over_the_clients_that_hold_its_class() -> None:
    one, two = np.array([1.0, 2.0]), np.array([5.0, 6.0])
    sent = [({0: one, 1: one}, {0: 3, 1: 4}), ({0: two}, {0: 1})]
    expected = {"counts": [2.0, 3.0], "equation 6": [1.0, 1.5], "uniform": [3.0, 4.0]}
    for rule in oracle.RULES:
        found = oracle.aggregate(sent, rule)
        np.testing.assert_allclose(found[0], expected[rule])
        np.testing.assert_allclose(found[1], one, err_msg="one client holds it: no rule changes it")


def test_the_four_regularisers_of_a_batch_counted_by_hand() -> None:
    f = np.array([[1.0, 0.0], [3.0, 0.0], [0.0, 2.0], [9.0, 9.0]])
    y, prototypes = np.array([0, 0, 1, 2]), {0: np.array([0.0, 0.0]), 1: np.array([0.0, 5.0]), 3: np.array([7.0, 7.0])}
    values = {kind: oracle.prototype_term(prototypes, kind, f, y)[0] for kind in oracle.KINDS}
    assert values == pytest.approx({"classes": 4 + 9, "classes, l2": 2 + 3, "samples": (1 + 9 + 9) / 4, "mse": (1 + 9 + 9) / 8})


def test_one_sample_of_each_class_makes_the_papers_regulariser_and_that_over_samples_one() -> None:
    f = np.random.default_rng(0).normal(size=(CLASSES, HIDDEN))
    term = partial(oracle.prototype_term, {j: np.full(HIDDEN, float(j)) for j in range(CLASSES)}, f=f, y=np.arange(CLASSES))
    (classes, by_classes), (samples, by_samples) = term("classes"), term("samples")
    assert classes == pytest.approx(CLASSES * samples)
    np.testing.assert_allclose(by_classes, CLASSES * by_samples)


@pytest.mark.parametrize("kind", oracle.KINDS)
def test_the_regulariser_draws_features_to_the_prototypes(kind) -> None:
    def spread(lam: float) -> float:
        fed = federation(EVERYBODY * 4, Sgd(0.02))
        done = oracle.fedproto(fed, own_starts(), lam, kind)
        return sum(
            oracle.prototype_term(done.prototypes, kind, plain.features(m, d.x), d.y)[0]
            for m, d in zip(done.models, fed.clients, strict=True)
        )

    assert spread(1.0) < 0.8 * spread(0.0)


@pytest.mark.parametrize("forget", [False, True])
def test_a_class_that_a_cohort_lacks_keeps_its_prototype_unless_told_to_forget(forget) -> None:
    fed = federation(((0, 1), (1,)))
    fed.clients[0].y[:], fed.clients[1].y[:] = 3, 2
    found = oracle.fedproto(fed, own_starts(), 0.1, forget=forget)
    assert found.prototypes.keys() == ({2} if forget else {2, 3})
    if not forget:
        np.testing.assert_allclose(found.prototypes[3], oracle.prototypes_of(found.models[0], fed.clients[0])[0][3])


def test_inference_is_by_the_nearest_prototype_there_is() -> None:
    w, data = some_weights(0), federation().clients[2]
    prototypes = {j: np.random.default_rng(j).normal(size=HIDDEN) for j in (3, 1)}
    found = oracle.nearest(w, prototypes, data.x)
    for row, label in zip(plain.features(w, data.x), found, strict=True):
        assert label == min(prototypes, key=lambda j: np.linalg.norm(row - prototypes[j]))
    assert set(found.tolist()) == {1, 3}


# --- the library's data, batches and first weights ---


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize("training", [{}, {"state": "kept"}, {"schedule": {"name": "exponential", "decay": 0.5}}])
def test_the_oracle_on_the_librarys_batches_is_the_librarys_fedavg(tmp_path, weighting, training) -> None:
    plan = personal.uneven(FedAvg(weighting=weighting)).overridden({f"training.{key}": value for key, value in training.items()})
    found = run(plan, tmp_path / "run", engine=Inline()).state.group("model")
    personal.assert_same(found, plain.fedavg(personal.federation_of(plan), personal.start_of(plan), weighting))


def test_the_oracle_on_the_librarys_batches_is_the_librarys_local_training(tmp_path: Path) -> None:
    plan = personal.uneven(Local())
    result = run(plan, tmp_path / "run", engine=Inline())
    fed = personal.federation_of(plan)
    expected = plain.local(fed, personal.starts_of(plan))
    memories = personal.memories_of(result.folder)
    assert memories.keys() == {k for cohort in fed.cohorts for k in cohort}
    for client, memory in memories.items():
        personal.assert_same(memory.group("model"), expected[client])


def test_orders_hold_every_sample_once_an_epoch_and_differ_by_purpose() -> None:
    plan = personal.uneven(FedAvg())
    fed = personal.federation_of(plan, personal=plan.training.replace(epochs=3, batch="all"))
    data = personal.clients_of(plan)
    assert len({len(client.y) for client in data}) > 2, "clients must be uneven"
    for k, client in enumerate(data):
        assert client.x.dtype == np.float64
        assert client.x.shape == (len(client.y), 64)
        epochs = fed.orders(1, k, "train")
        assert [sorted(np.concatenate(batches).tolist()) for batches in epochs] == [list(range(len(client.y)))] * 2
        assert {len(batch) for batch in epochs[0][:-1]} <= {7}
    site = personal.sites_of(plan)[0]
    assert not np.array_equal(personal.orders(site, 1, "train")[0][0], personal.orders(site, 1, "personal")[0][0])
    assert [len(batches) for batches in fed.orders(1, 0, "personal")] == [1, 1, 1]
