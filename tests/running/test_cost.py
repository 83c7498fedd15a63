"""What is counted before a run is what its ledger has after it."""

from __future__ import annotations

import pytest

from coterie.engines import Inline
from coterie.ledger import events
from coterie.methods import FML, Centralised, FedAvg, Local
from coterie.running.cost import cost_of
from coterie.running.rounds import run
from coterie.testing import small_experiment


@pytest.mark.parametrize("method", [FedAvg(), Local(), FML()], ids=lambda method: method.name)
@pytest.mark.parametrize("every", [1, 2])
def test_the_ledger_agrees(method, every, tmp_path) -> None:
    plan = small_experiment(method).overridden({"evaluation.protocols": ["local_post"], "evaluation.every": every})
    cost = cost_of(plan, plan.population())
    found = [e for e in events(run(plan, tmp_path / "run", engine=Inline()).folder / "ledger.jsonl") if e["event"] == "training"]
    assert cost.trainings == sum(event["clients"] for event in found if event["purpose"] == "training")
    assert cost.guests == sum(event["clients"] for event in found if event["purpose"] == "evaluation") > 0


def test_visits_without_training(tmp_path) -> None:
    plan = small_experiment(FedAvg()).overridden({"evaluation.protocols": ["global_own"]})
    cost = cost_of(plan, plan.population())
    assert (cost.guests, cost.visits) == (0, 3 + 3 + 5)
    assert cost.sentences()[-1] == "clients are measured 11 times without training"


def test_nobody_trains_where_all_data_are_in_one_place() -> None:
    plan = small_experiment(Centralised())
    assert cost_of(plan, plan.population()).trainings == 0
