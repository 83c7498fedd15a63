"""FCCL, FedMD, FedDF, RCFL and FedMatch-public against a numpy oracle: whole runs, client by client, and the oracle against itself."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from tests.methods import oracle_public as oracle
from torch import nn

from coterie.data.examples import crop_and_flip
from coterie.engines import Inline, Job, Outcome, TaskError
from coterie.method import Method
from coterie.methods import FCCL, FCCLLockstep, FedDF, FedDFClient, FedMatchPublic, FedMD, RCFLPublic
from coterie.methods.fccl import CrossCorrelation
from coterie.methods.fccl import correlation as pearson
from coterie.models import MLP, Architecture, Staged
from coterie.record import Record, decode, read
from coterie.running.admission import Admission
from coterie.running.cohort import draw_cohort
from coterie.running.experiment import Experiment
from coterie.running.rounds import run
from coterie.seeds import generator, scoped, seed_of
from coterie.settings import spec
from coterie.site import SERVER, ModelCache, Site
from coterie.training.objectives import Step
from coterie.training.optimisers import Adam, Optimiser, Sgd
from coterie.training.settings import Training

# --- the oracle against itself: every gradient is its loss's slope ---


def slope(loss: Callable[[np.ndarray], float], at: np.ndarray, step: float = 1e-6) -> np.ndarray:
    moves = step * np.eye(at.size).reshape(-1, *at.shape)
    return np.array([(loss(at + move) - loss(at - move)) / (2 * step) for move in moves]).reshape(at.shape)


def answers(seed: int, size: int = 9, classes: int = 5, scale: float = 2.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    z, other = scale * rng.normal(size=(2, size, classes))
    return z, other, rng.integers(0, classes, size)


@pytest.mark.parametrize("target", [-1.0, 0.0])
@pytest.mark.parametrize("lam", [0.0, 0.0051, 1.5])
@pytest.mark.parametrize("shrink", [1.0, 8 / 9])
def test_the_correlation_losses_gradient(lam, target, shrink) -> None:
    z, zbar, _ = answers(0)
    found = oracle.collaborative(z, zbar, lam, target, shrink=shrink)[1]
    np.testing.assert_allclose(found, slope(lambda at: oracle.collaborative(at, zbar, lam, target, shrink=shrink)[0], z), atol=1e-8)
    assert np.abs(found).max() > 1e-2


def test_correlation_is_numpys_and_safe_without_variance() -> None:
    z, zbar, _ = answers(1)
    np.testing.assert_allclose(oracle.correlation(z, zbar), np.corrcoef(z.T, zbar.T)[:5, 5:], atol=1e-12)
    z[:, 2], zbar[:, 4] = 7.0, -3.0
    m = oracle.correlation(z, zbar)
    assert np.isfinite(m).all()
    assert not m[2].any()
    assert not m[:, 4].any()
    loss, by_z = oracle.collaborative(z, zbar, 0.5, -1.0)
    assert loss == pytest.approx(
        sum((1 - m[u, u]) ** 2 for u in range(5)) + 0.5 * sum((1 + m[u, v]) ** 2 for u in range(5) for v in range(5) if u != v)
    )
    assert not by_z[:, 2].any()
    others = [0, 1, 3, 4]
    kept = slope(lambda at: oracle.collaborative(np.insert(at, 2, 7.0, axis=1), zbar, 0.5, -1.0)[0], z[:, others])
    np.testing.assert_allclose(by_z[:, others], kept, atol=1e-8)


def test_the_correlation_loss_does_not_see_scale_or_shift_of_a_column() -> None:
    z, zbar, _ = answers(2)
    moved = z * np.array([0.1, 2.0, 30.0, 1.0, 7.0]) + np.arange(5)
    assert oracle.collaborative(moved, zbar, 0.3, -1.0)[0] == pytest.approx(oracle.collaborative(z, zbar, 0.3, -1.0)[0], abs=1e-12)
    np.testing.assert_allclose(np.diag(oracle.correlation(z, z)), 1.0)


LOSSES = {
    "kl": lambda z, other, y: oracle.kl(other, z),
    "kl_from": lambda z, other, y: oracle.kl_from(oracle.softmax(other), z),
    "l1": lambda z, other, y: oracle.l1(z, other),
    "mse": lambda z, other, y: oracle.mse(z, other),
    "cross_entropy": lambda z, other, y: oracle.cross_entropy(z, y),
    "sum": lambda z, other, y: oracle.plus((0.3, oracle.kl(other, z)), (2.0, oracle.cross_entropy(z, y))),
    "unlabelled": lambda z, other, y: oracle.unlabelled(z, [other, other[::-1]], oracle.Weights(i=0.7, a=1.3, confidence=0.6)),
}


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_of_losses(name) -> None:
    z, other, y = answers(3)
    found = LOSSES[name](z, other, y)[1]
    np.testing.assert_allclose(found, slope(lambda at: LOSSES[name](at, other, y)[0], z), atol=1e-8)
    assert np.abs(found).max() > 1e-3


def test_losses_are_torchs() -> None:
    z, other, y = answers(4)
    student, teacher = torch.tensor(z), torch.tensor(other)
    nn = torch.nn.functional
    assert oracle.l1(z, other)[0] == pytest.approx(nn.l1_loss(student, teacher).item(), abs=1e-12)
    assert oracle.mse(z, other)[0] == pytest.approx(nn.mse_loss(student, teacher).item(), abs=1e-12)
    assert oracle.cross_entropy(z, y)[0] == pytest.approx(nn.cross_entropy(student, torch.tensor(y)).item(), abs=1e-12)
    want = nn.kl_div(student.log_softmax(1), teacher.softmax(1), reduction="batchmean").item()
    assert oracle.kl(other, z)[0] == pytest.approx(want, abs=1e-12)


def small_net(seed: int, sizes: tuple[int, ...] = (6, 4, 3)) -> oracle.Params:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=s) for a, b in pairwise(sizes) for s in ((b, a), (b,))]


@pytest.mark.parametrize("sizes", [(6, 3), (6, 4, 3), (6, 5, 4, 3)])
def test_gradients_of_networks(sizes) -> None:
    params, rng = small_net(5, sizes), np.random.default_rng(6)
    x, y = rng.normal(size=(7, 6)), rng.integers(0, 3, 7)
    layers = oracle.forward(params, x)
    found = oracle.backward(params, layers, oracle.cross_entropy(layers[-1], y)[1])
    for i, each in enumerate(params):
        numeric = slope(lambda at, i=i: oracle.cross_entropy(oracle.logits([*params[:i], at, *params[i + 1 :]], x), y)[0], each)
        np.testing.assert_allclose(found[i], numeric, atol=1e-8)


def test_gradients_of_fedmatchs_two_losses() -> None:
    sigma, psi, rng = small_net(7), [0.3 * p for p in small_net(8)], np.random.default_rng(9)
    x, y = rng.normal(size=(11, 6)), rng.integers(0, 3, 11)
    helpers, weights = list(2.0 * rng.normal(size=(2, 11, 3))), oracle.Weights(s=3.0, i=0.4, a=0.6, l1=0.02, l2=0.1, confidence=0.75)
    sure = oracle.softmax(oracle.logits(oracle.total(sigma, psi), x)).max(axis=1) >= 0.75
    assert 0 < sure.sum() < 11, "some samples count, some do not"
    by_sigma, by_psi = oracle.sigma_loss(sigma, psi, x, y, weights)[1], oracle.psi_loss(sigma, psi, x, helpers, weights)[1]
    for i in range(4):

        def put(params: oracle.Params, at: np.ndarray, i: int = i) -> oracle.Params:
            return [*params[:i], at, *params[i + 1 :]]

        of_sigma = slope(lambda at, put=put: oracle.sigma_loss(put(sigma, at), psi, x, y, weights)[0], sigma[i])
        of_psi = slope(lambda at, put=put: oracle.psi_loss(sigma, put(psi, at), x, helpers, weights)[0], psi[i])
        np.testing.assert_allclose(by_sigma[i], of_sigma, atol=1e-7)
        np.testing.assert_allclose(by_psi[i], of_psi, atol=1e-7)


def test_helpers_votes_and_trust_by_hand() -> None:
    given = {k: np.array([[float(v), 0.0]]) for k, v in {0: 0, 1: 2, 2: -2, 3: 5, 4: 1}.items()}
    assert oracle.helpers_of(given, 0) == [4, 1], "1 and 2 are as far: the lower number"
    assert oracle.helpers_of(given, 3) == [1, 4]
    assert oracle.helpers_of({0: given[0], 3: given[3]}, 0) == [3], "there may be fewer"
    own, one, two = (np.log(np.array(p)) for p in ([[0.1, 0.2, 0.7]], [[0.1, 0.8, 0.1]], [[0.2, 0.6, 0.2]]))
    assert oracle.pseudo_labels(own, [one, two]) == [1], "two votes against one"
    assert oracle.pseudo_labels(own, [one]) == [1], "one vote each: the lowest class"
    assert oracle.pseudo_labels(own, []) == [2]
    np.testing.assert_allclose(oracle.trusted({0: own, 1: one}, {0: 0.6, 1: 0.2}), [[0.1, 0.35, 0.55]])
    np.testing.assert_allclose(oracle.trusted({0: own, 1: one}, {0: 0.0, 1: 0.0}), [[0.1, 0.5, 0.4]])
    np.testing.assert_allclose(oracle.mean_of({4: own, 7: one}), (own + one) / 2)


OPTIMISERS = {
    "sgd": (lambda: oracle.Sgd(0.1, 0.9, 0.01), lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9, weight_decay=0.01)),
    "adam": (lambda: oracle.Adam(0.1, decay=0.01), lambda ps: torch.optim.Adam(ps, lr=0.1, weight_decay=0.01)),
}


@pytest.mark.parametrize("name", OPTIMISERS)
@pytest.mark.parametrize("clip", [None, 0.5])
def test_descent_is_torchs(name, clip) -> None:
    ours, theirs = OPTIMISERS[name]
    params, rng = small_net(10), np.random.default_rng(11)
    x, y = rng.normal(size=(8, 6)), rng.integers(0, 3, 8)
    batches = [np.arange(8), np.array([3, 1, 5]), np.array([0, 2]), np.arange(8)]
    found = oracle.descend(params, x, lambda z, rows: oracle.cross_entropy(z, y[rows]), ours(), batches, clip)
    wants = [torch.tensor(p, requires_grad=True) for p in params]
    optimiser = theirs(wants)
    for rows in batches:
        hidden = torch.relu(torch.tensor(x[rows]) @ wants[0].T + wants[1])
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(hidden @ wants[2].T + wants[3], torch.tensor(y[rows])).backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(wants, clip)
        optimiser.step()
    for a, b in zip(found, wants, strict=True):
        np.testing.assert_allclose(a, b.detach().numpy(), atol=1e-12)


# --- whole runs of the library against whole runs of the oracle ---

ADAM, SGD = Adam(lr=0.02, weight_decay=1e-3), Sgd(lr=0.1, momentum=0.5, weight_decay=1e-3)
CLIENTS, COHORT, ROUNDS, PUBLIC = 5, 3, 3, 24


@spec
class Flat(Architecture):
    """One dense layer."""

    name: ClassVar[str] = "flat"

    def build(self, shape: tuple[int, int, int], classes: int) -> Staged:
        return Staged(flat=nn.Flatten(), head=nn.Linear(int(np.prod(shape)), classes))


MIXED, SAME = (Flat(), MLP(hidden=(5,)), MLP(hidden=(6, 5))), (MLP(hidden=(5,)),)


def public(**changes: Any) -> Training:
    return Training(**{"epochs": 1, "batch": "all", "optimiser": Sgd(lr=0.2, momentum=0.5), **changes})


def plan_of(method: Method, models: Sequence[Architecture] = MIXED, *, validation: float = 0.0, **changes: Any) -> Experiment:
    """Uneven clients, three of five a round, so that somebody sits out and comes back."""
    table = {
        "name": "oracle",
        "rounds": ROUNDS,
        "cohort": COHORT,
        "seed": 5,
        "float64": True,
        "data": {"source": "digits", "train": 120, "test": 20, "public": {"source": "digits", "samples": PUBLIC}},
        "partition": {"name": "dirichlet", "clients": CLIENTS, "alpha": 1.0, "minimum": 8, "validation": validation},
        "model": "mlp",
        "method": "fedavg",
    }
    usual = {"training": Training(epochs=2, batch="all", optimiser=SGD), "pretraining": 4}
    return Experiment.parse(table).replace(method=method, model=list(models), **usual | changes)


def arrays(site: Site, record: Record, prefix: str = "") -> oracle.Params:
    """Parameters in the network's own order."""
    names = [name for name, _ in site.model().named_parameters()]
    return [record.tensors[prefix + name].double().numpy() for name in names]


def make(settings: Optimiser) -> oracle.Optimiser:
    if isinstance(settings, Adam):
        return oracle.Adam(settings.lr, settings.betas, decay=settings.weight_decay)
    assert isinstance(settings, Sgd)
    return oracle.Sgd(settings.lr, settings.momentum, settings.weight_decay)


def flat(examples: Any) -> tuple[np.ndarray, np.ndarray]:
    x, y = examples.one_batch()
    return x.flatten(1).double().numpy(), y.numpy()


class World:
    """The clients of an experiment as the oracle has them, pretrained, and who is there in which round."""

    def __init__(self, plan: Experiment) -> None:
        self.plan, self.population = plan, plan.population()
        self.sites = {k: self.population.site(k, 0, ModelCache()) for k in range(CLIENTS)}
        self.public = flat(self.population.site(SERVER, 0, ModelCache()).public)[0]
        self.cohorts = [draw_cohort(plan.seed, round, CLIENTS, plan.cohort_size(CLIENTS)) for round in range(1, plan.rounds + 1)]
        self.clients = {k: self._client(site) for k, site in self.sites.items()}
        sizes = {len(client.x) for client in self.clients.values()}
        assert len(sizes) > 2, "clients must be uneven"

    def _client(self, site: Site) -> oracle.Client:
        held = flat(site.validation) if len(site.validation) else None
        client = oracle.Client(*flat(site.train), arrays(site, site.fresh()), validation=held)
        client.learn_alone(self.private(), self.plan.pretraining)
        return client

    def private(self) -> oracle.Optimiser:
        return make(self.plan.training.optimiser)

    def digester(self) -> oracle.Optimiser:
        return make(self.plan.method.public.optimiser)

    def batches(self, round: int, client: int, samples: int) -> oracle.Batches:
        """The public batches of one client's round."""
        settings, seed = self.plan.method.public, seed_of(self.plan.seed, round, client, "public")
        orders = [torch.randperm(samples, generator=generator(seed, "order", epoch)) for epoch in range(settings.epochs)]
        return [rows.numpy() for order in orders for rows in order.split(samples if settings.batch == "all" else settings.batch)]

    def revisit(self, cohort: Sequence[int], teachers: tuple[float, float] = (0.0, 0.0)) -> None:
        training = self.plan.training
        oracle.learn_locally(self.clients, cohort, self.private, training.epochs, teachers, training.state == "kept")

    def once(self, round: int, cohort: Sequence[int], merge: Any, digest: oracle.Digest) -> None:
        """One exchange about all public images or about some, shaken or not, the same for everybody."""
        about, seed = self.sites[0].public, seed_of(self.plan.seed, round, "public")
        if self.plan.method.alignment is not None:
            about = about.only(torch.randperm(PUBLIC, generator=generator(seed, "alignment"))[: self.plan.method.alignment])
        about = flat(about if self.plan.method.public.augment == "none" else about.augmented(generator(seed, "augment")))[0]
        optimisers = {k: self.digester() for k in cohort}
        oracle.digest_once(self.clients, cohort, about, merge, digest, optimisers, lambda k: self.batches(round, k, len(about)))


def memories(folder: Path) -> dict[int, Record]:
    return {int(path.name.split(".")[0]): read(path) for path in sorted((folder / "memory").iterdir())}  # of two, the newer is last


def compare(plan: Experiment, folder: Path, world: World, tolerance: float = 1e-9, **more: Any) -> None:
    """Every client's network after the library's run is the oracle's."""
    kept = memories(run(plan, folder, engine=more.get("engine") or Inline()).folder)
    assert set(kept) == {k for cohort in world.cohorts for k in cohort}, "who took part keeps something"
    for k in kept:
        client = world.clients[k]
        for found, want in zip(arrays(world.sites[k], kept[k].group("model")), client.params, strict=True):
            np.testing.assert_allclose(found, want, rtol=tolerance, atol=tolerance, err_msg=f"client {k}")


def test_the_little_federation_is_worth_following() -> None:
    """Somebody sits a round out and comes back, somebody is there twice in a row: else teachers and states could be mixed up unseen."""
    cohorts = World(plan_of(FedMD())).cohorts
    assert any(k not in cohorts[1] and k in cohorts[0] and k in cohorts[2] for k in range(CLIENTS))
    assert any(k in a and k in b for a, b in pairwise(cohorts) for k in range(CLIENTS))
    assert len({k for cohort in cohorts for k in cohort}) >= 4


def fccl(**changes: Any) -> FCCL:
    return FCCL(**{"public": public(), **changes})


def lockstep(**changes: Any) -> FCCLLockstep:
    return FCCLLockstep(**{"public": public(), **changes})


def correlating(method: FCCL) -> oracle.Digest:
    return lambda z, goal: oracle.plus((method.correlation, oracle.collaborative(z, goal, method.lam, float(method.off_diagonal))))


def in_lockstep(world: World, round: int, cohort: Sequence[int], left_out: int = 0, **more: Any) -> None:
    """All public batches of a round, or all but the last ones."""
    method, seed = world.plan.method, seed_of(world.plan.seed, round, "public")
    orders = [torch.randperm(PUBLIC, generator=generator(seed, "order", epoch)) for epoch in range(method.public.epochs)]
    batches = [rows.numpy() for order in orders for rows in order.split(method.public.batch)]
    more |= {"own": method.own_slot, "reset": method.reset_each_batch}
    done = batches[: len(batches) - left_out]
    oracle.digest_in_lockstep(world.clients, cohort, world.public, correlating(method), world.digester, done, **more)


def follow_fccl(world: World) -> World:
    method = world.plan.method
    for round, cohort in enumerate(world.cohorts, 1):
        oracle.begin(world.clients, cohort)
        if method.correlation > 0 and not isinstance(method, FCCLLockstep):
            world.once(round, cohort, oracle.mean_of, correlating(method))
        elif method.correlation > 0:
            in_lockstep(world, round, cohort)
        averaged(world, cohort)
        world.revisit(cohort, (method.previous, method.pretrained))
    return world


ONCE = {
    "as published": {},
    "heavy off the diagonal": {"lam": 0.7},
    "uncorrelated": {"lam": 0.7, "off_diagonal": 0},
    "diagonal only": {"lam": 0.0},
    "weighted": {"correlation": 2.5, "previous": 0.3, "pretrained": 1.7},
    "without previous": {"previous": 0.0},
    "without pretrained": {"pretrained": 0.0},
    "without teachers": {"previous": 0.0, "pretrained": 0.0},
    "nothing exchanged": {"correlation": 0.0},
    "two public epochs": {"public": public(epochs=2)},
    "Adam on public data": {"public": public(epochs=3, optimiser=ADAM), "lam": 0.3},
    "public batches": {"public": public(epochs=2, batch=7, optimiser=ADAM), "lam": 0.3},
    "some public images": {"alignment": 13, "lam": 0.3},
    "shaken public images": {"public": public(epochs=2, augment="crop-flip")},
}


@pytest.mark.parametrize("case", ONCE)
def test_fccl_once(tmp_path, case) -> None:
    plan = plan_of(fccl(**ONCE[case]))
    compare(plan, tmp_path / "run", follow_fccl(World(plan)))


def test_fccl_that_was_never_pretrained(tmp_path) -> None:
    plan = plan_of(fccl(), pretraining=0)
    compare(plan, tmp_path / "run", follow_fccl(World(plan)))


@pytest.mark.parametrize("training", [{"optimiser": ADAM}, {"optimiser": ADAM, "state": "kept"}, {"state": "kept"}, {"epochs": 0}], ids=str)
def test_fccl_with_other_private_training(tmp_path, training) -> None:
    plan = plan_of(fccl(), training=Training(**{"epochs": 3, "batch": "all", "optimiser": SGD, **training}))
    compare(plan, tmp_path / "run", follow_fccl(World(plan)))


def test_fccl_in_single_precision(tmp_path) -> None:
    plan = plan_of(fccl(lam=0.3), float64=False)
    compare(plan, tmp_path / "run", follow_fccl(World(plan)), 1e-5)


def test_fccl_with_everybody_in_every_round(tmp_path) -> None:
    plan = plan_of(fccl(lam=0.2), cohort=1.0)
    compare(plan, tmp_path / "run", follow_fccl(World(plan)))


LOCKSTEP = {
    "current": {},
    "previous": {"own_slot": "previous"},
    "reset": {"reset_each_batch": True},
    "as released": {"own_slot": "previous", "reset_each_batch": True},
    "two epochs": {"public": public(epochs=2, batch=10, optimiser=ADAM), "own_slot": "previous"},
    "SGD": {"public": public(batch=5)},
}


@pytest.mark.parametrize("case", LOCKSTEP)
def test_fccl_in_lockstep(tmp_path, case) -> None:
    settings = {"lam": 0.3, "public": public(batch=9, optimiser=ADAM), **LOCKSTEP[case]}
    plan = plan_of(lockstep(**settings))
    compare(plan, tmp_path / "run", follow_fccl(World(plan)))


@pytest.mark.parametrize("average", ["uniform", "samples"])
@pytest.mark.parametrize("method", [fccl, lockstep])
def test_fccl_of_equal_networks_averages_between_the_phases(tmp_path, method, average) -> None:
    plan = plan_of(method(average=average, public=public(batch=9)), SAME)
    compare(plan, tmp_path / "run", follow_fccl(World(plan)))


DIGESTS: dict[str, oracle.Digest] = {"l1": oracle.l1, "mse": oracle.mse}
PUBLICS = {"sgd": public(), "two epochs": public(epochs=2), "adam": public(epochs=3, optimiser=ADAM), "batches": public(epochs=2, batch=7)}


def averaged(world: World, cohort: Sequence[int]) -> None:
    """Parameters, between the phases, where the method says so."""
    if world.plan.method.average != "none":
        sizes = [float(len(world.clients[k].x)) for k in cohort]
        oracle.share_parameters(world.clients, cohort, sizes if world.plan.method.average == "samples" else None)


def follow_mean(world: World, digest: oracle.Digest) -> World:
    for round, cohort in enumerate(world.cohorts, 1):
        world.once(round, cohort, oracle.mean_of, digest)
        averaged(world, cohort)
        world.revisit(cohort)
    return world


@pytest.mark.parametrize("settings", PUBLICS)
@pytest.mark.parametrize("loss", DIGESTS)
def test_fedmd(tmp_path, loss, settings) -> None:
    plan = plan_of(FedMD(digest_loss=loss, public=PUBLICS[settings]))
    compare(plan, tmp_path / "run", follow_mean(World(plan), DIGESTS[loss]))


def test_fedmd_digests_by_mean_absolute_error_unless_told(tmp_path) -> None:
    plan = plan_of(FedMD(public=public()))
    compare(plan, tmp_path / "run", follow_mean(World(plan), oracle.l1))


@pytest.mark.parametrize("settings", [{"alignment": 11}, {"public": public(epochs=2, augment="crop-flip")}], ids=str)
def test_fedmd_about_other_public_images_every_round(tmp_path, settings) -> None:
    plan = plan_of(FedMD(**{"public": public(batch=4), **settings}))
    compare(plan, tmp_path / "run", follow_mean(World(plan), oracle.l1))


@pytest.mark.parametrize("settings", PUBLICS)
def test_feddf_on_clients(tmp_path, settings) -> None:
    plan = plan_of(FedDFClient(public=PUBLICS[settings]))
    compare(plan, tmp_path / "run", follow_mean(World(plan), lambda z, goal: oracle.kl(goal, z)))


def follow_trust(world: World) -> World:
    for round, cohort in enumerate(world.cohorts, 1):
        trust = {k: world.clients[k].accuracy() for k in cohort}
        assert len(set(trust.values())) > 1, "else it would be the plain mean"
        world.once(round, cohort, lambda answers, trust=trust: oracle.trusted(answers, trust), lambda z, goal: oracle.kl_from(goal, z))
        averaged(world, cohort)
        world.revisit(cohort)
    return world


@pytest.mark.parametrize("settings", PUBLICS)
@pytest.mark.parametrize("validation", [0.0, 0.4])
def test_rcfl(tmp_path, validation, settings) -> None:
    plan = plan_of(RCFLPublic(public=PUBLICS[settings]), validation=validation)
    compare(plan, tmp_path / "run", follow_trust(World(plan)))


@pytest.mark.parametrize("average", ["uniform", "samples"])
@pytest.mark.parametrize("method", [FedMD, FedDFClient, RCFLPublic])
def test_methods_of_equal_networks_average_between_the_phases(tmp_path, method, average) -> None:
    """FCCL, Table 3: "every method" is averaged; FCCL and FedMatch have tests of their own."""
    plan = plan_of(method(average=average, public=public(batch=9)), SAME, validation=0.4)
    follow = {
        FedMD: lambda world: follow_mean(world, oracle.l1),
        FedDFClient: lambda world: follow_mean(world, lambda z, goal: oracle.kl(goal, z)),
        RCFLPublic: follow_trust,
    }[method]
    compare(plan, tmp_path / "run", follow(World(plan)))


class Deaf(Inline):
    """The first client of a cohort is never reached with one kind of ask."""

    def __init__(self, task: str, rounds: Sequence[int] = range(1, ROUNDS + 1), at: int | None = None) -> None:
        self.task, self.rounds, self.at = task, rounds, at

    def deliver(self, jobs: Sequence[Job]) -> Iterator[Outcome]:
        first = jobs[0]
        if first.task == self.task and first.round in self.rounds and self.at == decode(Path(first.message).read_bytes()).get("at"):
            yield Outcome(first.client, error=TaskError(f"{first}: it did not answer"))
            jobs = jobs[1:]
        yield from super().deliver(jobs)


DROP = Admission(faults="drop", quorum=0.1)


@pytest.mark.parametrize("method", [fccl(lam=0.3), FedMD(public=public(), digest_loss="mse")], ids=lambda m: m.name)
def test_the_mean_is_over_who_answered(tmp_path, method) -> None:
    """Who did not answer still learns from the others."""
    plan = plan_of(method, admission=DROP)
    world = World(plan)
    teachers, digest = ((1.0, 1.0), correlating(method)) if isinstance(method, FCCL) else ((0.0, 0.0), oracle.mse)
    for round, cohort in enumerate(world.cohorts, 1):
        oracle.begin(world.clients, cohort)
        world.once(round, cohort, lambda said, lost=cohort[0]: oracle.mean_of({k: z for k, z in said.items() if k != lost}), digest)
        world.revisit(cohort, teachers)
    compare(plan, tmp_path / "run", world, engine=Deaf("predict"))


STRIDE = {"lam": 0.3, "public": public(batch=9, optimiser=ADAM)}


@pytest.mark.parametrize("own_slot", ["current", "previous"])
def test_in_lockstep_the_mean_is_over_who_answered(tmp_path, own_slot) -> None:
    plan = plan_of(lockstep(**STRIDE, own_slot=own_slot), admission=DROP)
    world = World(plan)
    for round, cohort in enumerate(world.cohorts, 1):
        oracle.begin(world.clients, cohort)
        in_lockstep(world, round, cohort, unheard=lambda at, k, lost=cohort[0]: at == 0 and k == lost)
        world.revisit(cohort, (1.0, 1.0))
    compare(plan, tmp_path / "run", world, engine=Deaf("step", at=0))


def test_public_moments_do_not_outlive_a_round_that_a_client_did_not_finish(tmp_path) -> None:
    """Lost before its last step and its private phase, it comes back where it stood, and its previous model is the one before that."""
    plan = plan_of(lockstep(**STRIDE | {"public": public(batch=9)}), cohort=1.0, rounds=2, admission=DROP)
    world, other = World(plan), World(plan)
    for each in (world, other):
        oracle.begin(each.clients, range(CLIENTS))
    in_lockstep(world, 1, range(CLIENTS))
    in_lockstep(other, 1, range(CLIENTS), left_out=1)
    world.revisit(range(1, CLIENTS), (1.0, 1.0))
    world.clients[0].params = other.clients[0].params
    oracle.begin(world.clients, range(1, CLIENTS))
    in_lockstep(world, 2, range(CLIENTS))
    world.revisit(range(CLIENTS), (1.0, 1.0))
    compare(plan, tmp_path / "run", world, engine=Deaf("learn", [1], at=3))


# --- FedDF on the server ---


def passes(world: World, round: int, kind: int) -> oracle.Batches:
    """The batches of one student: pass after pass over the public data, the last cut to the steps that are left."""
    method, seed = world.plan.method, seed_of(world.plan.seed, round, SERVER, f"distil/{kind}")
    batches: list[np.ndarray] = []
    for epoch in itertools.count():
        order = torch.randperm(PUBLIC, generator=generator(seed, "order", epoch))
        batches += [rows.numpy() for rows in order.split(method.batch)]
        if len(batches) >= method.steps:
            return batches[: method.steps]
    raise AssertionError


def follow_feddf(
    world: World, factors: Sequence[float], batches: Callable[[World, int, int], oracle.Batches] = passes
) -> list[oracle.Params]:
    plan, kinds, method = world.plan, len(world.plan.model), world.plan.method
    server = world.population.site(SERVER, 0, ModelCache())
    fresh = [server.fresh(architecture=each) for each in plan.model]
    students = [arrays(world.sites[kind], each) for kind, each in enumerate(fresh)]
    for round, cohort in enumerate(world.cohorts, 1):
        for k in cohort:
            world.clients[k].params = students[k % kinds]
        world.revisit(cohort)
        teachers = [world.clients[k].params for k in cohort]
        for kind in range(kinds):
            group = [world.clients[k] for k in cohort if k % kinds == kind]
            shares = [float(len(each.x)) for each in group] if method.weighting == "samples" else None
            start = oracle.average([each.params for each in group], shares) if group else students[kind]
            steps = batches(world, round, kind) if method.steps else []
            students[kind] = oracle.distil(start, teachers, world.public, oracle.Adam(method.lr), steps, factors, method.clip)
    return students


def compare_students(plan: Experiment, folder: Path, world: World, students: Sequence[oracle.Params]) -> None:
    state = run(plan, folder, engine=Inline()).state
    for kind, want in enumerate(students):
        found = arrays(world.sites[kind], state.group("model" if kind == 0 else f"model-{kind}"))
        for a, b in zip(found, want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9, err_msg=f"student {kind}")


SERVERS = {
    "uniform": {"weighting": "uniform"},
    "samples": {"weighting": "samples"},
    "clipped": {"clip": 0.05},
    "no steps": {"steps": 0},
    "large batches": {"batch": 30, "steps": 5},
}


@pytest.mark.parametrize("models", [MIXED, SAME], ids=["mixed", "same"])
@pytest.mark.parametrize("case", SERVERS)
def test_feddf_on_the_server(tmp_path, case, models) -> None:
    """Specification, section 8: the rate follows a cosine over all steps."""
    plan = plan_of(FedDF(**{"steps": 12, "batch": 8, "lr": 0.02, "clip": 5.0, **SERVERS[case]}), models)
    world, steps = World(plan), plan.method.steps
    compare_students(plan, tmp_path / "run", world, follow_feddf(world, [oracle.cosine(step, steps) for step in range(steps)]))


def test_feddf_with_batches_of_everything_sees_every_image_in_every_step(tmp_path) -> None:
    """A batch as large as the public data is the public data, not a draw from it with repetitions."""
    plan = plan_of(FedDF(steps=4, batch=PUBLIC, lr=0.02), SAME, rounds=1)
    world = World(plan)
    want = follow_feddf(world, [oracle.cosine(step, 4) for step in range(4)], lambda *_: oracle.whole(world.public, 4))
    compare_students(plan, tmp_path / "run", world, want)


# --- FedMatch-public ---


def follow_match(world: World) -> dict[int, tuple[oracle.Params, oracle.Params]]:
    """psi from public, then sigma from private data; where parameters are averaged, sigma and psi each between the two."""
    plan, method = world.plan, world.plan.method
    weights = oracle.Weights(method.supervised, method.inter, method.agreement, method.l1, method.l2, method.threshold)
    parts = {
        k: ([p / (1 + method.share) for p in c.params], [p * method.share / (1 + method.share) for p in c.params])
        for k, c in world.clients.items()
    }
    counted = []
    for cohort in world.cohorts:
        said = {k: oracle.logits(oracle.total(*parts[k]), world.public) for k in cohort}
        for k in cohort:
            sigma, psi = parts[k]
            helpers = [said[peer] for peer in oracle.helpers_of(said, k, method.helpers)]
            counted += [oracle.softmax(said[k]).max(axis=1) >= method.threshold]
            parts[k] = sigma, oracle.match_psi(sigma, psi, world.public, helpers, weights, world.digester(), method.public.epochs)
        if method.average != "none":
            shares = [float(len(world.clients[k].x)) for k in cohort] if method.average == "samples" else None
            mean = tuple(oracle.average([parts[k][which] for k in cohort], shares) for which in (0, 1))
            parts |= dict.fromkeys(cohort, mean)
        for k in cohort:
            (sigma, psi), client = parts[k], world.clients[k]
            parts[k] = oracle.match_sigma(sigma, psi, client.x, client.y, weights, world.private(), plan.training.epochs), psi
    share = np.concatenate(counted).mean()
    assert method.threshold in (0.0, 1.0) or 0.02 < share < 0.98, f"some images count, some do not: {share}"
    return parts


MATCHES = {
    "as published": {},
    "one helper": {"helpers": 1},
    "no helper": {"helpers": 0},
    "all peers": {"helpers": 9},
    "everything counts": {"threshold": 0.0},
    "heavy": {"inter": 0.6, "agreement": 0.8, "l1": 0.01, "l2": 0.3},
    "consistency only": {"inter": 1.0, "agreement": 0.0, "l1": 0.0, "l2": 0.0},
    "agreement only": {"inter": 0.0, "agreement": 1.0, "l1": 0.0, "l2": 0.0},
    "penalties only": {"inter": 0.0, "agreement": 0.0, "l1": 0.05, "l2": 0.2},
    "another share": {"share": 0.5, "supervised": 1.0},
    "adam": {"public": public(epochs=3, optimiser=ADAM), "inter": 0.6, "agreement": 0.8, "l2": 0.3},
}


def compare_parts(plan: Experiment, folder: Path) -> None:
    world = World(plan)
    want = follow_match(world)
    kept = memories(run(plan, folder, engine=Inline()).folder)
    for k, (sigma, psi) in want.items():
        found = kept[k].group("model")
        for a, b in zip(arrays(world.sites[k], found, "sigma."), sigma, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9, err_msg=f"sigma of client {k}")
        for index, b in enumerate(psi):
            np.testing.assert_allclose(found.tensors[f"psi.{index}"].numpy(), b, rtol=1e-9, atol=1e-9, err_msg=f"psi of client {k}")


def match_plan(models: Any = None, **settings: Any) -> Experiment:
    usual = {"threshold": 0.75, "public": public(epochs=2, optimiser=Sgd(lr=0.01, momentum=0.5)), **settings}
    training = Training(epochs=2, batch="all", optimiser=Sgd(lr=0.03, momentum=0.5))
    return plan_of(FedMatchPublic(**usual), *([models] if models else []), training=training, pretraining=60)


@pytest.mark.parametrize("case", MATCHES)
def test_fedmatch(tmp_path, case) -> None:
    compare_parts(match_plan(**MATCHES[case]), tmp_path / "run")


@pytest.mark.parametrize("average", ["uniform", "samples"])
def test_fedmatch_of_equal_networks_averages_sigma_and_psi(tmp_path, average) -> None:
    compare_parts(match_plan(SAME, average=average, inter=0.6, agreement=0.8, l2=0.3), tmp_path / "run")


def test_of_peers_as_near_the_lower_number_helps() -> None:
    """In whatever order they answered."""
    said = {k: np.array([[float(v), 0.0, -1.0]]) for k, v in {4: 1, 2: -2, 0: 0, 3: 5, 1: 2}.items()}
    heard = {k: torch.tensor(z) for k, z in said.items()}
    beliefs = {k: z.softmax(1) for k, z in heard.items()}
    for k, own in heard.items():
        want = [oracle.softmax(said[peer]) for peer in oracle.helpers_of(said, k)]
        found = FedMatchPublic()._nearest(k, own, heard, beliefs)
        np.testing.assert_allclose([belief.numpy() for belief in found.values()], want, err_msg=f"client {k}")
    assert oracle.helpers_of(said, 0) == [4, 1]


def test_fedmatch_sees_shaken_images_in_its_agreement_only(tmp_path) -> None:
    """Specification, section 9: "KL(helper || local) + CE(agreement pseudo-label, prediction on strong augmentation)"."""
    settings = {"inter": 0.6, "agreement": 0.8, "l1": 0.0, "l2": 0.3, "threshold": 0.0}
    plan = plan_of(FedMatchPublic(**settings, public=public(augment="crop-flip")), rounds=1)
    world, method = World(plan), plan.method
    [cohort] = world.cohorts
    said = {k: oracle.logits(world.clients[k].params, world.public) for k in cohort}
    kept = memories(run(plan, tmp_path / "run", engine=Inline()).folder)
    for k in cohort:
        sigma, psi = ([share / 1.2 * p for p in world.clients[k].params] for share in (1.0, 0.2))
        seed = seed_of(plan.seed, 1, k, "public")
        order = torch.randperm(PUBLIC, generator=generator(seed, "order", 0))
        with scoped(seed_of(seed, "dropout")):
            shaken = crop_and_flip(world.sites[k].public.batch(order)[0], torch.default_generator).flatten(1).numpy()
        helpers = [said[peer] for peer in oracle.helpers_of(said, k)]
        rows, none = order.numpy(), oracle.Weights(i=0.0, a=0.0, l1=0.0, l2=0.0, confidence=0.0)
        plain = oracle.psi_loss(sigma, psi, world.public, helpers, replace(none, i=method.inter, l2=method.l2), said[k])[1]
        strong = oracle.psi_loss(sigma, psi, shaken, [z[rows] for z in helpers], replace(none, a=method.agreement), said[k][rows])[1]
        want = world.digester().step(psi, [a + b for a, b in zip(plain, strong, strict=True)])
        for index, each in enumerate(want):
            np.testing.assert_allclose(kept[k].group("model").tensors[f"psi.{index}"].numpy(), each, atol=1e-9, err_msg=f"client {k}")


# --- the correlation loss alone ---


class Given(nn.Module):
    """Logits as a parameter, so that a gradient with respect to them can be read."""

    def __init__(self, logits: np.ndarray, dtype: torch.dtype) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.tensor(logits, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.logits


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("target", [-1.0, 0.0])
def test_the_correlation_loss_and_its_gradient(target, constant, dtype) -> None:
    z, zbar, _ = answers(20, size=13, classes=6)
    if constant:
        z[:, 1], zbar[:, 3] = 0.3, -70.1
    net, consensus = Given(z, dtype), torch.tensor(zbar, dtype=dtype, requires_grad=True)
    loss = CrossCorrelation(0.4, target)(Step(net, torch.zeros(13, 1), torch.zeros(13), {}, {"consensus": consensus}))
    loss.backward()
    want, by_z = oracle.collaborative(z, zbar, 0.4, target)
    close = 1e-12 if dtype == torch.float64 else 1e-5
    assert loss.item() == pytest.approx(want, rel=close)
    np.testing.assert_allclose(net.logits.grad.numpy(), by_z, atol=close)
    np.testing.assert_allclose(pearson(net.logits, consensus).detach().numpy(), oracle.correlation(z, zbar), atol=close)
