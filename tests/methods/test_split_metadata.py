"""Split training: bytes by formula, the composed model by hand, rounds that skip it, what leaves a client and what is let in."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from tests.methods.two_stream import CNN, Spy, run_inline
from torch import nn
from torch.nn import functional as F

from coterie.data.maps import Maps, pack
from coterie.data.selection import SELECTIONS, Entropy, Full, KCentre, KMeansSelection, Random
from coterie.engines import Inline, Job, Outcome
from coterie.errors import UserError
from coterie.ledger import Event
from coterie.methods import FedAvg, SplitMetadata
from coterie.methods.few_shot import FewShot, Mixed, prototypes
from coterie.methods.regularisers import ProximalRegulariser
from coterie.models import MODELS, Architecture, Staged
from coterie.record import Record, decode, encode
from coterie.running.experiment import Experiment
from coterie.site import SERVER, ModelCache
from coterie.testing import check_method, small_experiment
from coterie.training.objectives import Step
from coterie.training.optimisers import Sgd
from coterie.training.score import score
from coterie.training.settings import Training

MODEL = 4 * (64 * 16 + 16 + 16 * 10 + 10)
"""Payload bytes of the small experiment's network, 64-16-10."""
OPTIMISER = Sgd(lr=0.1, weight_decay=5e-4)
QUICK = Training(epochs=3, batch=20, optimiser=OPTIMISER)
FEW = KMeansSelection(components=4, restarts=2)
WRN_BYTES = 2_266_896
MAP_BYTES = {"G1": 65_536, "G2": 32_768, "G3": 16_384}


def two_classes(method, model: object = None, **changes) -> Experiment:
    """Five clients of two classes each, all of which have at least six samples."""
    partition = {"name": "classes", "clients": 5, "per_client": 2}
    plan = small_experiment(method, **changes).replace(partition=partition)
    return plan if model is None else plan.replace(model=model)


def test_every_client_has_enough() -> None:
    partition = two_classes(FedAvg()).population()
    counts = partition.describe()["counts"]
    assert all(sorted(row)[-2] >= 6 and sorted(row)[-3] == 0 for row in counts)


# --- conformance and bytes ---


@pytest.mark.parametrize(
    ("method", "payload"),
    [
        (SplitMetadata(budget=3, selection=FEW, server=QUICK), 6 * (4 * 16 + 8)),
        (SplitMetadata(budget=3, selection=KCentre(), server=QUICK, precision="float16"), 6 * (2 * 16 + 8)),
        (SplitMetadata(budget=2, selection=Entropy(), server=QUICK, precision="uint8", level="flat"), 4 * (64 + 8 + 8)),
        (SplitMetadata(budget=1, selection=Random(), server=QUICK, regularisers=(ProximalRegulariser(mu=0.1),)), 2 * (4 * 16 + 8)),
    ],
    ids=["kmeans", "k-centre in float16", "entropy in 8 bits", "random with a term"],
)
def test_conformance(method, payload) -> None:
    result = check_method(method, two_classes(method), up=MODEL + payload, down=MODEL)
    assert set(result.summary["protocols"]) == {"composed"}


@pytest.mark.parametrize(
    "upper",
    [FewShot(start="global", freeze="flat", head="cosine"), FewShot(mixup=0.5, dropout=0.3, head="nearest-mean")],
    ids=["frozen with prototypes", "mixup and dropout"],
)
def test_conformance_of_few_shot_options_on_maps(upper) -> None:
    method = SplitMetadata(level="conv1", budget=2, selection=FEW, server=QUICK, upper=upper)
    check_method(method, two_classes(method, CNN, rounds=2), engines=())


def ledger_of(seen: Sequence[Event]) -> dict[tuple[str, str], set[tuple[int, int | None]]]:
    """By direction and kind of content, every (bytes, samples) that a client's line has."""
    found = defaultdict(set)
    for event in seen:
        if event["event"] == "exchange":
            found[event["direction"], event["kind"]].add((event["payload_bytes"], event.get("samples")))
    return dict(found)


@pytest.mark.parametrize("level", MAP_BYTES)
@pytest.mark.parametrize(("precision", "divisor", "extra"), [("float32", 1, 0), ("float16", 2, 0), ("uint8", 4, 8)])
def test_bytes_of_the_papers_network(level, precision, divisor, extra, tmp_path) -> None:
    method = SplitMetadata(level=level, precision=precision, selection=Random(), budget=2)
    table = {
        "name": "bytes",
        "rounds": 1,
        "data": {"source": "digits", "size": 32, "channels": 3, "train": 20, "test": 2},
        "partition": {"name": "iid", "clients": 2},
        "model": "wrn-40-1",
        "method": "fedavg",
        "training": {"epochs": 1, "batch": 5},
        "evaluation": {"protocols": ["global"]},
    }
    plan = Experiment.parse(table).replace(method=method)
    _, seen = run_inline(plan, tmp_path / "run")
    counts = plan.population().describe()["counts"]
    sent = [sum(min(2, n) for n in row) for row in counts]
    assert ledger_of(seen) == {
        ("down", "weights"): {(WRN_BYTES, None)},
        ("up", "weights"): {(WRN_BYTES, None)},
        ("up", "activations"): {(n * (MAP_BYTES[level] // divisor + extra), n) for n in sent},
        ("up", "labels"): {(8 * n, n) for n in sent},
    }


def test_full_sends_everything(tmp_path) -> None:
    """Whatever the budget; and so does any selection whose budget is no smaller than the largest class."""
    _, everything = run_inline(two_classes(SplitMetadata(selection=Full(), budget=1, server=QUICK)), tmp_path / "full")
    result, ample = run_inline(two_classes(SplitMetadata(selection=FEW, budget=300, server=QUICK)), tmp_path / "ample")
    assert ledger_of(everything) == ledger_of(ample)
    sizes = two_classes(FedAvg()).population().partition.train.sizes.tolist()
    assert {n for _, n in ledger_of(everything)["up", "labels"]} <= set(sizes)
    full, _ = run_inline(two_classes(SplitMetadata(selection=Full(), server=QUICK)), tmp_path / "again")
    assert full.state == result.state


# --- the composed model ---


def test_rounds_that_skip_the_server_training_leave_the_global_model_alone(tmp_path, monkeypatch) -> None:
    method = SplitMetadata(budget=2, selection=FEW, server=QUICK)
    composed, compose = [], SplitMetadata.compose

    def counted(self, server, below, maps):
        composed.append(server.round)
        return compose(self, server, below, maps)

    monkeypatch.setattr(SplitMetadata, "compose", counted)
    plan = two_classes(method, rounds=5)
    variants = {
        "always": (plan, [1, 2, 3, 4, 5]),
        "sometimes": (plan.replace(evaluation={"every": 2}), [2, 4, 5]),
        "never": (plan.replace(evaluation={"protocols": ("global",)}), []),
        "not asked for": (plan.replace(method=SplitMetadata(budget=2, selection=FEW, server=QUICK, upload="evaluated")), [1, 2, 3, 4, 5]),
        "plain": (plan.replace(method=FedAvg(weighting="uniform")), []),
    }
    found = {}
    for name, (variant, rounds) in variants.items():
        composed.clear()
        found[name] = run_inline(variant, tmp_path / name)[0]
        assert composed == rounds, name
    assert len({result.state.group("model").digest() for result in found.values()}) == 1
    assert found["always"].state == found["sometimes"].state, "the composed model is the same whether earlier ones were trained or not"
    assert "composed" not in found["never"].state


def test_maps_that_nobody_asked_for_are_not_sent(tmp_path) -> None:
    method = SplitMetadata(budget=2, selection=FEW, server=QUICK, upload="evaluated")
    _, seen = run_inline(two_classes(method, rounds=5).replace(evaluation={"every": 2}), tmp_path / "run")
    rounds = Counter(event["round"] for event in seen if event["event"] == "exchange" and event["kind"] == "activations")
    assert rounds == {2: 3, 4: 3, 5: 3}


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


@pytest.mark.parametrize("precision", ["float32", "float16", "uint8"])
def test_the_composed_model_by_hand(precision, tmp_path) -> None:
    """A cut below the head: the server's training is softmax regression on the maps that came, from the head's first weights."""
    method = SplitMetadata(
        budget=3,
        selection=FEW,
        precision=precision,
        server=Training(epochs=6, batch="all", optimiser=Sgd(lr=0.3, weight_decay=0.01)),
    )
    plan, spy = two_classes(method).replace(float64=True), Spy()
    result, seen = run_inline(plan, tmp_path / "run", spy)
    maps, labels = [], []
    for reply in spy.replies[-3:]:
        sent = {name: value.numpy().astype(np.float64) for name, value in reply.group("activations").tensors.items()}
        rows = sent["values"]
        maps.append(rows if precision != "uint8" else sent["low"][:, None] + rows * sent["scale"][:, None])
        labels.append(reply.tensors["labels"].numpy())
    x, y = np.concatenate(maps), np.concatenate(labels)
    assert len(y) == 3 * 2 * 3
    first = plan.population().site(SERVER, 0, ModelCache()).fresh().tensors
    w, b = first["head.weight"].numpy().copy(), first["head.bias"].numpy().copy()
    for _ in range(6):
        slope = (softmax(x @ w.T + b) - np.eye(10)[y]) / len(y)
        w, b = w - 0.3 * (slope.T @ x + 0.01 * w), b - 0.3 * (slope.sum(0) + 0.01 * b)
    composed, below = result.state.group("composed").tensors, spy.sent[-1].group("model").tensors
    np.testing.assert_allclose(composed["head.weight"], w, rtol=0, atol=1e-9)
    np.testing.assert_allclose(composed["head.bias"], b, rtol=0, atol=1e-9)
    for name in ("dense1.0.weight", "dense1.0.bias"):
        assert torch.equal(composed[name], below[name]), "the old lower part"
        assert not torch.equal(composed[name], result.state.group("model").tensors[name])
    net = MODELS.resolve({"name": "mlp", "hidden": [16]}).build((1, 8, 8), 10).double()
    test = plan.population().site(SERVER, 0, ModelCache()).test
    found = [e["value"] for e in seen if e["event"] == "evaluation" and e["protocol"] == "composed" and e["metric"] == "loss"]
    assert found[-1] == pytest.approx(score(net, result.state.group("composed"), test).metrics()["loss"], rel=1e-9)


def test_maps_are_those_of_the_received_lower_part(tmp_path) -> None:
    """In evaluation mode, of real samples, with their own labels; also where images are augmented in training."""
    method = SplitMetadata(level="conv1", budget=2, selection=FEW, server=QUICK)
    plan, spy = two_classes(method, CNN, rounds=2, cohort=5), Spy()
    run_inline(plan.replace(training=plan.training.replace(augment="crop-flip")), tmp_path / "run", spy)
    net = MODELS.resolve(CNN).build((1, 8, 8), 10)
    for client, (sent, reply) in enumerate(zip(spy.sent[5:], spy.replies[5:], strict=True)):
        net.load_state_dict(sent.group("model").tensors)
        x, y = plan.population().site(client, 2, ModelCache()).train.one_batch()
        with torch.no_grad():
            own = net.eval().lower("conv1")(x)
        maps, labels = reply.group("activations").tensors["values"], reply.tensors["labels"]
        assert len(labels) == 4
        for one, label in zip(maps, labels, strict=True):
            places = [place for place in range(len(own)) if torch.allclose(own[place], one, atol=1e-6)]
            assert int(label) in y[places].tolist()


def test_messages_carry_the_model_and_nothing_else(tmp_path) -> None:
    spy = Spy()
    run_inline(two_classes(SplitMetadata(budget=2, selection=FEW, server=QUICK)), tmp_path / "run", spy)
    names = {f"model/{name}" for name in ("dense1.0.weight", "dense1.0.bias", "head.weight", "head.bias")}
    assert all(set(message) == names | {"metadata"} for message in spy.sent)
    assert all(set(reply) == names | {"activations/values", "labels", "examples"} for reply in spy.replies)


def test_it_learns_real_digits(tmp_path) -> None:
    """All maps of a hidden layer that FedAvg trained: the head that the server trains knows all ten classes."""
    plan = Experiment.load("digits-two-class", ["engine.name=inline", "rounds=8", "cohort=10"])
    method = SplitMetadata(
        selection=Full(), server=Training(epochs=20, batch=50, optimiser=OPTIMISER), weighting="samples", upload="evaluated"
    )
    result = run_inline(plan.replace(method=method, evaluation={"every": 8, "protocols": ("composed", "global")}), tmp_path / "run")[0]
    assert result.accuracy("composed") > max(0.8, result.accuracy("global"))


# --- few samples ---


def site_and_maps(method: SplitMetadata, client: int = 0):
    """A server, a model that is not the first one, and maps of it."""
    plan = two_classes(method, CNN)
    population = plan.population()
    server, site = population.site(SERVER, 1, ModelCache()), population.site(client, 1, ModelCache())
    below = site.fresh("another")
    sent = method.metadata(site, below)
    return server, below, Maps(sent.group("activations"), sent.tensors["labels"])


@pytest.mark.parametrize("start", ["initial", "global"])
def test_where_the_upper_part_starts(start) -> None:
    method = SplitMetadata(
        level="conv1", budget=2, selection=FEW, server=Training(epochs=0, batch=50, optimiser=OPTIMISER), upper=FewShot(start=start)
    )
    server, below, maps = site_and_maps(method)
    composed, source = method.compose(server, below, maps).tensors, (server.fresh() if start == "initial" else below).tensors
    for name, value in composed.items():
        assert torch.equal(value, below.tensors[name] if name.startswith("conv1") else source[name]), name


def test_frozen_stages_stay_and_are_passed_once() -> None:
    """The same as a cut further up would give, with the frozen stages those of the model that gave the maps."""
    method = SplitMetadata(level="conv1", budget=3, selection=FEW, server=QUICK, upper=FewShot(freeze="conv2"))
    server, below, maps = site_and_maps(method)
    composed = method.compose(server, below, maps).tensors
    first = server.fresh().tensors
    for name, value in composed.items():
        if name.startswith("conv"):
            assert torch.equal(value, below.tensors[name])
        else:
            assert not torch.equal(value, first[name])
    net = MODELS.resolve(CNN).build((1, 8, 8), 10)
    net.load_state_dict(below.tensors)
    with torch.no_grad():
        further = Maps(pack(net.eval().conv2(maps.batch(torch.arange(len(maps)))[0]), "float32"), maps.labels)
    direct = SplitMetadata(level="conv2", server=QUICK).compose(server, below, further).tensors
    for name, value in composed.items():
        torch.testing.assert_close(value, direct[name], rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", ["nearest-mean", "cosine"])
def test_prototypes_by_definition(kind) -> None:
    rng = torch.Generator().manual_seed(0)
    features, labels = torch.randn(40, 6, generator=rng, dtype=torch.float64), torch.arange(40) % 4
    head = prototypes(features, labels, 7, kind).tensors
    seen = torch.randn(100, 6, generator=rng, dtype=torch.float64)
    means = torch.stack([features[labels == label].mean(0) for label in range(4)])
    expected = -torch.cdist(seen, means) if kind == "nearest-mean" else F.cosine_similarity(seen[:, None], means[None], dim=2)
    assert torch.equal((seen @ head["head.weight"].T + head["head.bias"]).argmax(1), expected.argmax(1))
    assert Record(head).fault() is None


def test_the_prototype_head_is_on_what_was_trained() -> None:
    methods = [SplitMetadata(level="conv1", budget=3, selection=FEW, server=QUICK, upper=FewShot(head=h)) for h in ("trained", "cosine")]
    server, below, maps = site_and_maps(methods[0])
    plain, proto = (method.compose(server, below, maps).tensors for method in methods)
    assert [name for name in plain if not torch.equal(plain[name], proto[name])] == ["head.weight", "head.bias"]
    net = MODELS.resolve(CNN).build((1, 8, 8), 10)
    net.load_state_dict(plain)
    with torch.no_grad():
        features = net.eval().upper("conv1")[:-1](maps.batch(torch.arange(len(maps)))[0])
    label = int(maps.labels[0])
    expected = F.normalize(features[maps.labels == label].mean(0), dim=0)
    torch.testing.assert_close(proto["head.weight"][label], expected)


def test_mixup_and_dropout() -> None:
    """On a network that only passes on: the loss of pairs mixed with one share, which a seed decides; nothing where both are off."""
    net = nn.Sequential(nn.Identity(), nn.Linear(3, 3, bias=False))
    with torch.no_grad():
        net[1].weight.copy_(torch.eye(3))
    x, y = 5 * torch.eye(3), torch.arange(3)
    step = Step(net, x, y, start={})
    assert Mixed(0.0, 0.0)(step).item() == pytest.approx(F.cross_entropy(x, y).item())
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        found = Mixed(0.4, 0.0)(step).item()
        torch.manual_seed(5)
        other, share = torch.randperm(3), torch.distributions.Beta(0.4, 0.4).sample()
        mixed = share * x + (1 - share) * x[other]
        by_hand = share * F.cross_entropy(mixed, y) + (1 - share) * F.cross_entropy(mixed, y[other])
        assert 0.05 < share < 0.95
        assert found == pytest.approx(by_hand.item())
        torch.manual_seed(5)
        assert Mixed(0.0, 0.6)(step).item() != pytest.approx(F.cross_entropy(x, y).item())


# --- packing ---


@given(arrays(np.float32, st.tuples(st.integers(1, 4), st.integers(1, 3), st.just(2), st.just(2)), elements=st.floats(-1e4, 1e4, width=32)))
@settings(max_examples=50)
def test_packing_loses_at_most_half_a_step(values) -> None:
    maps, labels, everything = torch.tensor(values), torch.zeros(len(values), dtype=torch.int64), torch.arange(len(values))
    assert torch.equal(Maps(pack(maps, "float32"), labels).batch(everything)[0], maps)
    half = Maps(pack(maps, "float16"), labels).batch(everything)[0]
    assert ((half - maps).abs() <= 2**-11 * maps.abs() + 2**-24).all()
    bits = Maps(pack(maps, "uint8"), labels).batch(everything)[0]
    step = (maps.flatten(1).amax(1) - maps.flatten(1).amin(1)) / 255
    assert ((bits - maps).abs().flatten(1).amax(1) <= 0.5 * step + 1e-6 * maps.abs().flatten(1).amax(1)).all()


def test_what_float16_cannot_hold_is_held_back() -> None:
    assert torch.isfinite(pack(torch.tensor([[1e6, -1e6]]), "float16").tensors["values"]).all()


def test_maps_cannot_be_cropped() -> None:
    with pytest.raises(ValueError, match="cannot be augmented"):
        Maps(pack(torch.ones(1, 2), "float32"), torch.zeros(1)).batch(torch.arange(1), torch.Generator())


def test_maps_stay_packed() -> None:
    """What was sent in 8 bits is kept in 8 bits; batches are made when they are used."""
    maps = Maps.join([(pack(torch.randn(5, 2, 4, 4), "uint8"), torch.arange(5))] * 3)
    assert maps.packed.payload_bytes == 15 * (32 + 8)
    assert [len(x) for x, _ in maps.batches(4, 1, 11)] == [4, 4, 2]
    assert maps.batch(torch.tensor([0]))[0].dtype == torch.float32


# --- memory ---

PEAK = """
import resource, sys, torch
from coterie.running.experiment import Experiment
from coterie.methods import SplitMetadata
from coterie.site import ModelCache

torch.set_num_threads(1)
images, budget = int(sys.argv[1]), int(sys.argv[2])
table = {"name": "peak", "data": {"source": "digits", "size": 32, "channels": 3}, "partition": {"name": "iid", "clients": 1},
         "model": "wrn-10-1", "method": "fedavg"}
method = SplitMetadata(level="G1", budget=2, memory_mb=budget)
def site(train):
    plan = Experiment.parse(table).overridden({"data.train": train}).replace(method=method)
    return plan.population().site(0, 1, ModelCache())
method.metadata(site(256), site(256).fresh())  # whatever is allocated once
whole, before = site(images), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
method.metadata(whole, whole.fresh())
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_peak_memory_of_a_selection() -> None:
    """1,400 maps of 64 kB are 92 MB in float32; choosing among them in 4 MB needs a few times that, far from all."""
    done = subprocess.run([sys.executable, "-c", PEAK, "1400", "4"], capture_output=True, text=True, check=True)
    grown = int(done.stdout) * 1024
    assert grown < 0.4 * 1400 * MAP_BYTES["G1"], f"{grown / 2**20:.0f} MB"


def test_features_fit_the_budget() -> None:
    method = SplitMetadata(level="G1", memory_mb=1)
    plan = two_classes(method, "wrn-10-1").replace(data={"source": "digits", "size": 32, "channels": 3, "train": 200, "test": 10})
    site = plan.population().site(0, 1, ModelCache())
    features = method.features(site, site.fresh())
    assert len(features) == len(site.train)
    assert 0.9 * 2**20 < features.nbytes <= 2**20
    assert SplitMetadata(level="G3", memory_mb=16).features(site, site.fresh()).shape[1] == 64 * 8 * 8, "no wider than the maps"


# --- what is let in ---


class Liar(Inline):
    """Changes what one client answers."""

    def __init__(self, **lie: object) -> None:
        self.lie = lie

    def deliver(self, jobs: Sequence[Job]) -> Iterator[Outcome]:
        for turn, outcome in enumerate(super().deliver(jobs)):
            if turn == 0 and outcome.reply and jobs[0].task == "train":
                reply = {name: value for name, value in decode(outcome.reply).items() if name not in self.lie}
                reply |= {name: value for name, value in self.lie.items() if value is not None}
                outcome = Outcome(outcome.client, encode(Record(reply)), outcome.kept)
            yield outcome


@pytest.mark.parametrize(
    ("lie", "complaint"),
    [
        ({"labels": torch.full((4,), 10)}, "labels are not all from 0 to 9"),
        ({"labels": torch.full((4,), -1)}, "labels are not all from 0 to 9"),
        ({"labels": torch.zeros(4)}, "labels is float32[4], expected int64[0]"),
        ({"labels": None}, "labels is missing"),
        ({"labels": torch.zeros(3, dtype=torch.int64)}, "different numbers of rows: activations/values 4, labels 3"),
        ({"activations/values": torch.zeros(4, 15)}, "activations/values is float32[4, 15], expected float32[0, 16]"),
        ({"activations/values": torch.zeros(4, 16, dtype=torch.float16)}, "activations/values is float16[4, 16]"),
        ({"activations/values": torch.full((4, 16), torch.inf)}, "activations/values is not finite"),
        ({"activations/values": None}, "activations/values is missing"),
    ],
)
def test_bad_maps_are_rejected_and_the_round_goes_on(lie, complaint, tmp_path) -> None:
    method = SplitMetadata(budget=2, selection=FEW, server=QUICK)
    result, seen = run_inline(two_classes(method, rounds=1), tmp_path / "run", Liar(**lie))
    rejected = [event for event in seen if event["event"] == "rejected"]
    assert len(rejected) == 1
    assert complaint in rejected[0]["reason"]
    assert result.state.fault() is None


# --- configuration ---


def parse(method: str) -> Experiment:
    return Experiment.parse(small_experiment(FedAvg(), rounds=1).resolved() | tomllib.loads(method))


def test_written_in_toml() -> None:
    text = """
    [method]
    name = "split-metadata"
    level = "dense1"
    precision = "uint8"
    selection = { name = "kmeans", components = 50, pca = "class" }
    server = { epochs = 10 }
    upper = { head = "cosine", mixup = 0.2 }
    """
    plan = parse(text)
    assert plan.method == SplitMetadata(
        level="dense1",
        precision="uint8",
        selection=KMeansSelection(components=50, pca="class"),
        server=Training(epochs=10, batch=50, optimiser=Sgd(lr=0.1, weight_decay=5e-4)),
        upper=FewShot(head="cosine", mixup=0.2),
    )
    assert Experiment.parse(plan.resolved()) == plan
    assert all(parse(f"method = {{ name = 'split-metadata', selection = '{name}' }}").method.selection.name == name for name in SELECTIONS)


@pytest.mark.parametrize(
    ("method", "complaint"),
    [
        ("level = 'dense2'", "method.level = 'dense2': no such stage to cut after, did you mean 'dense1'"),
        ("level = 'head'", "method.level = 'head': no such stage"),
        ("selection = 'herd'", "selection 'herd' is unknown: did you mean 'herding'"),
        ("selection = { name = 'kmeans', component = 5 }", "component = 5: no such key here, did you mean 'components'"),
        ("precision = 'int4'", "method.precision = 'int4': .*'float32', 'float16' or 'uint8'"),
        ("budget = 0", "method.budget = 0: .*greater than or equal to 1"),
        ("upper = { freeze = 'flat' }", "method.upper.freeze = 'flat': expected a stage above the cut, which is 'dense1'"),
        ("upper = { freeze = 'conv' }", "method.upper.freeze = 'conv': no such stage"),
        ("upper = { mixup = -1.0 }", "method.upper.mixup = -1.0: .*greater than or equal to 0"),
        ("server = { augment = 'crop-flip' }", "method.server.augment = 'crop-flip': the server has maps, not images"),
        ("server = { epoch = 3 }", "epoch = 3: no such key here"),
    ],
)
def test_mistakes(method, complaint) -> None:
    with pytest.raises(UserError, match=complaint):
        parse(f"method = {{ name = 'split-metadata', {method} }}").population()


def test_the_default_cut_is_after_the_last_maps() -> None:
    for model, level in ((CNN, "conv2"), ("mlp", "dense2"), ({"name": "mlp", "hidden": [16]}, "dense1")):
        site = two_classes(SplitMetadata(), model).population().site(SERVER, 0, ModelCache())
        assert SplitMetadata().cut(site) == level


@dataclass(frozen=True)
class TwoLayerHead(Architecture):
    """A head that no prototypes can replace."""

    name: ClassVar[str] = "two-layer-head"

    def build(self, shape: tuple[int, int, int], classes: int) -> Staged:
        return Staged(flat=nn.Flatten(), head=nn.Sequential(nn.Linear(64, 4), nn.Linear(4, classes)))


def test_prototypes_need_a_linear_head() -> None:
    with pytest.raises(UserError, match=r"method.upper.head = 'cosine': expected a model whose head is one linear layer with a bias"):
        two_classes(SplitMetadata(upper=FewShot(head="cosine")), (TwoLayerHead(),)).population()
    two_classes(SplitMetadata(), (TwoLayerHead(),)).population()


def test_new_clients_get_the_global_model(tmp_path) -> None:
    method = SplitMetadata(budget=2, selection=FEW, server=QUICK)
    plan = two_classes(method, rounds=1).replace(new_clients={"count": 1, "epochs": 1})
    _, seen = run_inline(plan, tmp_path / "run")
    down = [e["payload_bytes"] for e in seen if e["event"] == "exchange" and e["task"] == "adapt" and e["direction"] == "down"]
    assert down == [MODEL]
