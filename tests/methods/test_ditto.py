"""Ditto against its oracle, its reductions, its bytes, and conformance on every engine."""

from __future__ import annotations

import pytest
from tests.methods import oracle_personal as oracle
from tests.methods.personal import assert_same, federation_of, memories_of, start_of, uneven

from coterie.engines import Inline
from coterie.methods import Ditto, FedAvg
from coterie.running.rounds import run
from coterie.testing import check_method, small_experiment

MODEL = 4 * (64 * 16 + 16 + 16 * 10 + 10)


@pytest.mark.parametrize("lam", [0.0, 0.5])
def test_whole_runs_are_the_oracles(tmp_path, lam) -> None:
    plan = uneven(Ditto(lam=lam))
    result = run(plan, tmp_path / "run", engine=Inline())
    expected = oracle.ditto(federation_of(plan), start_of(plan), lam=lam)
    assert_same(result.state.group("model"), expected.w)
    memories = memories_of(result.folder)
    assert set(memories) == set(expected.v)
    for client, memory in memories.items():
        assert_same(memory.group("personal"), expected.v[client])


@pytest.mark.parametrize("lam", [0.0, 0.1, 5.0])
def test_its_global_model_is_fedavgs_to_the_bit(lam) -> None:
    check_method(Ditto(lam=lam), up=MODEL, down=MODEL, same_as=FedAvg(), engines=())


def test_conformance_on_every_engine() -> None:
    check_method(Ditto(), up=MODEL, down=MODEL)


def test_a_large_lam_keeps_the_personal_model_near_the_global_one(tmp_path) -> None:
    def distance(lam: float) -> float:
        """Of the personal models from where they started, the first global model."""
        plan = small_experiment(Ditto(lam=lam), rounds=1).replace(cohort=1.0)
        result = run(plan, tmp_path / str(lam), engine=Inline())
        from coterie.site import SERVER, ModelCache

        start = plan.population().site(SERVER, 0, ModelCache()).fresh()
        personal = [memory.group("personal") for memory in memories_of(result.folder).values()]
        return sum(float(gap.square().sum()) for each in personal for gap in each.combine(start, lambda v, w: v - w).tensors.values())

    assert distance(0.0) > distance(1.0) > distance(5.0)
