"""Every registered method through the public conformance suite, its bytes by formula, its reductions to the bit."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from coterie.engines import Inline
from coterie.errors import UserError
from coterie.ledger import events
from coterie.methods import (
    FML,
    METHODS,
    Centralised,
    FedAvg,
    FedMMD,
    FedProx,
    Local,
)
from coterie.record import Record
from coterie.replies import Reply, means
from coterie.running.experiment import Experiment
from coterie.running.rounds import run
from coterie.site import SERVER, ModelCache
from coterie.testing import check_method, small_experiment

MODEL = 4 * (64 * 16 + 16 + 16 * 10 + 10)
"""Payload bytes of the small experiment's network: float32 weights and biases of 64-16-10."""


@pytest.mark.parametrize(
    ("method", "formula"),
    [
        (FedAvg(), {"up": MODEL, "down": MODEL}),
        (FedAvg(weighting="uniform"), {"up": MODEL, "down": MODEL}),
        (FedProx(mu=0.1), {"up": MODEL, "down": MODEL}),
        (FedProx(mu=0.0), {"up": MODEL, "down": MODEL, "same_as": FedAvg()}),
        (FML(), {"up": MODEL, "down": MODEL}),
        (Local(), {"up": 0, "down": 0}),
        (Centralised(), {"up": 0, "down": 0}),
    ],
)
def test_conformance(method, formula) -> None:
    check_method(method, **formula)


@pytest.mark.parametrize("method", [FedAvg(), Local(), Centralised()])
def test_conformance_with_a_kept_optimiser(method) -> None:
    plan = small_experiment(method)
    check_method(method, plan.replace(training=plan.training.replace(state="kept")))


def test_every_registered_method_goes_through_the_conformance_suite() -> None:
    """Some test calls `check_method` on it: found in the tests themselves."""
    files = [path.read_text() for path in Path(__file__).parent.rglob("test_*.py")]
    checked = {
        name for text in files if "check_method(" in text for name in METHODS if re.search(rf"\b{METHODS.find(name).__name__}\(", text)
    }
    assert checked == set(METHODS)


def test_fedprox_pulls_towards_the_server(tmp_path) -> None:
    """The larger mu, the closer one round of local training stays to the model it started from."""

    def distance(mu: float) -> float:
        plan = small_experiment(FedProx(mu=mu), rounds=1).replace(cohort=1.0)
        start = plan.population().site(SERVER, 0, ModelCache()).fresh().tensors
        end = run(plan, tmp_path / str(mu)).state.group("model").tensors
        return sum(float((end[name] - start[name]).square().sum()) for name in start)

    assert distance(0.0) > distance(1.0) > distance(5.0)


def test_local_is_each_client_alone(tmp_path) -> None:
    """With one client, `local` and FedAvg train on the same data; nothing crosses between clients."""
    plan = small_experiment(Local()).replace(cohort=1.0)
    together = run(plan, tmp_path / "a")
    memories = {path.name.split(".")[0] for path in (tmp_path / "a" / "memory").iterdir()}
    assert memories == {"0", "1", "2", "3", "4"}
    assert together.summary["bytes"]["up"] == together.summary["bytes"]["down"] == 0


def test_centralised_counts_the_data_it_gathers(tmp_path) -> None:
    result = run(small_experiment(Centralised()), tmp_path / "run")
    assert result.summary["bytes"]["setup_up"] == 300 * (64 + 8)
    assert result.summary["bytes"]["setup_by_kind"] == {"data": 300 * 72}
    with pytest.raises(UserError, match="own order of pixels"):
        run(small_experiment(Centralised()).replace(partition={"name": "permuted", "clients": 5}), tmp_path / "other")


def test_different_architectures_in_one_federation(tmp_path) -> None:
    models = ["mlp", {"name": "mlp", "hidden": [5]}, {"name": "mlp", "hidden": [7, 7]}]
    result = run(small_experiment(Local()).replace(model=models, cohort=1.0), tmp_path / "run")
    assert result.accuracy("local_post") > 0.3
    with pytest.raises(UserError, match="needs one model for all clients, not 3; any models: fccl, fccl-lockstep, feddf"):
        run(small_experiment(FedAvg()).replace(model=models), tmp_path / "no")


def test_mean_keeps_counters_integral_and_averages_running_statistics() -> None:
    def reply(client: int, mean: float, count: int, examples: int) -> Reply:
        state = {"bn.running_mean": torch.tensor([mean]), "bn.num_batches_tracked": torch.tensor(count)}
        return Reply(client, Record(model=state, examples=examples))

    merged = means([reply(0, 1.0, 7, 1), reply(1, 5.0, 9, 3)], "model").group("model").tensors
    assert merged["bn.running_mean"].item() == 4.0
    assert merged["bn.num_batches_tracked"].item() == 9
    assert merged["bn.num_batches_tracked"].dtype == torch.int64
    uniform = means([reply(0, 1.0, 7, 1), reply(1, 5.0, 9, 3)], "model", weighting="uniform").group("model").tensors
    assert uniform["bn.running_mean"].item() == 3.0


def test_fedavg_learns_real_digits(tmp_path) -> None:
    plan = Experiment.load(
        "digits-two-class", ["engine.name=inline", "rounds=12", 'evaluation.protocols=["global","local_pre","local_post"]']
    )
    result = run(plan, tmp_path / "run")
    curve = result.summary["protocols"]["global"]["accuracy"]
    assert curve["best"] > 0.5
    assert result.accuracy("local_post") > result.accuracy("local_pre")


def test_terms_of_the_loss_are_logged(tmp_path) -> None:
    """Cross-entropy and MMD over rounds, as clients saw them in their last epoch."""
    run(small_experiment(FedMMD(lam=0.5)), tmp_path / "run", engine=Inline())
    shown = [event for event in events(tmp_path / "run" / "ledger.jsonl") if event["event"] == "log"]
    assert {(event["name"], len(event["values"])) for event in shown} == {("losses", 2)}
    assert {event["round"] for event in shown} == {1, 2, 3}
    assert all(event["values"][0] > 0 and event["values"][1] >= 0 for event in shown)
    assert any(event["values"][1] > 0 for event in shown)
