"""FedFusion against equations written again in numpy, to FedAvg where it is switched off, and what may and may not leave a client."""

from __future__ import annotations

import tomllib
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from tests.methods import oracle_two_stream as oracle
from tests.methods.two_stream import (
    CNN,
    Patches,
    Spy,
    assert_same,
    by_hand,
    cifar_experiment,
    maps_experiment,
    passes,
    run_inline,
    traffic,
    whole_batches,
)
from torch import nn

from coterie.errors import UserError
from coterie.method import Federation
from coterie.methods import FedAvg, FedFusion, FedProx
from coterie.methods.fedfusion import beside
from coterie.methods.mmd import L2Regulariser, MMDRegulariser
from coterie.methods.regularisers import ProximalRegulariser
from coterie.models import MODELS, CifarCNN
from coterie.models.fused import Blend, ConvFusion, Fused
from coterie.record import EMPTY, Record, read
from coterie.replies import Reply
from coterie.running.experiment import Experiment
from coterie.seeds import scoped
from coterie.site import SERVER, ModelCache, Site, Visit
from coterie.testing import check_method
from coterie.training.optimisers import Sgd
from coterie.training.score import score

OPERATORS = ("conv", "multi", "single")
PLAIN = 4 * (3 * 26 + 5 * 76 + 12 * 21 + 10 * 13)
"""Payload bytes of the small network: 1-3 and 3-5 channels of 5x5, 20-12-10."""
EXTRA = {"conv": 4 * 50, "multi": 4 * 5, "single": 4}
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-6}


def module(operator: str, channels: int, bias: bool = False) -> nn.Module:
    if operator == "conv":
        return ConvFusion(channels, bias, "torch")
    return Blend(channels if operator == "multi" else 1)


# --- operators ---


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("operator", "bias"), [("conv", False), ("conv", True), ("multi", False), ("single", False)])
def test_operators_and_their_gradients(operator, bias, dtype) -> None:
    rng = np.random.default_rng(3)
    local, past, slope = (rng.normal(size=(6, 4, 3, 2)) for _ in range(3))
    fusion = module(operator, 4, bias).to(dtype)
    for parameter in fusion.parameters():
        nn.init.normal_(parameter, 0.3, 0.5)
    own = {name.split(".")[-1]: value.detach().double().numpy() for name, value in fusion.named_parameters()}
    own = {name: value.reshape(len(value), -1) if value.ndim > 1 else value for name, value in own.items()}

    ours, theirs = torch.tensor(local, dtype=dtype, requires_grad=True), torch.tensor(past, dtype=dtype)
    out = fusion(ours, theirs)
    out.backward(torch.tensor(slope, dtype=dtype))
    atol = {"rtol": 0, "atol": 30 * TOLERANCE[dtype]} if operator == "conv" else {"rtol": 1e-6, "atol": 10 * TOLERANCE[dtype]}
    np.testing.assert_allclose(out.detach().double(), oracle.fuse(operator, local, past, own), rtol=0, atol=TOLERANCE[dtype])
    expected, gradients = oracle.fuse_gradient(operator, local, past, own, slope)
    np.testing.assert_allclose(ours.grad.double(), expected, rtol=0, atol=TOLERANCE[dtype])
    for name, parameter in fusion.named_parameters():
        found = parameter.grad.double().reshape(gradients[name.split(".")[-1]].shape)
        np.testing.assert_allclose(found, gradients[name.split(".")[-1]], **atol)


@pytest.mark.parametrize("operator", [None, *OPERATORS])
@pytest.mark.parametrize("on", ["logits", "features"])
def test_the_oracle_agrees_with_differences(operator, on) -> None:
    rng = np.random.default_rng(0)
    fusion = {"conv": {"weight": (3, 6), "bias": 3}, "multi": {"lam": 3}, "single": {"lam": 1}}.get(operator, {})
    w = {name: rng.normal(size=shape) for name, shape in ({"A": (3, 4), "a": 3, "B": (4, 12), "b": 4} | fusion).items()}
    past = {name: value + 0.1 * rng.normal(size=value.shape) for name, value in w.items()}
    x, y = oracle.patches(rng.normal(size=(5, 1, 4, 4)), 2), rng.integers(0, 4, 5)
    how = {"operator": operator, "mmd": 0.3, "pull": 0.01, "mu": 0.2, "on": on}
    _, gradient = oracle.loss_and_gradient(w, past, x, y, **how)
    for name, value in w.items():
        for place in list(np.ndindex(value.shape))[::3]:
            nudge = np.zeros_like(value)
            nudge[place] = 1e-6
            above, below = (oracle.loss_and_gradient(w | {name: value + sign * nudge}, past, x, y, **how)[0] for sign in (1, -1))
            assert (above - below) / 2e-6 == pytest.approx(gradient[name][place], abs=1e-6)


@settings(max_examples=40, deadline=None)
@given(
    arrays(np.float64, st.tuples(st.integers(1, 3), st.just(3), st.integers(1, 3), st.integers(1, 3)), elements=st.floats(-1e3, 1e3)),
    arrays(np.float64, 3, elements=st.floats(-1e3, 1e3)),
    st.booleans(),
)
def test_blending_a_map_with_itself_changes_nothing(maps, lam, single) -> None:
    blend = Blend(1 if single else 3).double()
    with torch.no_grad():
        blend.lam.copy_(torch.tensor(lam[:1] if single else lam))
    x = torch.tensor(maps)
    np.testing.assert_allclose(blend(x, x).detach(), maps, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(blend(x, x).detach(), oracle.fuse("multi", maps, maps, {"lam": lam[:1] if single else lam}), rtol=1e-12)


# --- the network ---


def built(
    operator: str, level: str | None = None, bias: bool = False, start: str = "identity", seed: int = 4
) -> tuple[nn.Module, nn.Module]:
    """The small network, plain and fused, from one seed."""
    base = MODELS.resolve(CNN)
    with scoped(seed):
        plain = base.build((1, 8, 8), 10)
    with scoped(seed):
        fused = Fused(base, operator, level, bias, start).build((1, 8, 8), 10)
    return plain.eval(), fused.eval()


@pytest.mark.parametrize("operator", OPERATORS)
def test_the_fused_network_starts_as_the_plain_one(operator) -> None:
    """Same names, same weights, same answers; E_g is a copy of the extractor."""
    plain, fused = built(operator)
    own, whole = plain.state_dict(), fused.state_dict()
    assert {name for name in whole if not name.startswith(("past.", "fusion."))} == set(own)
    assert all(torch.equal(whole[name], value) for name, value in own.items())
    assert {name for name in whole if name.startswith("past.")} == {f"past.{name}" for name in own if name.startswith("conv")}
    assert all(torch.equal(whole[f"past.{name}"], own[name]) for name in own if name.startswith("conv"))
    x = torch.randn(3, 1, 8, 8)
    assert torch.allclose(fused(x), plain(x), atol=1e-6)
    assert torch.equal(fused.features(x), fused.features(x, fused.past(x)))
    assert torch.equal(fused.classify(fused.features(x)), fused(x))


@pytest.mark.parametrize("operator", OPERATORS)
def test_with_its_own_extractor_only_the_convolution_makes_a_difference(operator) -> None:
    plain, fused = built(operator)
    for parameter in fused.fusion.parameters():
        nn.init.normal_(parameter, 0.5)
    x = torch.randn(3, 1, 8, 8)
    assert torch.allclose(fused(x), plain(x), atol=1e-5) == (operator != "conv")
    for parameter in fused.past.parameters():
        nn.init.normal_(parameter)
    assert not torch.allclose(fused(x), plain(x), atol=1e-3), "E_g must be looked at"


def test_starts_of_the_convolution() -> None:
    torch.manual_seed(0)
    identity, xavier = ConvFusion(5, True, "identity").mix, ConvFusion(5, True, "xavier").mix
    assert torch.equal(identity.weight.flatten(1), torch.cat([torch.eye(5), torch.zeros(5, 5)], dim=1)), "the local half comes first"
    assert not identity.bias.any()
    assert not xavier.bias.any()
    bound = (6 / (10 + 5)) ** 0.5
    assert 0.8 * bound < xavier.weight.abs().max() <= bound
    with scoped(7):
        theirs = nn.Conv2d(10, 5, 1)
    with scoped(7):
        ours = ConvFusion(5, True, "torch").mix
    assert torch.equal(ours.weight, theirs.weight)
    assert torch.equal(ours.bias, theirs.bias)
    for each in (ours.weight, ours.bias):  # the authors': uniform within 1 / sqrt(2C), the bias too, so that no map is passed on as it is
        assert 0.5 * 10**-0.5 < each.abs().max() <= 10**-0.5
    assert ConvFusion(5, False, "identity").mix.bias is None
    assert not Blend(5).lam.any()


@pytest.mark.parametrize(
    ("level", "channels", "below"), [(None, 5, ("conv1", "conv2")), ("conv2", 5, ("conv1", "conv2")), ("conv1", 3, ("conv1",))]
)
def test_the_level_of_fusion(level, channels, below) -> None:
    _, fused = built("multi", level)
    assert fused.fusion.lam.shape == (channels,)
    assert fused.below == below
    assert set(dict(fused.past.named_children())) == set(below)
    assert fused.training is False
    assert Fused(MODELS.resolve(CNN), "multi", level).build((1, 8, 8), 10).training


def test_the_papers_network_is_fused_after_its_last_pool() -> None:
    net = Fused(CifarCNN(), "multi").build((3, 32, 32), 10)
    assert net.past(torch.zeros(1, 3, 32, 32)).shape == (1, 64, 8, 8)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"method": FedFusion(level="dense1")}, r"method.level = 'dense1' gives no feature maps; 'conv2' is the last level that does"),
        ({"method": FedFusion(level="flat")}, r"method.level = 'flat' gives no feature maps; 'conv2' is the last level that does"),
        ({"method": FedFusion(level="conv3")}, r"level 'conv3' is unknown: did you mean 'conv.'\? Valid: conv1, conv2, dense1, flat, head"),
        ({"model": "mlp"}, r"model 'mlp' has no feature maps to fuse: none of flat, dense1, dense2, head gives any"),
        ({"model": {"name": "torch.nn:Linear", "in_features": 8, "out_features": 10}}, "Linear has no levels to cut at"),
    ],
)
def test_networks_that_cannot_be_fused(changes, complaint, tmp_path) -> None:
    with pytest.raises(UserError, match=complaint):
        run_inline(maps_experiment(FedFusion()).replace(**changes), tmp_path / "run")


# --- the server ---


class Obedient(Federation):
    """Two clients who answer what they were sent, with lambda as told."""

    server = SimpleNamespace(log=lambda name, values: None)

    def __init__(self, *lam: float) -> None:
        self.lam = lam

    def ask(self, task, message=EMPTY, *, like=EMPTY, clients=None):
        assert task == "train"
        assert list(message) == list(like)
        for client, lam in enumerate(self.lam):
            model = {name: torch.full_like(value, lam) for name, value in message.group("model").tensors.items()}
            yield Reply(client, Record(model=model, examples=1 + 2 * client))


@pytest.mark.parametrize("operator", ["multi", "single"])
@pytest.mark.parametrize("ema", [0.9, 0.5, 0.0])
def test_the_exponential_average_of_a_constant(operator, ema) -> None:
    method, c = FedFusion(operator=operator, ema=ema), 0.7
    lam = torch.zeros(5 if operator == "multi" else 1, dtype=torch.float64)
    first = Record({"conv1.weight": torch.zeros(2, dtype=torch.float64), "fusion.lam": lam})
    state, shadow = Record(model=first, before=first), np.zeros(len(lam))
    for r in range(1, 13):
        before = state.group("model")
        state = method.round(state, Obedient(c, c))
        shadow = oracle.smooth(shadow, np.full(len(lam), c), ema)
        np.testing.assert_allclose(state.group("model").tensors["fusion.lam"], c * (1 - ema**r), rtol=0, atol=1e-14)
        np.testing.assert_allclose(state.group("model").tensors["fusion.lam"], shadow, rtol=0, atol=1e-14)
        assert torch.equal(state.group("model").tensors["conv1.weight"], torch.full((2,), c, dtype=torch.float64)), (
            "only lambda is smoothed"
        )
        assert state.group("before") == before


def test_the_exponential_average_is_of_the_mean_by_samples() -> None:
    first = Record({"fusion.lam": torch.full((1,), 0.5, dtype=torch.float64)})
    for weighting, mean in (("samples", 0.25 * 2 + 0.75 * 4), ("uniform", 3.0)):
        state = FedFusion(operator="single", weighting=weighting).round(Record(model=first, before=first), Obedient(2.0, 4.0))
        assert state.group("model").tensors["fusion.lam"].item() == pytest.approx(0.9 * 0.5 + 0.1 * mean, rel=1e-14)


def test_a_convolution_is_averaged_plainly() -> None:
    first = Record({"fusion.mix.weight": torch.zeros(2, 4, 1, 1)})
    state = FedFusion(operator="conv").round(Record(model=first, before=first), Obedient(2.0, 4.0))
    assert (state.group("model").tensors["fusion.mix.weight"] == 3.5).all()


@pytest.mark.parametrize(("operator", "entries"), [("multi", 5), ("single", 1), ("conv", 5)])
@pytest.mark.parametrize("ema", [0.9, 0.0])
def test_the_servers_fusion_is_logged_round_by_round(operator, entries, ema, tmp_path) -> None:
    """What clients receive: after the smoothing, which keeps lambda ten times as near to 0 as the clients' own in the first round."""
    method = FedFusion(operator=operator, ema=ema)
    result, ledger = run_inline(maps_experiment(method, rounds=3), tmp_path / "run")
    found = {e["round"]: np.array(e["values"]) for e in ledger if e["event"] == "log" and e["name"] == "global fusion"}
    assert list(found) == [1, 2, 3]
    assert all(values.shape == (entries,) and values.any() for values in found.values())
    if operator != "conv":
        np.testing.assert_allclose(found[3], result.state.group("model").tensors["fusion.lam"], rtol=1e-6)


def test_without_the_exponential_average_lambda_is_ten_times_as_far_after_a_round(tmp_path) -> None:
    far, near = (
        run_inline(maps_experiment(FedFusion(operator="multi", ema=ema), rounds=1), tmp_path / str(ema))[0].state.group("model")
        for ema in (0.0, 0.9)
    )
    assert torch.allclose(far.tensors["fusion.lam"], 10 * near.tensors["fusion.lam"], rtol=1e-4)
    assert far.tensors["fusion.lam"].any()


# --- whole runs against the oracle ---


@pytest.mark.parametrize(
    ("method", "objective"),
    [
        (FedFusion(operator="multi"), {}),
        (FedFusion(operator="multi", ema=0.5), {"decay": 0.5}),
        (FedFusion(operator="single"), {}),
        (FedFusion(operator="conv", start_as="torch", bias=True), {}),
        (FedFusion(operator="conv"), {}),
        (FedFusion(operator="multi", regularisers=(MMDRegulariser(lam=0.5), ProximalRegulariser(mu=0.3))), {"mmd": 0.5, "mu": 0.3}),
        (
            FedFusion(operator="conv", start_as="torch", regularisers=(MMDRegulariser(lam=0.5, on="features"),)),
            {"mmd": 0.5, "on": "features"},
        ),
        (FedFusion(operator="single", regularisers=(L2Regulariser(lam=0.01), ProximalRegulariser(mu=0.1))), {"pull": 0.01, "mu": 0.1}),
    ],
)
def test_whole_runs(method, objective, tmp_path) -> None:
    plan = whole_batches(method)
    expected = by_hand(plan, operator=method.operator, **objective)
    assert_same(run_inline(plan, tmp_path / "run")[0].state.group("model"), expected)
    for name in ("lam", "weight"):
        assert name not in expected or np.abs(expected[name]).min() > 1e-6, "the fusion must have moved everywhere"


# --- reductions ---


@pytest.mark.parametrize(
    ("method", "same"),
    [
        (FedFusion(operator="multi", fixed=True), FedAvg()),
        (FedFusion(operator="single", fixed=True), FedAvg()),
        (FedFusion(operator="multi", fixed=True, personal=True, weighting="uniform"), FedAvg(weighting="uniform")),
        (
            FedFusion(operator="single", fixed=True, regularisers=(MMDRegulariser(lam=0.5), L2Regulariser(on="features"))),
            FedAvg(regularisers=(MMDRegulariser(lam=0.5), L2Regulariser(on="features"))),
        ),
        (FedFusion(operator="multi", fixed=True, regularisers=(ProximalRegulariser(mu=0.1),)), FedProx(mu=0.1)),
    ],
)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_frozen_at_zero_it_is_fedavg_to_the_bit(method, same, dropout, momentum, tmp_path) -> None:
    """On the names they share, and in every figure on the ledger; with dropout, whose draws must not shift, and by whatever way back."""
    protocols = {"protocols": ("global", "local_pre", "local_post")}
    plan = maps_experiment(method, rounds=2).replace(model={**CNN, "dropout": dropout}, evaluation=protocols)
    plan = plan.replace(training=plan.training.replace(optimiser=Sgd(lr=0.1, momentum=momentum)))
    ours, theirs = (run_inline(plan.replace(method=each), tmp_path / each.name) for each in (method, same))
    found, expected = (each[0].state.group("model").tensors for each in (ours, theirs))
    assert set(found) - set(expected) == (set() if method.personal else {"fusion.lam"})
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    assert method.personal or not found["fusion.lam"].any()
    figures = [[(e["protocol"], e["client"], e["value"]) for e in each[1] if e["event"] == "evaluation"] for each in (ours, theirs)]
    assert figures[0] == figures[1]


# --- the contract ---


@pytest.mark.parametrize("operator", OPERATORS)
def test_conformance_on_every_engine(operator) -> None:
    method = FedFusion(operator=operator)
    check_method(method, maps_experiment(method), up=PLAIN + EXTRA[operator], down=PLAIN + EXTRA[operator])


def test_conformance_of_personal_fusion() -> None:
    """It keeps something, and so does its optimiser: the engines must agree on that too."""
    method = FedFusion(operator="conv", personal=True, start_as="xavier", test_with="new")
    plan = maps_experiment(method)
    check_method(method, plan.replace(training=plan.training.replace(state="kept")), up=PLAIN, down=PLAIN)


def test_conformance_of_the_options() -> None:
    method = FedFusion(
        operator="conv",
        level="conv1",
        bias=True,
        start_as="torch",
        regularisers=(MMDRegulariser(), ProximalRegulariser()),
        weighting="uniform",
    )
    check_method(method, maps_experiment(method, rounds=2), up=PLAIN + 4 * (18 + 3), down=PLAIN + 4 * (18 + 3), engines=())


@pytest.mark.parametrize(
    ("method", "payload"),
    [
        (FedFusion(operator="single"), 7_025_708),
        (FedFusion(operator="multi"), 7_025_960),
        (FedFusion(operator="conv"), 7_058_472),
        (FedFusion(operator="conv", bias=True), 7_058_728),
        (FedFusion(operator="conv", personal=True), 7_025_704),
    ],
)
def test_bytes_of_the_papers_network(method, payload, tmp_path) -> None:
    _, seen = run_inline(cifar_experiment(method), tmp_path / "run")
    assert traffic(seen) == {"up": {payload}, "down": {payload}}


@pytest.mark.parametrize("personal", [False, True])
@pytest.mark.parametrize("operator", OPERATORS)
def test_what_travels(operator, personal, tmp_path) -> None:
    """Never E_g; never a personal fusion, which lies in the client's memory, alone, and is what it trains on with."""
    spy = Spy()
    method = FedFusion(operator=operator, personal=personal, start_as="torch")
    result, _ = run_inline(maps_experiment(method, rounds=2).replace(cohort=1.0), tmp_path / "run", spy)
    assert len(spy.replies) == 10
    plain, _ = built(operator)
    fusion = {"fusion.mix.weight"} if operator == "conv" else {"fusion.lam"}
    travels = {f"model/{name}" for name in plain.state_dict()} | {f"model/{name}" for name in fusion if not personal}
    assert all(set(reply) == travels | {"examples"} for reply in spy.replies)
    assert all(set(message) == travels for message in spy.sent)
    kept = {path.name.split(".")[0]: read(path) for path in (tmp_path / "run" / "memory").glob("*")} if personal else {}
    assert set(kept) == ({"0", "1", "2", "3", "4"} if personal else set())
    assert all(set(memory) == {f"fusion/{name}" for name in fusion} for memory in kept.values())
    assert len({memory.digest() for memory in kept.values()}) == len(kept), "each has its own"
    assert not any(name.startswith("past.") for group in ("model", "before") for name in result.state.group(group))


def test_personal_fusion_goes_on_where_it_stopped(tmp_path) -> None:
    """With a learning rate of nothing the fusion that comes back is the one that was kept; else it has moved on from it."""
    plan = maps_experiment(FedFusion(operator="conv", personal=True, start_as="xavier"))
    site = plan.population().site(0, 1, ModelCache())
    message = Record(model={name: value for name, value in site.fresh().items() if not name.startswith(("past.", "fusion."))})
    _, kept = plan.method.train(site, EMPTY, message)
    site.training = plan.training.replace(epochs=0)
    assert plan.method.train(site, kept, message)[1] == kept
    fresh = Record(fusion={name: value for name, value in site.fresh().items() if name.startswith("fusion.")})
    assert plan.method.train(site, EMPTY, message)[1] == fresh
    assert fresh != kept


@pytest.mark.parametrize(("terms", "extractors"), [((), 1), ((MMDRegulariser(),), 3), ((MMDRegulariser(), L2Regulariser(lam=0.001)), 3)])
def test_frozen_networks_run_once_per_client_and_round(terms, extractors, tmp_path) -> None:
    """E_g once; a global stream beside it once more, through both of its extractors. In training only E_l runs."""
    plan = whole_batches(FedFusion(operator="multi", regularisers=terms), steps=3, rounds=2)
    sizes = plan.population().partition.train.sizes.tolist()
    found = passes(plan.replace(training=plan.training.replace(batch=7)), tmp_path / "run")
    assert found == ([size for size in [*sizes, *sizes] for _ in range(extractors)], 2 * 3 * sum(sizes))


def test_frozen_networks_run_per_batch_where_images_are_augmented(tmp_path) -> None:
    plan = whole_batches(FedFusion(operator="conv"), steps=2, rounds=1)
    sizes = plan.population().partition.train.sizes.tolist()
    found = passes(plan.replace(training=plan.training.replace(augment="crop-flip")), tmp_path / "run")
    assert found == ([size for size in sizes for _ in range(2)], 2 * sum(sizes))


# --- evaluation ---


@pytest.mark.parametrize("operator", OPERATORS)
def test_both_readings_of_the_global_models_extractor(operator, tmp_path) -> None:
    """The ledger's loss is that of a network put together by hand: E_g as last sent, or as just merged."""
    losses = {}
    for reading in ("previous", "new"):
        spy = Spy()
        method = FedFusion(operator=operator, test_with=reading, start_as="torch", ema=0.1)
        plan = maps_experiment(method, rounds=2)
        result, seen = run_inline(plan, tmp_path / reading, spy)
        model, sent = result.state.group("model"), spy.sent[-1].group("model")
        assert result.state.group("before") == sent
        source = sent if reading == "previous" else model
        whole = model | Record({f"past.{name}": value for name, value in source.items() if name.startswith("conv")})
        net = Fused(MODELS.resolve(CNN), operator).build((1, 8, 8), 10)
        test = plan.population().site(SERVER, 0, ModelCache()).test
        by_hand_ = score(net, whole, test).metrics()["loss"]
        found = [e["value"] for e in seen if e["event"] == "evaluation" and e["protocol"] == "global" and e["metric"] == "loss"]
        assert found[-1] == pytest.approx(by_hand_, rel=1e-6)
        losses[reading] = by_hand_
        if reading == "new" and operator != "conv":
            plain = MODELS.resolve(CNN).build((1, 8, 8), 10)
            own = Record({name: value for name, value in model.items() if not name.startswith("fusion.")})
            assert by_hand_ == pytest.approx(score(plain, own, test).metrics()["loss"], rel=1e-5), "E_g = E_l is no fusion at all"
    assert losses["previous"] != pytest.approx(losses["new"], rel=1e-6)


def test_clients_are_tested_with_their_own_fusion(tmp_path) -> None:
    """What a client is measured with before its training is the fusion that it kept, under the model it received."""
    plan = maps_experiment(FedFusion(operator="multi", personal=True))
    site = plan.population().site(2, 1, ModelCache(), Visit(("local_pre",)))
    message = Record(model=site.fresh().drop("past", "fusion"))
    kept = Record(fusion={"fusion.lam": torch.ones(5)})
    plan.method.train(site, kept, message)
    (seen,) = site.observations
    own = beside(site, message.group("model") | kept.group("fusion"), message.group("model"))
    assert seen.scores == site.score(own)


@pytest.mark.parametrize("personal", [False, True])
def test_new_clients(personal, tmp_path) -> None:
    """A new client starts from the merged model with E_g = E_l, keeps that E_g for all its epochs, and learns."""
    method = FedFusion(operator="multi", personal=personal)
    plan = maps_experiment(method, rounds=2).replace(new_clients={"count": 2, "epochs": 3})
    result, seen = run_inline(plan, tmp_path / "run")
    arrived = {event["client"]: event["accuracy"] for event in seen if event["event"] == "new_client"}
    assert set(arrived) == {3, 4}
    model = result.state.group("model")
    plain = Record({name: value for name, value in model.items() if not name.startswith("fusion.")})
    for client, curve in arrived.items():
        site = plan.population().site(client, 3, ModelCache())
        start = score(MODELS.resolve(CNN).build((1, 8, 8), 10), plain, site.test).metrics()["accuracy"]
        assert len(curve) == 4
        assert curve[0] == pytest.approx(start, abs=1.1 / len(site.test) if len(site.test) else 0)
    down = [
        event["payload_bytes"]
        for event in seen
        if event["event"] == "exchange" and event["task"] == "adapt" and event["direction"] == "down"
    ]
    assert down == [PLAIN + (0 if personal else EXTRA["multi"])] * 2


def test_a_new_client_keeps_the_extractor_it_was_given(monkeypatch) -> None:
    """Even with a term over all parameters that move and weight decay, which shrinks whatever has a gradient, if of 0."""
    method = FedFusion(operator="multi", regularisers=(ProximalRegulariser(mu=0.1),))
    site = maps_experiment(method).population().site(0, 1, ModelCache())
    site.training = site.training.replace(optimiser=Sgd(lr=0.1, weight_decay=0.01))
    model = Record({name: value for name, value in site.fresh().items() if not name.startswith("past.")})
    seen, fit = [], Site.fit

    def watched(self, start, *args, **kwargs):
        seen.append(fit(self, start, *args, **kwargs))
        return seen[-1]

    monkeypatch.setattr(Site, "fit", watched)
    reply, memory = method.adapt(site, EMPTY, Record(model=model, epochs=3))
    assert reply.tensors["curve"].shape == (4,)
    assert not memory
    assert len(seen) == 3
    for fitted in seen:
        for name, value in fitted.params.tensors.items():
            if name.startswith("past."):
                assert torch.equal(value, model.tensors[name.removeprefix("past.")])
        assert not torch.equal(fitted.params.tensors["conv1.0.weight"], model.tensors["conv1.0.weight"])
    assert seen[-1].params.tensors["fusion.lam"].any()


@pytest.mark.parametrize("operator", OPERATORS)
def test_fusion_weights_are_logged(operator, tmp_path) -> None:
    spy = Spy()
    _, seen = run_inline(maps_experiment(FedFusion(operator=operator), rounds=1), tmp_path / "run", spy)
    shown = [event["values"] for event in seen if event["event"] == "log" and event["name"] == "fusion"]
    assert len(shown) == len(spy.replies) == 3
    for values, reply in zip(shown, spy.replies, strict=True):
        model = reply.group("model").tensors
        if operator == "conv":
            weights = model["fusion.mix.weight"].flatten(1).abs().double().numpy()
            np.testing.assert_allclose(values, weights[:, 5:].sum(1) / weights.sum(1), rtol=1e-5)
        else:
            assert values == pytest.approx(model["fusion.lam"].tolist())


def test_running_statistics_travel_and_those_of_the_frozen_extractor_do_not(tmp_path) -> None:
    """A network with BatchNorm: its buffers are averaged under their own names."""
    spy = Spy()
    plan = maps_experiment(FedFusion(operator="single"), rounds=2).replace(
        model={"name": "resnet10-slim"}, data={"source": "digits", "size": 8, "train": 40, "test": 10}, cohort=2
    )
    result, _ = run_inline(plan.replace(partition={"name": "iid", "clients": 2}), tmp_path / "run", spy)
    names = [name for name in result.state.group("model") if name.endswith("running_mean")]
    assert names
    assert not any("past." in name for reply in spy.replies for name in reply)
    first, second = (reply.group("model").tensors for reply in spy.replies[-2:])
    for name in names:
        assert torch.allclose(result.state.group("model").tensors[name], (first[name] + second[name]) / 2, atol=1e-6)


# --- configuration ---


def parse(method: str) -> Experiment:
    """An experiment whose method is written as TOML."""
    return Experiment.parse(maps_experiment(FedAvg(), rounds=1).resolved() | tomllib.loads(method))


def test_written_in_toml(tmp_path) -> None:
    assert parse("method = 'fedfusion'").method == FedFusion(
        operator="conv", level=None, start_as="identity", bias=False, ema=0.9, personal=False, fixed=False, test_with="previous"
    )
    terms = "regularisers = [{ name = 'mmd', lam = 0.5, on = 'features' }, { name = 'proximal', mu = 0.1 }, 'l2']"
    composed = parse(f"method = {{ name = 'fedfusion', operator = 'multi', {terms} }}")
    expected = (MMDRegulariser(lam=0.5, on="features"), ProximalRegulariser(mu=0.1), L2Regulariser())
    assert composed.method == FedFusion(operator="multi", regularisers=expected)
    assert Experiment.parse(composed.resolved()) == composed
    assert len(composed.method.objective().terms) == 4
    assert run_inline(composed, tmp_path / "run")[0].state.fault() is None


@pytest.mark.parametrize(
    ("method", "complaint"),
    [
        ("operator = 'double'", "method.operator = 'double': .*'conv', 'multi' or 'single'"),
        ("ema = 1.0", "method.ema = 1.0: .*less than 1"),
        ("start_as = 'zero'", "method.start_as = 'zero': .*'identity', 'xavier' or 'torch'"),
        ("test_with = 'old'", "method.test_with = 'old': .*'previous' or 'new'"),
        ("personnal = true", "personnal = True: no such key here, did you mean 'personal'"),
    ],
)
def test_mistakes_in_toml(method, complaint) -> None:
    with pytest.raises(UserError, match=complaint):
        parse(f"method = {{ name = 'fedfusion', {method} }}")


def test_the_tests_network_is_the_oracles() -> None:
    """One convolution without overlap is a product with patches."""
    net = Patches().build((1, 8, 8), 10).double()
    x = torch.randn(3, 1, 8, 8, dtype=torch.float64)
    w = {"A": net.maps[0].weight.detach().numpy().reshape(4, 16), "a": net.maps[0].bias.detach().numpy()}
    expected = oracle.extract(w, oracle.patches(x.numpy(), 4)).reshape(3, 4, 2, 2)
    np.testing.assert_allclose(net.maps(x).detach(), expected, atol=1e-12)
