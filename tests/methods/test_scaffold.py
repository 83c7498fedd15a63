"""SCAFFOLD against its oracle, its reduction to FedAvg, its bytes, and conformance on every engine."""

from __future__ import annotations

import pytest
import torch
from tests.methods import oracle_personal as oracle
from tests.methods.personal import ALIASES, assert_same, federation_of, memories_of, start_of, uneven

from coterie.engines import Inline
from coterie.methods import FedAvg, Scaffold
from coterie.running.rounds import run
from coterie.testing import check_method, small_experiment

MODEL = 4 * (64 * 16 + 16 + 16 * 10 + 10)


@pytest.mark.parametrize("server_lr", [1.0, 0.5])
def test_whole_runs_are_the_oracles(tmp_path, server_lr) -> None:
    plan = uneven(Scaffold(server_lr=server_lr))
    result = run(plan, tmp_path / "run", engine=Inline())
    expected = oracle.scaffold(federation_of(plan), start_of(plan), eta_g=server_lr)
    assert_same(result.state.group("model"), expected.x)
    assert_same(result.state.group("variate"), expected.c)
    memories = memories_of(result.folder)
    assert memories, "clients keep their variates"
    for client, memory in memories.items():
        assert_same(memory.group("variate"), expected.variates[client])


def test_its_first_round_is_fedavgs_to_the_bit(tmp_path) -> None:
    """All variates are 0 then, so nothing is corrected."""
    ours = run(small_experiment(Scaffold(), rounds=1), tmp_path / "scaffold", engine=Inline())
    theirs = run(small_experiment(FedAvg(weighting="uniform"), rounds=1), tmp_path / "fedavg", engine=Inline())
    assert ours.state.group("model") == theirs.state.group("model")


def test_its_second_round_is_not(tmp_path) -> None:
    ours = run(small_experiment(Scaffold(), rounds=2), tmp_path / "scaffold", engine=Inline())
    theirs = run(small_experiment(FedAvg(weighting="uniform"), rounds=2), tmp_path / "fedavg", engine=Inline())
    assert ours.state.group("model") != theirs.state.group("model")


def test_conformance_and_twice_fedavgs_bytes() -> None:
    check_method(Scaffold(), up=2 * MODEL, down=2 * MODEL)


def test_buffers_have_no_variate(tmp_path) -> None:
    table = {"model": {"name": "resnet10-slim", "width": 0.25, "depth": 0.5}}
    plan = small_experiment(Scaffold(), rounds=1).overridden(table)
    state = run(plan, tmp_path / "run", engine=Inline()).state
    assert any(name.endswith("running_mean") for name in state.group("model"))
    assert not any("running" in name or "num_batches" in name for name in state.group("variate"))


@pytest.mark.parametrize("server_lr", [0.5, 2.0])
def test_the_servers_rate_moves_parameters_and_not_running_statistics(tmp_path, server_lr) -> None:
    """From one start clients answer the same in the first round; an extrapolated variance would be no variance."""
    plan = small_experiment(Scaffold(), rounds=1).overridden({"model": {"name": "resnet10-slim", "width": 0.25, "depth": 0.5}})
    start = Scaffold().start(_Server(plan)).group("model").tensors
    mean, moved = (
        run(plan.replace(method=Scaffold(server_lr=rate)), tmp_path / str(rate), engine=Inline()).state.group("model").tensors
        for rate in (1.0, server_lr)
    )
    buffers = [name for name in mean if "running" in name or "num_batches" in name]
    assert buffers
    assert all(torch.equal(moved[name], mean[name]) for name in buffers)
    assert all((moved[name] >= 0).all() for name in buffers if name.endswith("running_var"))
    for name in set(mean) - set(buffers):
        assert torch.allclose(moved[name], start[name] + server_lr * (mean[name] - start[name]), atol=1e-6), name


def test_new_clients_get_the_model_and_no_variate() -> None:
    state = Scaffold().start(_Server(small_experiment(Scaffold())))
    assert set(Scaffold().for_new_client(state, 0).groups) == {"model"}
    assert set(ALIASES) >= {"head.weight"}


class _Server:
    """As much of a federation as `start` looks at."""

    def __init__(self, plan) -> None:
        from coterie.site import SERVER, ModelCache

        self.server = plan.population().site(SERVER, 0, ModelCache())
