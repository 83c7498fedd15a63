"""Every registered method through the public conformance suite, its bytes by formula, its reductions to the bit."""

from __future__ import annotations

import pytest
import torch

from coterie.engines import Inline
from coterie.errors import UserError
from coterie.ledger import events
from coterie.method import Reply, weighted_mean
from coterie.methods import (
    FCCL,
    FML,
    METHODS,
    Centralised,
    FedAvg,
    FedDF,
    FedDFClient,
    FedFusion,
    FedMatchPublic,
    FedMD,
    FedMMD,
    FedProx,
    Local,
    RCFLPublic,
    SplitMetadata,
    TwoStreamL2,
)
from coterie.record import Record
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


def test_every_registered_method_is_checked() -> None:
    elsewhere = {FedMMD, TwoStreamL2, FedFusion, FML, FCCL, FedMD, FedDF, FedDFClient, RCFLPublic, FedMatchPublic, SplitMetadata}
    checked = {FedAvg, FedProx, Local, Centralised} | elsewhere
    assert set(METHODS.specs.values()) == checked


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
    memories = sorted(path.name.split(".")[0] for path in (tmp_path / "a" / "memory").iterdir())
    assert memories == ["0", "1", "2", "3", "4"]
    assert together.summary["bytes"]["up"] == together.summary["bytes"]["down"] == 0


def test_centralised_books_the_data_it_gathers(tmp_path) -> None:
    result = run(small_experiment(Centralised()), tmp_path / "run")
    assert result.summary["bytes"]["setup_up"] == 300 * (64 + 8)
    assert result.summary["bytes"]["setup_by_kind"] == {"data": 300 * 72}
    with pytest.raises(UserError, match="own order of pixels"):
        run(small_experiment(Centralised()).replace(partition={"name": "permuted", "clients": 5}), tmp_path / "other")


def test_different_architectures_in_one_federation(tmp_path) -> None:
    models = ["mlp", {"name": "mlp", "hidden": [5]}, {"name": "mlp", "hidden": [7, 7]}]
    result = run(small_experiment(Local()).replace(model=models, cohort=1.0), tmp_path / "run")
    assert result.accuracy("local_post") > 0.3
    with pytest.raises(UserError, match="needs one model for all clients, not 3; any models: fml, fccl, fedmd"):
        run(small_experiment(FedAvg()).replace(model=models), tmp_path / "no")


def test_mean_keeps_counters_integral_and_averages_running_statistics() -> None:
    def reply(client: int, mean: float, count: int, examples: int) -> Reply:
        state = {"bn.running_mean": torch.tensor([mean]), "bn.num_batches_tracked": torch.tensor(count)}
        return Reply(client, Record(model=state, examples=examples))

    merged = weighted_mean([reply(0, 1.0, 7, 1), reply(1, 5.0, 9, 3)], "model").tensors
    assert merged["bn.running_mean"].item() == 4.0
    assert merged["bn.num_batches_tracked"].item() == 9
    assert merged["bn.num_batches_tracked"].dtype == torch.int64
    uniform = weighted_mean([reply(0, 1.0, 7, 1), reply(1, 5.0, 9, 3)], "model", "uniform").tensors
    assert uniform["bn.running_mean"].item() == 3.0


def test_fedavg_learns_real_digits(tmp_path) -> None:
    plan = Experiment.load(
        "digits-two-class", ["engine.name=inline", "rounds=12", 'evaluation.protocols=["global","local_pre","local_post"]']
    )
    result = run(plan, tmp_path / "run")
    curve = result.summary["protocols"]["global"]["accuracy"]
    assert curve["best"] > 0.5
    assert result.accuracy("local_post") > result.accuracy("local_pre")


def test_terms_are_on_show(tmp_path) -> None:
    """Cross-entropy and MMD over rounds, as clients saw them in their last epoch."""
    run(small_experiment(FedMMD(lam=0.5)), tmp_path / "run", engine=Inline())
    shown = [event for event in events(tmp_path / "run" / "ledger.jsonl") if event["event"] == "exhibit"]
    assert {(event["name"], event["draw"], len(event["values"])) for event in shown} == {("terms", "lines", 2)}
    assert {event["round"] for event in shown} == {1, 2, 3}
    assert all(event["values"][0] > 0 and event["values"][1] >= 0 for event in shown)
    assert any(event["values"][1] > 0 for event in shown)
