"""The engine `ray`, with real actors: on one machine, and on several nodes of which one is lost."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings

import pytest
from tests import digests
from tests.forms import rest_is_long

from coterie.engines import Inline, Processes, Ray, build_engine
from coterie.engines.ray import _begin as begin
from coterie.errors import UserError
from coterie.methods import METHODS
from coterie.running.experiment import Experiment
from coterie.running.rounds import Result, run
from coterie.testing import check_engine, small_experiment

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own: sockets and processes that it leaves to the interpreter


@pytest.fixture(scope="module")
def cluster():
    """One for most tests of this file, begun as the engine does where no address is said: two workers, and nobody else's cluster."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", "RAY_worker_niceness": "0"}
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings(action="ignore"):
        patch.setenv("RAY_ADDRESS", "127.0.0.1:1")  # Ray would go there by itself
        begin(ray, None, 2)
    yield
    ray.shutdown()


CASES = {case["method"]["name"]: name for name, case in reversed(digests.CASES.items())}
"""Method -> one case of it. In the short form one that goes beyond what `kept` has: architectures that differ, several exchanges."""


@pytest.mark.parametrize("case", rest_is_long(CASES.values(), short=[CASES["fccl"]]))
def test_the_bits_are_those_of_inline(case, cluster, tmp_path) -> None:
    plan = Experiment.parse(digests.BASE | digests.CASES[case])
    there, here = (run(plan, tmp_path / name, engine=engine) for name, engine in (("ray", Ray(workers=2)), ("inline", Inline())))
    assert there.summary["digest"] == here.summary["digest"]


class Watched(Ray):
    """Notes what goes into the object store, and who gets which client."""

    def __init__(self) -> None:
        super().__init__(workers=2)
        self.stored: list[int] = []
        self.turned: list[tuple[int, int]] = []

    def deliver(self, jobs):
        with pytest.MonkeyPatch.context() as patch:
            put = ray.put
            count: list[object] = []
            patch.setattr(ray, "put", lambda value: (count.append(value), put(value))[1])
            found = super().deliver(jobs)
        self.stored.append(len(count))
        return found

    def _give(self, actor, ticket, job, delivery) -> None:
        known = [each.client for each in delivery.queue.values() if (each.client, each.memory) in actor.holds]
        if known and (job.client, job.memory) not in actor.holds:
            self.turned.append((job.client, known[0]))
        super()._give(actor, ticket, job, delivery)


@pytest.fixture(scope="module")
def kept(cluster, tmp_path_factory) -> tuple[Watched, Result, Result]:
    """A method whose clients keep a model, on Ray and `inline`."""
    plan, folder, engine = small_experiment(METHODS.resolve("ditto"), rounds=3, cohort=1.0), tmp_path_factory.mktemp("kept"), Watched()
    return engine, run(plan, folder / "ray", engine=engine), run(plan, folder / "inline", engine=Inline())


def test_what_clients_keep_is_on_the_drivers_disk_and_its_bits_are_those_of_inline(kept) -> None:
    _, there, here = kept
    assert list((there.folder / "memory").glob("*.safetensors"))
    assert there.summary["digest"] == here.summary["digest"]


def test_a_message_is_stored_once_and_clients_stay_with_their_actor(kept) -> None:
    engine, _, _ = kept
    assert engine.stored == [1, 1, 1]
    assert engine.turned == []


def test_a_client_that_misbehaves_is_dropped_in_the_words_of_every_engine(cluster) -> None:
    check_engine(lambda: Ray(workers=2), ["exits with 9", "raises ValueError", "sends nothing", "keeps a gigabyte"])


def test_a_cluster_that_is_not_there_is_a_sentence(tmp_path) -> None:
    if ray.is_initialized():
        ray.shutdown()
    with pytest.raises(UserError, match=r"engine\.address = '127\.0\.0\.1:1'"):
        run(small_experiment(METHODS.resolve("fedavg")), tmp_path / "run", engine=Ray(workers=1, address="127.0.0.1:1"))


def test_an_engine_that_cannot_be_had_leaves_no_folder(tmp_path, monkeypatch) -> None:
    plan = small_experiment(METHODS.resolve("fedavg"))
    with pytest.raises(UserError, match="no Ray cluster there"):
        run(plan, tmp_path / "run", engine=Ray(address="127.0.0.1:1"))
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"engine.name = 'ray' needs Ray: pip install 'coterie\[ray\]'"):
        run(plan, tmp_path / "run", engine=Ray())
    assert os.listdir(tmp_path) == []


def test_an_experiment_names_it() -> None:
    engine = Experiment.load("digits-two-class", ["engine.name=ray", "engine.workers=3", "engine.address=auto"]).engine.build()
    assert isinstance(engine, Ray)
    assert (engine.workers, engine.address) == (3, "auto")
    with pytest.raises(UserError, match=r"engine\.name = .processes. cannot be had with address"):
        build_engine("processes", address="auto")


class Struck(Ray):
    """Takes a node away as soon as a job of the second round was given to a worker there."""

    def __init__(self, cluster, node) -> None:
        super().__init__(workers=2, address="auto")
        self._cluster, self._node = cluster, node
        self.lost: list[str] = []

    def _give(self, actor, ticket, job, delivery) -> None:
        hit = job.round == 2 and not self.lost and self._node_of(actor.handle) == self._node.node_id
        super()._give(actor, ticket, job, delivery)
        if hit:
            self._cluster.remove_node(self._node, allow_graceful=False)

    def _node_of(self, handle) -> str:
        return ray.get(handle.__ray_call__.remote(lambda host: ray.get_runtime_context().get_node_id()))

    def _replace(self, actor, delivery, how) -> None:
        self.lost.append(how)
        super()._replace(actor, delivery, how)


def test_a_node_that_is_lost_in_mid_round_costs_nothing(tmp_path, monkeypatch) -> None:
    """Of a cluster of two that was there already, which `engine.address = "auto"` has found."""
    from ray.cluster_utils import Cluster

    if ray.is_initialized():
        ray.shutdown()
    plan = small_experiment(METHODS.resolve("ditto"), rounds=3, cohort=1.0)
    here = run(plan, tmp_path / "here", engine=Inline())
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)
        engine = Struck(cluster, cluster.add_node(num_cpus=1))
        there = run(plan, tmp_path / "there", engine=engine)
    finally:
        ray.shutdown()
        cluster.shutdown()
    assert "its node or its actor was lost" in engine.lost
    assert there.summary["digest"] == here.summary["digest"]
    assert subprocess.run(["pgrep", "-P", str(os.getpid()), "raylet"], capture_output=True, check=False).stdout == b""


def test_processes_and_ray_are_isolated() -> None:
    assert Ray.isolated
    assert Processes.isolated
