"""FedPer against its oracle, its reduction to FedAvg, its bytes, and conformance on every engine."""

from __future__ import annotations

import pytest
from tests.methods import oracle_personal as oracle
from tests.methods.personal import assert_same, federation_of, memories_of, start_of, starts_of, uneven

from coterie.engines import Inline
from coterie.errors import UserError
from coterie.methods import FedAvg, FedPer, Local
from coterie.running.rounds import run
from coterie.testing import check_method, small_experiment

HEAD = 4 * (16 * 10 + 10)
MODEL = 4 * (64 * 16 + 16) + HEAD


def test_whole_runs_are_the_oracles(tmp_path) -> None:
    plan = uneven(FedPer())
    result = run(plan, tmp_path / "run", engine=Inline())
    expected = oracle.fedper(federation_of(plan), start_of(plan), starts_of(plan))
    assert_same(result.state.group("model"), {name: expected.base[name] for name in ("A", "a")})
    memories = memories_of(result.folder)
    assert memories, "clients keep their heads"
    for client, memory in memories.items():
        assert_same(memory.group("personal"), {name: expected.personal[client][name] for name in ("B", "b")})


def test_without_personal_layers_it_is_fedavg_to_the_bit() -> None:
    check_method(FedPer(personal=()), up=MODEL, down=MODEL, same_as=FedAvg(), engines=())


def test_conformance_and_bytes_of_the_base_only() -> None:
    check_method(FedPer(), up=MODEL - HEAD, down=MODEL - HEAD)


def test_a_stage_that_is_not_there_is_a_sentence() -> None:
    with pytest.raises(UserError, match=r"method.personal = 'haed': no such stage of the network, did you mean 'head'"):
        small_experiment(FedPer(personal=("haed",))).population()


def test_a_network_without_stages_is_a_sentence() -> None:
    plain = {"name": "custom", "module": "torch.nn:Linear", "settings": {"in_features": 8, "out_features": 10}}
    with pytest.raises(UserError, match="no levels to cut at"):
        small_experiment(FedPer()).overridden({"model": plain}).population()


def test_with_all_layers_personal_it_is_local_training_to_the_bit(tmp_path) -> None:
    ours = run(small_experiment(FedPer(personal=("flat", "dense1", "head"))), tmp_path / "fedper", engine=Inline())
    alone = run(small_experiment(Local()), tmp_path / "local", engine=Inline())
    mine, theirs = memories_of(ours.folder), memories_of(alone.folder)
    assert mine.keys() == theirs.keys()
    assert all(mine[client].group("personal") == theirs[client].group("model") for client in mine)
    assert ours.summary["bytes"]["up"] == 0
