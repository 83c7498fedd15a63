"""Federated mutual learning against a numpy oracle, its reductions to the bit, and what of a private model never leaves."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from tests.methods import oracle_mutual as oracle
from torch import Tensor, nn

from coterie.engines import Inline, Job, Outcome, Processes
from coterie.engines.worker import memory_file
from coterie.errors import Interrupted, UserError
from coterie.ledger import Event, events
from coterie.method import Federation
from coterie.methods import FML, FedAvg, Local
from coterie.methods.fml import Mutual
from coterie.models import MLP, MODELS, Architecture, Staged
from coterie.models.pair import PairNet
from coterie.record import EMPTY, Record, decode, read
from coterie.replies import Reply, means
from coterie.running.cohort import draw_cohort
from coterie.running.experiment import Experiment
from coterie.running.rounds import Result, resume, run
from coterie.seeds import generator, seed_of
from coterie.settings import spec
from coterie.site import SERVER, ModelCache
from coterie.testing import check_method, small_experiment
from coterie.training.objectives import CrossEntropy, Step
from coterie.training.optimisers import Piecewise

MODEL = 4 * (64 * 16 + 16 + 16 * 10 + 10)
"""Payload bytes of the small experiment's network."""
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}
WEIGHTS = [(0.5, 0.5), (0.3, 0.8), (1.0, 0.4), (0.6, 1.0), (1.0, 1.0), (0.0, 0.0), (0.0, 1.0)]


@spec
class Flat(Architecture):
    """One dense layer: what the oracle trains by hand."""

    name: ClassVar[str] = "flat"

    def build(self, shape: tuple[int, int, int], classes: int) -> Staged:
        return Staged(flat=nn.Flatten(), head=nn.Linear(int(np.prod(shape)), classes))


class Own(nn.Sequential):
    """A user's own network, named by its path."""

    def __init__(self, width: int) -> None:
        super().__init__(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(64, width), nn.Tanh(), nn.Linear(width, 10))


class Given(nn.Module):
    """Logits as parameters, so that a gradient with respect to them can be read."""

    def __init__(self, logits: np.ndarray, dtype: torch.dtype) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.tensor(logits, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        return self.logits


class Spy(Inline):
    """Keeps every message and every reply of training, as bytes and as records."""

    def __init__(self) -> None:
        self.bytes: list[bytes] = []
        self.sent: list[Record] = []
        self.replies: list[Reply] = []

    def deliver(self, jobs: Sequence[Job]) -> Iterator[Outcome]:
        for job, outcome in zip(jobs, super().deliver(jobs), strict=True):
            if job.task == "train":
                self.bytes += [Path(job.message).read_bytes(), outcome.reply]
                self.sent.append(decode(self.bytes[-2]))
                self.replies.append(Reply(job.client, decode(outcome.reply)))
            yield outcome


def memories(folder: Path) -> dict[int, Record]:
    """What every client kept, by client; the newest where a round is under way."""
    files = sorted((folder / "memory").iterdir(), key=lambda path: int(path.name.split(".")[1].split("-")[0]))
    return {int(path.name.split(".")[0]): read(path) for path in files}


def exchanges(folder: Path) -> list[Event]:
    return [event for event in events(folder / "ledger.jsonl") if event["event"] == "exchange"]


def bare(record: Record, prefix: str) -> dict[str, Any]:
    """The entries of a record without the prefix that all their names must have."""
    assert all(name.startswith(prefix) for name in record)
    return {name.removeprefix(prefix): value for name, value in record.items()}


def inline(plan: Experiment, folder: Path, **more: Any) -> Result:
    return run(plan, folder, engine=more.pop("engine", None) or Inline(), **more)


# --- 1: losses, gradients, reductions ---


def logits_and_labels(seed: int, scale: float = 2.0, size: int = 9, classes: int = 6) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    u, v = scale * rng.normal(size=(2, size, classes)).astype(np.float32).astype(np.float64)
    return u, v, rng.integers(0, classes, size)


def pair_of_logits(u: np.ndarray, v: np.ndarray, y: np.ndarray, alpha: float, beta: float, dtype: torch.dtype) -> tuple[float, Any, Any]:
    """The library's loss of both, and its gradients with respect to both logits."""
    net = PairNet(Given(u, dtype), Given(v, dtype))
    loss = Mutual(alpha, beta)(Step(net, torch.zeros(len(y), 1, dtype=dtype), torch.tensor(y), {}))
    loss.backward()
    return loss.item(), net.private.logits.grad.numpy(), net.meme.logits.grad.numpy()


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("alpha", "beta"), WEIGHTS)
@pytest.mark.parametrize("scale", [2.0, 60.0])
def test_losses_and_gradients_are_the_oracles(alpha, beta, dtype, scale) -> None:
    u, v, y = logits_and_labels(3, scale)
    loss, by_private, by_meme = pair_of_logits(u, v, y, alpha, beta, dtype)
    want = oracle.mutual(u, v, y, alpha, beta)
    close = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
    np.testing.assert_allclose(loss, want.private + want.meme, **close)
    np.testing.assert_allclose(by_private, want.private_by_private + want.meme_by_private, **close)
    np.testing.assert_allclose(by_meme, want.meme_by_meme + want.private_by_meme, **close)


def test_the_oracles_own_gradients_are_its_losses_slopes() -> None:
    u, v, y = logits_and_labels(4)

    def slope(loss: Callable[[np.ndarray], float], at: np.ndarray) -> np.ndarray:
        steps = 1e-6 * np.eye(at.size).reshape(-1, *at.shape)
        return np.array([(loss(at + s) - loss(at - s)) / 2e-6 for s in steps]).reshape(at.shape)

    now = oracle.mutual(u, v, y, 0.3, 0.8)
    private = slope(lambda at: oracle.mutual(at, v, y, 0.3, 0.8).private, u)
    meme = slope(lambda at: oracle.mutual(u, at, y, 0.3, 0.8).meme, v)
    np.testing.assert_allclose(now.private_by_private, private, atol=1e-8)
    np.testing.assert_allclose(now.meme_by_meme, meme, atol=1e-8)
    # Without detaching, each loss would also have pulled its teacher: the zeros of the oracle are not vacuous.
    assert np.abs(slope(lambda at: oracle.mutual(u, at, y, 0.3, 0.8).private, v)).max() > 1e-3
    assert np.abs(slope(lambda at: oracle.mutual(at, v, y, 0.3, 0.8).meme, u)).max() > 1e-3


def gradients(alpha: float, beta: float) -> tuple[list[Tensor], list[Tensor]]:
    """Of the parameters of two different networks on real-valued images."""
    torch.manual_seed(0)
    net = PairNet(MLP(hidden=(7,)).build((1, 4, 4), 5), MLP(hidden=(6, 5)).build((1, 4, 4), 5))
    x, y = torch.randn(8, 1, 4, 4), torch.randint(5, (8,))
    Mutual(alpha, beta)(Step(net, x, y, {})).backward()
    return [p.grad for p in net.private.parameters()], [p.grad for p in net.meme.parameters()]


def test_no_gradient_crosses_between_the_models() -> None:
    """At weight 1 a loss does not know the other model; at any other weight it must move the other no more than that: not at all."""
    private, meme = gradients(0.4, 1.0)[0], gradients(1.0, 0.4)[1]
    for weight in (0.0, 0.3, 0.9):
        for a, b in zip(gradients(0.4, weight)[0], private, strict=True):
            assert torch.equal(a, b)
        for a, b in zip(gradients(weight, 0.4)[1], meme, strict=True):
            assert torch.equal(a, b)
    assert not torch.equal(gradients(0.5, 1.0)[0][0], private[0])
    assert not torch.equal(gradients(1.0, 0.5)[1][0], meme[0])


def linear_experiment(float64: bool, method: FML) -> Experiment:
    sgd = {"name": "sgd", "lr": 0.05, "momentum": 0.9, "weight_decay": 5e-4}
    table = {
        "name": "linear",
        "rounds": 4,
        "cohort": 3,
        "seed": 3,
        "float64": float64,
        "data": {"source": "digits", "train": 150, "test": 30},
        "partition": {"name": "quantity", "clients": 5, "minimum": 7},
        "model": "mlp",
        "method": "fml",
        "training": {"epochs": 2, "batch": 7, "optimiser": sgd},
    }
    return Experiment.parse(table).replace(model=Flat(), method=method)


@pytest.mark.parametrize("founder", ["own", "server"])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_whole_rounds_are_the_oracles(tmp_path, dtype, founder) -> None:
    """Four rounds of three uneven clients of five, two epochs, momentum, decay, weights that change: server, private models and momenta.
    A founder that is given the server's model gets that of the round in which it first takes part."""
    alpha, beta = Piecewise(values=((1, 0.9), (2, 0.4))), Piecewise(values=((1, 0.2), (3, 0.7)))
    plan = linear_experiment(dtype == torch.float64, FML(alpha=alpha, beta=beta, founder=founder))
    population = plan.population()
    assert len(set(population.partition.train.sizes.tolist())) > 2, "clients must be uneven"
    settings = {"lr": 0.05, "momentum": 0.9, "decay": 5e-4}
    alphas, betas = [0.9, 0.4, 0.4, 0.4], [0.2, 0.2, 0.7, 0.7]

    def linear(record: Record) -> oracle.Linear:
        return oracle.Linear(*(record.tensors[f"head.{each}"].double().numpy() for each in ("weight", "bias")))

    def batches(client: int, round: int) -> list[oracle.Batch]:
        site, seed = population.site(client, round, ModelCache()), seed_of(plan.seed, round, client, "train")
        orders = [torch.randperm(len(site.train), generator=generator(seed, "order", epoch)) for epoch in range(2)]
        found = [site.train.batch(chosen) for order in orders for chosen in order.split(7)]
        return [(x.flatten(1).double().numpy(), y.numpy()) for x, y in found]

    server = linear(population.site(SERVER, 0, ModelCache()).fresh())
    privates = {k: linear(population.site(k, 0, ModelCache()).fresh()) for k in range(5)}
    visits = dict.fromkeys(range(5), 0)
    for round, (alpha, beta) in enumerate(zip(alphas, betas, strict=True), 1):
        memes = []
        for k in draw_cohort(plan.seed, round, 5, 3):
            if founder == "server" and not visits[k]:
                privates[k] = server
            privates[k], meme, _ = oracle.local_round(privates[k], server, batches(k, round), alpha=alpha, beta=beta, **settings)
            memes.append(meme)
            visits[k] += 1
        server = oracle.merge(memes)
    assert max(visits.values()) > 1, "somebody must come back, so that its momentum matters"
    assert min(visits.values()) < 4

    result = inline(plan, tmp_path / "run")
    kept = memories(tmp_path / "run")
    close = {"rtol": 0, "atol": TOLERANCE[dtype]}

    def same(found: Record, want: oracle.Linear) -> None:
        np.testing.assert_allclose(found.tensors["head.weight"].numpy(), want.weight, **close)
        np.testing.assert_allclose(found.tensors["head.bias"].numpy(), want.bias, **close)

    same(result.state.group("model"), server)
    assert set(kept) == {k for k, n in visits.items() if n}
    for k, memory in kept.items():
        same(memory.group("model"), privates[k])
        for part, speed in zip(("weight", "bias"), privates[k].speed, strict=True):
            found = memory.group("optimiser").tensors[f"private.head.{part}/momentum_buffer"]
            np.testing.assert_allclose(found.numpy(), speed, rtol=0, atol=10 * TOLERANCE[dtype])


ADAM = {"name": "adam", "lr": 0.01}
PLAIN = {"name": "sgd", "lr": 0.1}


@pytest.mark.parametrize("training", [{}, {"clip": 0.5}, {"optimiser": ADAM, "clip": 0.1}, {"augment": "crop-flip"}], ids=str)
def test_alpha_one_leaves_the_private_model_as_local_trains_it(tmp_path, training) -> None:
    """To the bit, its optimiser included; the meme meanwhile learns from it."""
    plan = small_experiment(FML(alpha=1.0, beta=0.3))
    plan = plan.replace(training=plan.training.replace(**training))
    inline(plan, tmp_path / "fml")
    inline(plan.replace(method=Local(), training=plan.training.replace(state="kept")), tmp_path / "local")
    found, want = memories(tmp_path / "fml"), memories(tmp_path / "local")
    assert found.keys() == want.keys()
    for client, memory in want.items():
        assert found[client].group("model") == memory.group("model")
        moments = Record(bare(found[client].group("optimiser"), "private."))
        assert moments == memory.group("optimiser")
        assert len(moments) > 0


@pytest.mark.parametrize(
    "training", [{"clip": 0.5}, {"optimiser": ADAM, "clip": 0.1}, {"optimiser": PLAIN}, {"augment": "crop-flip"}], ids=str
)
def test_beta_one_is_uniform_fedavg_however_clients_descend(tmp_path, training) -> None:
    plan = small_experiment(FML(beta=1.0))
    plan = plan.replace(training=plan.training.replace(**training))
    found = inline(plan, tmp_path / "fml").state
    assert found == inline(plan.replace(method=FedAvg(weighting="uniform")), tmp_path / "uniform").state
    assert found != inline(plan.replace(method=FedAvg(weighting="samples")), tmp_path / "samples").state
    plain = plan.replace(training=small_experiment(FML()).training)
    assert found != inline(plain, tmp_path / "plain").state, "the setting must matter"


@pytest.mark.parametrize("optimiser", [PLAIN, ADAM], ids=str)
def test_beta_one_is_uniform_fedavg_whatever_the_private_networks_are(tmp_path, optimiser) -> None:
    meme, other = {"name": "mlp", "hidden": [16]}, {"name": "cnn", "channels": [2, 2], "hidden": [8]}
    plan = small_experiment(FedAvg(weighting="uniform")).replace(model=meme)
    plan = plan.replace(training=plan.training.replace(optimiser=optimiser))
    mixed = plan.replace(method={"name": "fml", "beta": 1.0, "meme": meme}, model=[meme, other])
    assert inline(mixed, tmp_path / "fml").state == inline(plan, tmp_path / "uniform").state


def test_beta_one_is_uniform_fedavg_to_the_bit() -> None:
    check_method(FML(beta=1.0), up=MODEL, down=MODEL, same_as=FedAvg(weighting="uniform"), engines=())


def test_without_weight_on_labels_there_is_no_label_in_it() -> None:
    """Any other labels, even invalid ones, give the same bits; with a little weight on either they do not."""
    plan = small_experiment(FML())
    population = plan.population()
    wrong = dataclasses.replace(population, pool=dataclasses.replace(population.pool, y=(population.pool.y + 3) % 10))
    none = dataclasses.replace(population, pool=dataclasses.replace(population.pool, y=np.full_like(population.pool.y, -1)))
    message = Record(model=population.site(SERVER, 0, ModelCache()).fresh())

    def trained(method: FML, who: Any) -> tuple[Record, Record]:
        return method.train(who.site(2, 1, ModelCache()), EMPTY, message)

    blind = FML(alpha=0.0, beta=0.0)
    assert trained(blind, population) == trained(blind, wrong) == trained(blind, none)
    reply, kept = trained(blind, population)
    assert reply.group("model") != message.group("model"), "it learns, from the other model"
    assert kept.group("model") != population.site(2, 1, ModelCache()).fresh()
    for method in (FML(alpha=0.01, beta=0.0), FML(alpha=0.0, beta=0.01)):
        assert trained(method, population) != trained(method, wrong)


# --- 2: five architectures ---

MEME = {"name": "lenet5", "channels": [2, 3], "hidden": [10, 8]}
FIVE = [
    {"name": "mlp", "hidden": [9]},
    {"name": "mlp", "hidden": [8, 7]},
    {"name": "lenet5", "channels": [3, 4], "hidden": [11, 9]},
    {"name": "resnet10-slim", "width": 0.0625},
    {"name": f"{Own.__module__}:Own", "width": 6},
]
# Draws from torch's generator whenever this module is imported, in a worker inside the seeded making of Own's weights: it must not matter.
SENT = 4 * sum(p.numel() for p in MODELS.resolve(MEME).build((1, 32, 32), 10).parameters())


def five_experiment(models: list[dict[str, Any]], **method: Any) -> Experiment:
    table = {
        "name": "five",
        "rounds": 3,
        "data": {"source": "digits", "size": 32, "channels": 1, "train": 160, "test": 60},
        "partition": {"name": "quantity", "clients": 5, "minimum": 16},
        "model": models,
        "method": {"name": "fml", "meme": MEME, **method},
        "training": {"epochs": 1, "batch": 16, "optimiser": {"name": "sgd", "lr": 0.05, "momentum": 0.9, "weight_decay": 5e-4}},
        "evaluation": {"protocols": ["global", "local_post"]},
    }
    return Experiment.parse(table)


@pytest.fixture(scope="module")
def five(tmp_path_factory) -> tuple[Result, Spy]:
    """A federation of five architectures, run inline under observation."""
    spy = Spy()
    return inline(five_experiment(FIVE), tmp_path_factory.mktemp("five") / "run", engine=spy), spy


@pytest.mark.parametrize("workers", [1, 2])
def test_five_architectures_on_processes(five, tmp_path, workers) -> None:
    result = run(five_experiment(FIVE), tmp_path / "run", engine=Processes(workers))
    assert result.summary["digest"] == five[0].summary["digest"]
    assert result.summary["protocols"] == five[0].summary["protocols"]


@pytest.mark.parametrize("last", [1, 2])
def test_five_architectures_stopped_and_resumed(five, tmp_path, last) -> None:
    """Stopped after a round's work but before its checkpoint: the round is done again, from the memories before it."""

    def stop(event: Event) -> None:
        if event["event"] == "round" and event["round"] == last:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        inline(five_experiment(FIVE), tmp_path / "run", callbacks=[stop])
    result = resume(tmp_path / "run", engine=Inline())
    assert result.summary["digest"] == five[0].summary["digest"]
    left = {path.name for path in (tmp_path / "run" / "memory").iterdir()}
    assert left == {memory_file(tmp_path, client, version).name for client in range(5) for version in ("2-1", "3-1")}


def die(event: Event) -> None:
    """As if the power went: in the middle of round 2, when three of its five replies are there."""
    if event["event"] == "exchange" and event["round"] == 2 and event["direction"] == "up" and event["client"] == 2:
        os.kill(os.getpid(), signal.SIGKILL)


def run_until_killed(folder: Path, workers: int) -> None:
    run(five_experiment(FIVE), folder, callbacks=[die], engine=Processes(workers) if workers else Inline())


@pytest.mark.parametrize("workers", [0, 2], ids=["inline", "processes"])
def test_five_architectures_killed_and_resumed(five, tmp_path, workers) -> None:
    process = multiprocessing.get_context("spawn").Process(target=run_until_killed, args=(tmp_path / "run", workers))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert not (tmp_path / "run" / "summary.json").exists()
    result = resume(tmp_path / "run", engine=Processes(2) if workers else Inline())
    assert result.summary["digest"] == five[0].summary["digest"]
    assert result.summary["protocols"] == five[0].summary["protocols"]


@pytest.mark.parametrize("by", ["group", "random"])
def test_other_ways_to_have_models_give_the_same_bits_on_every_engine(tmp_path, by) -> None:
    """A user's own class by its path among them; what a client keeps is of the kind that it is said to have."""
    models = [FIVE[4], FIVE[0]]
    plan = five_experiment(models).replace(models_by=by, rounds=2, seed=5)
    kinds = [plan.population().architecture_of(client) for client in range(5)]
    assert set(kinds) == {0, 1}
    assert kinds != [client % 2 for client in range(5)], "in turn would be nothing new"
    found = inline(plan, tmp_path / "inline")
    assert run(plan, tmp_path / "processes", engine=Processes(2)).summary["digest"] == found.summary["digest"]
    for client, memory in memories(tmp_path / "inline").items():
        net = MODELS.resolve(models[kinds[client]]).build((1, 32, 32), 10)
        assert set(memory.group("model")) == set(net.state_dict())
    assert {event["payload_bytes"] for event in exchanges(tmp_path / "inline")} == {SENT}


def test_memory_on_disk_is_the_private_models_and_their_optimiser_only(five) -> None:
    files = sorted((five[0].folder / "memory").glob("*.3-1.*"))  # those of the checkpoint before are there too
    assert [path.name for path in files] == [f"{client}.3-1.safetensors" for client in range(5)]
    for client, path in enumerate(files):
        net = MODELS.resolve(FIVE[client]).build((1, 32, 32), 10)
        model = {f"model/{name}" for name in net.state_dict()}
        moments = {f"optimiser/private.{name}/momentum_buffer" for name, _ in net.named_parameters()}
        memory = read(path)
        assert set(memory) == model | moments
        shapes = {name: value.shape for name, value in net.state_dict().items()}
        assert {name: value.shape for name, value in memory.group("model").tensors.items()} == shapes
    assert sorted(path.name for path in five[0].folder.iterdir()) == [
        "checkpoint.previous.safetensors",
        "checkpoint.safetensors",
        "ledger.jsonl",
        "memory",
        "summary.json",
    ]
    state = read(five[0].folder / "checkpoint.safetensors").group("state")
    assert {name.removeprefix("model/") for name in state} == set(MODELS.resolve(MEME).build((1, 32, 32), 10).state_dict())


def test_no_byte_of_a_private_model_is_sent(tmp_path) -> None:
    """After one round everything that ever was in a private model is known: no tensor of it is anywhere in what moved."""
    plan, spy = five_experiment(FIVE).replace(rounds=1), Spy()
    inline(plan, tmp_path / "run", engine=spy)
    names = {f"model/{name}" for name in MODELS.resolve(MEME).build((1, 32, 32), 10).state_dict()}
    assert len(spy.replies) == 5
    assert all(set(message) == names for message in spy.sent)
    assert all(set(reply.record) == names for reply in spy.replies)
    population, wire = plan.population(), b"".join(spy.bytes)
    looked = 0
    for client, memory in memories(tmp_path / "run").items():
        for record in (memory, population.site(client, 0, ModelCache()).fresh()):
            for name, value in record.tensors.items():
                if value.numel() > 1 and len(value.unique()) > 1:
                    looked += 1
                    assert value.numpy().tobytes() not in wire, (client, name)
    assert looked > 100
    reply = spy.replies[0].record.tensors["model/head.weight"]
    assert reply.numpy().tobytes() in wire, "the search finds what was sent"


def test_traffic_does_not_depend_on_private_architectures(five, tmp_path) -> None:
    found = exchanges(five[0].folder)
    assert len(found) == 3 * 5 * 2
    assert {(event["kind"], event["payload_bytes"]) for event in found} == {("weights", SENT)}
    inline(five_experiment([{"name": "mlp", "hidden": [120]}]), tmp_path / "run")
    assert exchanges(tmp_path / "run") == found, "line by line, framing included"


def test_with_beta_one_private_architectures_leave_no_trace(tmp_path) -> None:
    """The meme is then FedAvg's model, whatever networks the clients have for themselves."""
    plan = five_experiment(FIVE, beta=1.0)
    uniform = five_experiment([MEME]).replace(method=FedAvg(weighting="uniform"), evaluation={})
    assert inline(plan, tmp_path / "fml").state == inline(uniform, tmp_path / "fedavg").state


def test_five_architectures_learn(five) -> None:
    """Every client's private model is measured as its own network."""
    measured = [e for e in events(five[0].folder / "ledger.jsonl") if e["event"] == "evaluation" and e["protocol"] == "local_post"]
    last = {e["client"]: e["value"] for e in measured if e["round"] == 3 and e["metric"] == "loss"}
    first = {e["client"]: e["value"] for e in measured if e["round"] == 1 and e["metric"] == "loss"}
    assert set(last) == {None, *range(5)}
    assert last[None] < first[None]


# --- 3: BatchNorm in the meme ---

NORMED = {"name": "resnet18", "width": 0.0625}


class FaultyFML(FML):
    """The authors' merge: it sets parameters to zero before summing, but not buffers, so that new = (old + sum) / K for these."""

    def round(self, state: Record, fed: Federation) -> Record:
        replies = list(fed.ask("train", state, like=state))
        right, old = means(replies, "model", weighting="uniform").group("model"), state.group("model").tensors
        merged = {name: value + old[name] / len(replies) if "running" in name else value for name, value in right.tensors.items()}
        return Record(model=merged)


def normed_experiment(rounds: int) -> Experiment:
    table = {
        "name": "normed",
        "rounds": rounds,
        "data": {"source": "digits", "size": 16, "channels": 1, "train": 240, "test": 200},
        "partition": {"name": "iid", "clients": 3},
        "model": {"name": "mlp", "hidden": [16]},
        "method": {"name": "fml", "meme": NORMED},
        "training": {"epochs": 1, "batch": 16, "optimiser": {"name": "sgd", "lr": 0.1, "momentum": 0.9}},
    }
    return Experiment.parse(table)


def test_batchnorm_in_the_meme_averages_right(tmp_path) -> None:
    """Statistics like weights, uniformly, the old ones forgotten; counters stay whole numbers."""
    spy = Spy()
    state = inline(normed_experiment(2), tmp_path / "run", engine=spy).state.group("model").tensors
    replies = [reply.record.group("model").tensors for reply in spy.replies[-3:]]
    buffers = [name for name in state if "running" in name]
    assert len(buffers) >= 8
    for name, value in state.items():
        if value.is_floating_point():
            mean = np.mean([reply[name].double().numpy() for reply in replies], axis=0)
            np.testing.assert_allclose(value.numpy(), mean, rtol=1e-6, atol=1e-7)
        else:
            assert value == 2 * 5, "two rounds of 80 images in batches of 16"
            assert value.dtype == torch.int64
    old = spy.sent[-1].group("model").tensors
    for name in buffers:
        faulty = (old[name] + sum(reply[name] for reply in replies)) / 3
        if name.endswith("running_var"):
            assert (faulty > state[name]).all()
            assert torch.allclose(faulty - state[name], old[name] / 3, rtol=1e-4, atol=1e-5)


def test_the_authors_merge_inflates_variances_and_costs_accuracy(tmp_path) -> None:
    plan = normed_experiment(5)
    right = inline(plan, tmp_path / "right")
    wrong = inline(plan.replace(method=FaultyFML(meme=plan.method.meme)), tmp_path / "wrong")

    def variances(result: Result) -> Tensor:
        return torch.cat([value for name, value in result.state.group("model").tensors.items() if name.endswith("running_var")])

    weights = {name for name in right.state if "running" not in name}
    assert all(torch.equal(right.state.tensors[name], wrong.state.tensors[name]) for name in weights), "training looks at batches only"
    ratio = float((variances(wrong) / variances(right)).median())
    losses = [result.summary["protocols"]["global"]["loss"]["last"] for result in (right, wrong)]
    print(
        f"variance ratio {ratio:.3f}; accuracy {right.accuracy():.3f} and {wrong.accuracy():.3f}; loss {losses[0]:.3f} and {losses[1]:.3f}"
    )
    assert ratio > 1.1
    assert losses[1] > losses[0]
    assert right.accuracy() > wrong.accuracy() + 0.3


# --- 4: participation, schedules, mistakes, new clients ---


def test_a_client_that_sat_out_keeps_its_private_model(tmp_path) -> None:
    plan, seen = small_experiment(FML(), rounds=5), dict[int, dict[int, str]]()

    def look(event: Event) -> None:
        if event["event"] == "round":
            seen[event["round"]] = {client: memory.digest() for client, memory in memories(tmp_path / "run").items()}

    inline(plan, tmp_path / "run", callbacks=[look])
    seen[0] = {}
    kept = 0
    for round in range(1, 6):
        cohort = set(draw_cohort(plan.seed, round, 5, 3))
        assert set(seen[round]) == set(seen[round - 1]) | cohort
        for client, digest in seen[round].items():
            assert (digest == seen[round - 1].get(client)) == (client not in cohort)
            kept += client not in cohort
    assert kept >= 4


def table(**method: Any) -> dict[str, Any]:
    return {
        "name": "schedules",
        "data": {"source": "digits", "train": 120, "test": 60},
        "partition": {"name": "iid", "clients": 3},
        "model": {"name": "mlp", "hidden": [8]},
        "method": {"name": "fml", **method},
    }


def schedule(*pairs: list[float]) -> dict[str, Any]:
    return {"name": "piecewise", "values": list(pairs)}


def test_schedules_by_configuration(tmp_path) -> None:
    dials = {"alpha": schedule([1, 0.9], [3, 0.5]), "beta": schedule([1, 0.2], [2, 0.4])}
    plan = Experiment.parse(table(**dials))
    assert plan.method == FML(alpha=Piecewise(values=((1, 0.9), (3, 0.5))), beta=Piecewise(values=((1, 0.2), (2, 0.4))))
    assert Experiment.parse(plan.resolved()) == plan
    folder = inline(plan.replace(rounds=3), tmp_path / "run").folder
    shown = [event["values"] for event in events(folder / "ledger.jsonl") if event["event"] == "log"]
    assert shown == [[0.9, 0.2], [0.9, 0.4], [0.5, 0.4]]


@pytest.mark.parametrize(
    "settings",
    [
        {"beta": 0.9},
        {"alpha": {"name": "piecewise", "values": [[1, 0.9], [5, 0.5]]}, "beta": {"name": "piecewise", "values": [[1, 0.5], [5, 0.9]]}},
        {"founder": "server"},
        {"new_client": "server"},
        {"meme": {"name": "mlp", "hidden": [64]}},
    ],
    ids=["labels weigh more", "dynamic", "founders", "new clients", "a strong meme"],
)
def test_what_the_paper_claims_beside_its_tables_can_be_said_in_an_experiment(settings) -> None:
    """The arms that `docs/methods.md` names for section 6; the table is what `coterie run` reads and writes."""
    parsed = Experiment.parse(table(**settings))
    assert Experiment.parse(parsed.resolved()) == parsed
    assert parsed.method == Experiment.parse(table(**settings)).method != FML()


def test_a_schedule_that_has_not_changed_yet_is_a_number(tmp_path) -> None:
    def state(rounds: int, **method: Any) -> str:
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        return inline(Experiment.parse(table(**method)).replace(rounds=rounds), folder).summary["digest"]

    assert state(2, alpha={"name": "piecewise", "values": [[1, 0.9], [3, 0.5]]}) == state(2, alpha=0.9)
    assert state(3, alpha={"name": "piecewise", "values": [[1, 0.9], [3, 0.5]]}) != state(3, alpha=0.9)
    assert state(2, beta={"name": "piecewise", "values": [[1, 0.9], [3, 0.5]]}) == state(2, beta=0.9)
    assert state(3, beta={"name": "piecewise", "values": [[1, 0.9], [3, 0.5]]}) != state(3, beta=0.9)


BAD = [1.5, -0.1, float("nan"), True, None, "0.5", [], [[1, 0.5]]]


@pytest.mark.parametrize("key", ["alpha", "beta"])
@pytest.mark.parametrize("value", BAD, ids=str)
def test_a_bad_weight_is_one_clear_sentence(key, value) -> None:
    with pytest.raises(UserError) as caught:
        Experiment.parse(table(**{key: value}))
    sentence = "expected a number from 0 to 1, or a schedule: { name = 'piecewise', values = [[1, 0.9], [20, 0.5]] }"
    assert str(caught.value) == f"method.{key} = {value!r}: {sentence}"


@pytest.mark.parametrize("pairs", [([20, 0.5], [1, 0.9]), ([1, 0.9], [1, 0.5])], ids=str)
def test_rounds_of_a_schedule_rise(pairs) -> None:
    with pytest.raises(UserError, match="expected pairs of a round and a number, the rounds rising"):
        Experiment.parse(table(alpha=schedule(*pairs)))


def test_a_schedule_of_nothing_is_a_sentence() -> None:
    with pytest.raises(UserError, match=r"schedule\.values = \[\]"):
        Experiment.parse(table(alpha=schedule()))


def test_whole_numbers_are_numbers() -> None:
    assert Experiment.parse(table(alpha=1, beta=0)).method == FML(alpha=1.0, beta=0.0)


def test_mistakes_with_the_meme(tmp_path) -> None:
    with pytest.raises(UserError, match=r"^method\.meme is missing: clients have different models, so the shared one must be named$"):
        inline(Experiment.parse({**table(), "model": ["mlp", {"name": "mlp", "hidden": [5]}]}), tmp_path / "a")
    with pytest.raises(UserError, match="model 'lenet5' needs images of at least 16x16 pixels, these are 8x8"):
        inline(Experiment.parse(table(meme="lenet5")), tmp_path / "b")
    assert not list(tmp_path.iterdir()), "found before anything is written"
    with pytest.raises(UserError, match="model 'mpl' is unknown: did you mean 'mlp'"):
        Experiment.parse(table(meme="mpl"))
    Experiment.parse({**table(), "model": ["mlp", "mlp"]}).population()


def joining_experiment(method: dict[str, Any] | str) -> Experiment:
    sgd = {"name": "sgd", "lr": 0.1, "momentum": 0.5}
    more = {"rounds": 2, "new_clients": {"count": 2, "epochs": 3}, "training": {"batch": 8, "optimiser": sgd}, "method": method}
    models = {"model": [{"name": "mlp", "hidden": [8]}, {"name": "mlp", "hidden": [9]}, {"name": "mlp", "hidden": [12]}]}
    data = {"source": "digits", "train": 400, "test": 400}
    return Experiment.parse({**table(), **more, **models, "data": data, "partition": {"name": "iid", "clients": 5}})


def curves(result: Result) -> dict[int, list[float]]:
    return {e["client"]: e["accuracy"] for e in events(result.folder / "ledger.jsonl") if e["event"] == "new_client"}


def test_new_clients_adapt_by_mutual_learning(tmp_path) -> None:
    """With alpha = 1 a new_client's private model is as if alone; else it learns from the meme too, and is judged by its own model."""
    meme = {"name": "mlp", "hidden": [10]}
    alone = curves(inline(joining_experiment("local"), tmp_path / "local"))
    assert curves(inline(joining_experiment({"name": "fml", "alpha": 1.0, "meme": meme}), tmp_path / "one")) == alone
    plan = joining_experiment({"name": "fml", "meme": meme})
    result = inline(plan, tmp_path / "fml")
    found = curves(result)
    assert set(found) == {3, 4}
    for client, curve in found.items():
        site = plan.population().site(client, 3, ModelCache())
        assert len(curve) == 4
        assert curve[0] == site.score(site.fresh()).metrics()["accuracy"] == alone[client][0]
        assert curve[-1] > curve[0] + 0.2
        assert curve != alone[client]
    moved = [(e["direction"], e["kind"], e["payload_bytes"]) for e in exchanges(result.folder) if e["task"] == "adapt"]
    shared = 4 * (64 * 10 + 10 + 10 * 10 + 10)
    assert sorted(moved) == [*[("down", "weights", shared)] * 2, *[("up", "curve", 8 * 4)] * 2]


def test_a_new_client_follows_the_oracle(tmp_path) -> None:
    """Three epochs of mutual learning by hand, both momenta going on from epoch to epoch."""
    plan = linear_experiment(True, FML(alpha=0.3, beta=0.6)).replace(rounds=1, cohort=1.0, new_clients={"count": 1, "epochs": 3})
    plan = plan.replace(data={"source": "digits", "train": 150, "test": 500})
    result = inline(plan, tmp_path / "run")
    site = plan.population().site(4, 2, ModelCache())
    start = [site.fresh(), result.state.group("model")]
    private, meme = (oracle.Linear(*(each.tensors[f"head.{p}"].numpy() for p in ("weight", "bias"))) for each in start)
    x, y = (each.numpy() for each in site.test.one_batch())

    def accuracy() -> float:
        return float((private.logits(x.reshape(len(x), -1)).argmax(1) == y).mean())

    curve = [accuracy()]
    for epoch in range(3):
        order = torch.randperm(len(site.train), generator=generator(seed_of(plan.seed, 2, 4, f"adapt/{epoch}"), "order", 0))
        for chosen in order.split(7):
            images, labels = (each.numpy() for each in site.train.batch(chosen))
            flat = images.reshape(len(images), -1)
            now = oracle.mutual(private.logits(flat), meme.logits(flat), labels, 0.3, 0.6)
            private.step(flat, now.private_by_private, 0.05, 0.9, 5e-4)
            meme.step(flat, now.meme_by_meme, 0.05, 0.9, 5e-4)
        curve.append(accuracy())
    assert curves(result)[4] == pytest.approx(curve)
    assert len(set(curve)) == 4


def test_a_new_client_with_the_servers_model_starts_where_fedavg_would_put_it(tmp_path) -> None:
    """A copy of the meme that learns beside it; with alpha = beta the two stay one, which is fine-tuning with half the gradient."""
    one = joining_experiment({"name": "fml", "new_client": "server"}).replace(model=MLP(hidden=(8,)), float64=True)
    result = inline(one, tmp_path / "server")
    own = inline(one.replace(method=FML()), tmp_path / "own")
    assert own.state == result.state, "new_clients come after training, whatever they start from"
    state = result.state.group("model")
    for client, curve in curves(result).items():
        site = one.population().site(client, 3, ModelCache())
        assert curve[0] == site.score(state).metrics()["accuracy"] > curves(own)[client][0]
        half, params, moments = (
            site.training.replace(epochs=1, state="kept", optimiser={"name": "sgd", "lr": 0.05, "momentum": 0.5}),
            state,
            EMPTY,
        )
        for epoch, accuracy in enumerate(curve[1:]):
            fitted = site.fit(params, CrossEntropy(), optimiser=moments, training=half, purpose=f"adapt/{epoch}")
            params, moments = fitted.params, fitted.optimiser
            assert accuracy == site.score(params).metrics()["accuracy"]
    taught = curves(inline(one.replace(method=FML(alpha=0.2, beta=0.9, new_client="server")), tmp_path / "taught"))
    assert all(len(set(curve)) > 1 for curve in taught.values())


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({}, r"^method\.founder = 'server': founder 0 has another model than the meme, expected the same, or 'own'$"),
        ({"model": MLP(hidden=(8,)), "pretraining": 3}, r"^method\.founder = 'server': expected pretraining = 0"),
    ],
    ids=["another architecture", "pretraining"],
)
def test_founders_that_cannot_have_the_servers_model(changes, sentence, tmp_path) -> None:
    meme = None if "model" in changes else {"name": "mlp", "hidden": [12]}
    plan = joining_experiment({"name": "fml", "founder": "server", **({"meme": meme} if meme else {})})
    with pytest.raises(UserError, match=sentence):
        inline(plan.replace(**changes), tmp_path / "run")


def test_a_founder_with_the_servers_model_is_its_meme_for_a_round(tmp_path) -> None:
    """alpha = beta: the two start as one and stay one until the memes are merged, so that only the second round tells them apart."""
    plan = linear_experiment(True, FML(founder="server")).replace(rounds=1)
    spy = Spy()
    inline(plan, tmp_path / "run", engine=spy)
    kept = memories(tmp_path / "run")
    assert kept
    for reply in spy.replies:
        assert kept[reply.client].group("model") == reply.record.group("model")


def test_the_servers_model_is_for_new_clients_of_its_architecture(tmp_path) -> None:
    meme, other = {"name": "mlp", "hidden": [12]}, {"name": "mlp", "hidden": [9]}
    plan = joining_experiment({"name": "fml", "new_client": "server", "meme": meme})
    plan.replace(new_clients=None).population()
    Experiment.parse(plan.resolved() | {"model": [other, other, other, meme, meme]}).population()
    sentence = r"^method\.new_client = 'server': new client 3 has another model than the meme, expected the same, or 'own'$"
    with pytest.raises(UserError, match=sentence):
        inline(plan, tmp_path / "run")
    assert not (tmp_path / "run").exists(), "found before anything is trained"


# --- 5: conformance ---


def test_conformance_on_every_engine() -> None:
    check_method(FML(), up=MODEL, down=MODEL)


@pytest.mark.parametrize("training", [{"state": "kept"}, {"optimiser": ADAM, "clip": 1.0}], ids=str)
def test_conformance_in_other_settings(training) -> None:
    plan = small_experiment(FML(alpha=Piecewise(values=((1, 0.9), (2, 0.2))), meme=MLP(hidden=(5,))))
    small = 4 * (64 * 5 + 5 + 5 * 10 + 10)
    check_method(plan.method, plan.replace(training=plan.training.replace(**training)), up=small, down=small, engines=())
