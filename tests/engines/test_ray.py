"""The engine `ray`, with real actors: on one machine, and on several nodes of which one is lost."""

from __future__ import annotations

import os
import subprocess
import threading
import time
import warnings

import pytest
from tests import digests

from coterie.engines import Inline, Processes, Ray, build_engine
from coterie.errors import UserError
from coterie.methods import METHODS
from coterie.running.experiment import Experiment
from coterie.running.rounds import run
from coterie.testing import check_engine, small_experiment

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own: sockets and processes that it leaves to the interpreter

SHORT = ("fedavg", "ditto", "fml", "fccl", "split-metadata")
LONG = bool(os.environ.get("COTERIE_LONG"))


@pytest.fixture(scope="module")
def cluster():
    """One cluster for all tests of this file: two workers."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", "RAY_worker_niceness": "0"}
    with warnings.catch_warnings(action="ignore"):
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


def cases() -> list[str]:
    """One case of each method, or of every one that is in the short form."""
    chosen = {case["method"]["name"]: name for name, case in reversed(digests.CASES.items())}
    return [name for method, name in chosen.items() if LONG or method in SHORT]


@pytest.mark.parametrize("case", cases())
def test_the_bits_are_those_of_inline(case, cluster, tmp_path) -> None:
    plan = Experiment.parse(digests.BASE | digests.CASES[case])
    there, here = (run(plan, tmp_path / name, engine=engine) for name, engine in (("ray", Ray(workers=2)), ("inline", Inline())))
    assert there.summary["digest"] == here.summary["digest"]


def test_what_clients_keep_is_on_the_drivers_disk(cluster, tmp_path) -> None:
    found = run(small_experiment(METHODS.resolve("ditto")), tmp_path / "run", engine=Ray(workers=2))
    assert list((found.folder / "memory").glob("*.safetensors"))


def test_a_client_that_misbehaves_is_dropped_in_the_words_of_every_engine(cluster) -> None:
    check_engine(lambda: Ray(workers=2), ["exits with 9", "raises ValueError", "sends nothing", "keeps a gigabyte"])


def test_a_cluster_that_is_not_there_is_a_sentence(tmp_path) -> None:
    if ray.is_initialized():
        ray.shutdown()
    with pytest.raises(UserError, match=r"engine\.address = '127\.0\.0\.1:1'"):
        run(small_experiment(METHODS.resolve("fedavg")), tmp_path / "run", engine=Ray(workers=1, address="127.0.0.1:1"))


def test_an_experiment_names_it() -> None:
    engine = Experiment.load("digits-two-class", ["engine.name=ray", "engine.workers=3", "engine.address=auto"]).engine.build()
    assert isinstance(engine, Ray)
    assert (engine.workers, engine.address) == (3, "auto")
    with pytest.raises(UserError, match=r"engine\.name = .processes. cannot be had with address"):
        build_engine("processes", address="auto")


def test_a_node_that_is_lost_in_mid_round_costs_nothing(tmp_path) -> None:
    from ray.cluster_utils import Cluster

    if ray.is_initialized():
        ray.shutdown()
    plan = small_experiment(METHODS.resolve("ditto"), rounds=3, cohort=1.0)
    here = run(plan, tmp_path / "here", engine=Inline())
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        lost = cluster.add_node(num_cpus=1)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        engine = Ray(workers=2)

        def strike(event) -> None:
            if event["event"] == "round" and event["round"] == 1:
                threading.Thread(target=lambda: (time.sleep(0.2), cluster.remove_node(lost, allow_graceful=False))).start()

        there = run(plan, tmp_path / "there", engine=engine, callbacks=[strike])
    finally:
        ray.shutdown()
        cluster.shutdown()
    assert there.summary["digest"] == here.summary["digest"]
    assert subprocess.run(["pgrep", "-P", str(os.getpid()), "raylet"], capture_output=True, check=False).stdout == b""


def test_processes_and_ray_are_isolated() -> None:
    assert Ray.isolated
    assert Processes.isolated
