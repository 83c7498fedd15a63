"""FCCL and the methods it is measured against: laws of the losses, reductions, engines, bytes, missing clients, state on disk."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from coterie.engines import Inline, Processes
from coterie.engines.worker import Memories, memory_file
from coterie.errors import UserError
from coterie.ledger import events
from coterie.method import task
from coterie.methods import FCCL, FCCLLockstep, FedAvg, FedDF, FedDFClient, FedMatchPublic, FedMD, Local, RCFLPublic
from coterie.methods.fccl import CrossCorrelation, correlation
from coterie.methods.rcfl import believed
from coterie.models.additive import added, apart
from coterie.record import Record, encode, read
from coterie.running import federation
from coterie.running.checkpoint import latest
from coterie.running.cost import cost_of
from coterie.running.experiment import Experiment
from coterie.running.rounds import resume, run
from coterie.site import SERVER, ModelCache
from coterie.testing import check_method, small_experiment
from coterie.training.objectives import Step, kl_divergence
from coterie.training.optimisers import Adam
from coterie.training.settings import Training

PUBLIC = Training(epochs=1, batch=16, optimiser=Adam(lr=1e-3))
MODES = {"once": FCCL, "lockstep": FCCLLockstep}
SAMPLES, CLASSES = 64, 10
LOGITS = 4 * SAMPLES * CLASSES
MODEL = 4 * (64 * 16 + 16 + 16 * 10 + 10)


def experiment(method, **changes) -> Experiment:
    return small_experiment(method).overridden({"data.public": {"source": "digits", "samples": SAMPLES}, "pretraining": 1, **changes})


def loss_of(z, consensus, lam=0.0051, target=-1.0) -> torch.Tensor:
    return CrossCorrelation(lam, target)(Step(nn.Identity(), z, torch.zeros(len(z)), {}, {"consensus": consensus}))


# The collaborative loss


@given(seed=st.integers(0, 10_000), rows=st.integers(3, 40), classes=st.integers(2, 12))
def test_identical_models_have_nothing_to_correct_on_the_diagonal(seed, rows, classes) -> None:
    z = torch.randn(rows, classes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    assert loss_of(z, z, lam=0.0).item() == pytest.approx(0.0, abs=1e-20)
    assert torch.allclose(correlation(z, z), torch.corrcoef(z.T), atol=1e-10)


@given(
    seed=st.integers(0, 10_000),
    slope=st.floats(0.01, 100),
    shift=st.floats(-100, 100),
    column=st.integers(0, 4),
    target=st.sampled_from([-1.0, 0.0]),
)
def test_a_positive_affine_map_of_a_logit_column_changes_nothing(seed, slope, shift, column, target) -> None:
    rng = torch.Generator().manual_seed(seed)
    z, consensus = (torch.randn(20, 5, generator=rng, dtype=torch.float64) for _ in range(2))
    moved = z.clone()
    moved[:, column] = slope * z[:, column] + shift
    assert loss_of(moved, consensus, 0.5, target).item() == pytest.approx(loss_of(z, consensus, 0.5, target).item(), rel=1e-8)
    assert loss_of(z, moved, 0.5, target).item() == pytest.approx(loss_of(z, z, 0.5, target).item(), rel=1e-8)


@given(seed=st.integers(0, 10_000), value=st.floats(-1e6, 1e6), dtype=st.sampled_from([torch.float32, torch.float64]))
def test_columns_without_variance_are_harmless(seed, value, dtype) -> None:
    rng = torch.Generator().manual_seed(seed)
    z, consensus = (torch.randn(16, 4, generator=rng, dtype=dtype) for _ in range(2))
    z[:, 1] = value
    consensus[:, 2] = value
    z.requires_grad_()
    loss = loss_of(z, consensus)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(z.grad).all()
    assert 0 <= loss.item() <= 4 * 4 + 0.0051 * 4 * 12  # |M| <= 1, so no entry is worth more than 4
    assert z.grad[:, 1].abs().max() == 0
    assert z.grad.abs().max() < 100


def test_one_row_and_all_constant() -> None:
    z = torch.full((1, 3), 2.0, requires_grad=True)
    loss = loss_of(z, torch.ones(1, 3), lam=1.0)
    loss.backward()
    assert loss.item() == 3 + 6
    assert z.grad.abs().sum() == 0


def test_a_teacher_equal_to_the_student_has_nothing_to_say() -> None:
    z = torch.randn(7, 5, requires_grad=True)
    kl_divergence(z, z).backward()
    assert kl_divergence(z, z).item() == pytest.approx(0, abs=1e-7)
    assert z.grad.abs().max() < 1e-7


# Conformance, with bytes by formula


@pytest.mark.parametrize(
    ("method", "up", "down"),
    [
        (FCCL(public=PUBLIC), LOGITS, LOGITS),
        (FCCL(public=PUBLIC.replace(augment="crop-flip", epochs=2), off_diagonal=0), LOGITS, LOGITS),
        (FCCLLockstep(public=PUBLIC), LOGITS, LOGITS),
        (FCCLLockstep(public=PUBLIC, own_slot="previous", reset_each_batch=True), LOGITS, LOGITS),
        (FCCL(public=PUBLIC, average="uniform"), LOGITS + MODEL, LOGITS + MODEL),
        (
            FCCLLockstep(public=PUBLIC.replace(augment="crop-flip"), average="samples"),
            LOGITS + MODEL,
            LOGITS + MODEL,
        ),
        (FedMD(public=PUBLIC, alignment=32), LOGITS // 2, LOGITS // 2),
        (FedMD(public=PUBLIC, digest_loss="mse"), LOGITS, LOGITS),
        (FedDFClient(public=PUBLIC), LOGITS, LOGITS),
        (RCFLPublic(public=PUBLIC), LOGITS + 4, LOGITS),
        (FedMatchPublic(public=PUBLIC), LOGITS, 2 * LOGITS),
        (FedDF(steps=130, batch=16), MODEL, MODEL),
        (FedDF(steps=0), MODEL, MODEL),
    ],
    ids=lambda value: value.name if hasattr(value, "name") else str(value),
)
def test_conformance(method, up, down) -> None:
    check_method(method, experiment(method), up=up, down=down, engines=(lambda: Processes(2),))


def test_conformance_with_a_kept_optimiser() -> None:
    method = FCCL(public=PUBLIC)
    plan = experiment(method)
    check_method(method, plan.replace(training=plan.training.replace(state="kept")), engines=())


# Reductions


def final(plan: Experiment, folder: Path) -> dict[int, Record]:
    """What every client keeps at the end."""
    run(plan, folder, engine=Inline())
    return {int(path.name.split(".")[0]): read(path) for path in sorted((folder / "memory").iterdir())}


@pytest.mark.parametrize("mode", ["once", "lockstep"])
def test_without_its_losses_fccl_is_local(tmp_path, mode) -> None:
    off = MODES[mode](correlation=0.0, previous=0.0, pretrained=0.0)
    ours, local = final(experiment(off), tmp_path / "fccl"), final(experiment(Local()), tmp_path / "local")
    assert {client: memory.group("model").digest() for client, memory in ours.items()} == {
        client: memory.group("model").digest() for client, memory in local.items()
    }
    spoken = [e for e in events(tmp_path / "fccl" / "ledger.jsonl") if e["event"] == "exchange" and e["payload_bytes"]]
    assert not spoken


@pytest.mark.parametrize("on", ["correlation", "previous", "pretrained"])
def test_each_loss_does_something(tmp_path, on) -> None:
    """In round 1 both teachers are the pretrained network; every loss by itself moves the models away from `local`."""
    weights = {"correlation": 0.0, "previous": 0.0, "pretrained": 0.0, on: 1.0}
    ours = final(experiment(FCCL(public=PUBLIC, **weights)), tmp_path / "fccl")
    local = final(experiment(Local()), tmp_path / "local")
    assert any(ours[client].group("model") != local[client].group("model") for client in ours)


def test_in_the_first_round_both_teachers_are_one(tmp_path) -> None:
    plans = [
        experiment(FCCL(public=PUBLIC, **weights), rounds=1)
        for weights in ({"previous": 1.0, "pretrained": 0.0}, {"previous": 0.0, "pretrained": 1.0})
    ]
    one, other = (final(plan, tmp_path / str(index)) for index, plan in enumerate(plans))
    assert all(one[client].group("model") == other[client].group("model") for client in one)


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_feddf_with_no_steps_is_fedavg(tmp_path, weighting) -> None:
    ours = run(experiment(FedDF(steps=0, weighting=weighting)), tmp_path / "a", engine=Inline())
    theirs = run(experiment(FedAvg(weighting=weighting)), tmp_path / "b", engine=Inline())
    assert ours.state.digest() == theirs.state.digest()


def test_a_single_client_has_nothing_to_digest(tmp_path) -> None:
    """FedMD's consensus of one is what it says itself: the digest's loss is 0, and gradients of 0 leave Adam where it is."""
    plan = experiment(FedMD(public=PUBLIC), partition={"name": "iid", "clients": 1}, cohort=1)
    alone = experiment(Local(), partition={"name": "iid", "clients": 1}, cohort=1)
    assert final(plan, tmp_path / "a")[0].group("model") == final(alone, tmp_path / "b")[0].group("model")


def test_sum_of_parts_is_the_network() -> None:
    params = Record({"w": torch.randn(3, 2), "bn.running_mean": torch.randn(2), "bn.num_batches_tracked": torch.tensor(3)})
    parts = apart(params, ["w"], 0.2)
    assert torch.allclose(parts.tensors["psi.0"], 0.2 * parts.tensors["sigma.w"])
    whole = added(parts, ["w"])
    assert torch.allclose(whole.tensors["w"], params.tensors["w"])
    assert torch.equal(whole.tensors["bn.running_mean"], params.tensors["bn.running_mean"])
    assert whole.tensors["bn.num_batches_tracked"].dtype == torch.int64


# Lockstep


def test_lockstep_costs_one_exchange_more_than_batches(tmp_path) -> None:
    """Predict; step and predict, ...; step and go on: B + 1 exchanges for B batches, fewer than the B + 2 asked for."""
    plan = experiment(FCCLLockstep(public=PUBLIC), rounds=1)
    run(plan, tmp_path / "run", engine=Inline())
    client = plan.population().site(SERVER, 1, ModelCache())
    batches = plan.method._batches(client, Record(seed=3))
    assert [len(batch) for batch in batches] == [16] * 4
    assert sorted(torch.cat(batches).tolist()) == list(range(SAMPLES))
    asked = [
        e for e in events(tmp_path / "run" / "ledger.jsonl") if e["event"] == "exchange" and e["round"] == 1 and e["direction"] == "up"
    ]
    by_client = {c: sum(e["client"] == c for e in asked) for c in {e["client"] for e in asked}}
    assert set(by_client.values()) == {len(batches) + 1}


@pytest.mark.parametrize(("steps", "sizes"), [(3, [16] * 3), (6, [16] * 6)])
def test_lockstep_counts_steps_over_batches(steps, sizes, tmp_path) -> None:
    plan = experiment(FCCLLockstep(public=PUBLIC.replace(steps=steps)), rounds=1)
    batches = plan.method._batches(plan.population().site(SERVER, 1, ModelCache()), Record(seed=3))
    assert [len(batch) for batch in batches] == sizes
    step_by_step = run(plan, tmp_path / "run", engine=Inline())
    once = run(experiment(FCCL(public=PUBLIC.replace(steps=steps)), rounds=1), tmp_path / "once", engine=Inline())
    assert step_by_step.summary["work"]["rounds"] == once.summary["work"]["rounds"]


def test_a_new_client_gets_the_student_of_its_architecture(tmp_path) -> None:
    plan = four_domains(FedDF(steps=2, batch=16), rounds=1).overridden({"new_clients": {"count": 2, "epochs": 1}})
    result = run(plan, tmp_path / "run", engine=Inline())
    population = plan.population()
    for client in population.new_clients:
        [sent] = [
            event
            for event in events(tmp_path / "run" / "ledger.jsonl")
            if event["event"] == "exchange" and event["task"] == "adapt" and event["client"] == client and event["direction"] == "down"
        ]
        index = population.architecture_of(client)
        student = result.state.group("model" if index == 0 else f"model-{index}")
        assert (sent["kind"], sent["payload_bytes"]) == ("weights", sum(value.nbytes for value in student.tensors.values()))


def test_lockstep_with_one_batch_is_once(tmp_path) -> None:
    """One public batch a round and no dropout or BatchNorm: both modes exchange the same logits and take the same step."""
    whole = PUBLIC.replace(batch="all")
    once, lockstep = (final(experiment(MODES[mode](public=whole), float64=True), tmp_path / mode) for mode in ("once", "lockstep"))
    for client in once:
        a, b = once[client].group("model").tensors, lockstep[client].group("model").tensors
        assert all(torch.allclose(a[name], b[name], atol=1e-9) for name in a)


def test_moments_of_the_public_phase_do_not_outlive_the_round(tmp_path) -> None:
    kept = final(experiment(FCCLLockstep(public=PUBLIC)), tmp_path / "run")
    assert {frozenset(memory.groups) for memory in kept.values()} == {frozenset({"model", "pretrained"})}


# What is written and what is encoded


def test_a_memory_that_comes_back_as_it_was_is_not_written_again(tmp_path, monkeypatch) -> None:
    """Five first predictions, after the pretraining, then three clients a round that learn; later predictions change nothing they keep."""
    written = []
    put = Memories.put

    def spy(self, client, version, memory):
        written.append(client)
        return put(self, client, version, memory)

    monkeypatch.setattr(Memories, "put", spy)
    plan = experiment(FedMD(public=PUBLIC), **{"evaluation.every": 3, "evaluation.final": 1})
    kept = final(plan, tmp_path / "run")
    assert len(written) == 5 + 3 * 3 + cost_of(plan, plan.population()).guests
    assert sorted(kept) == [0, 1, 2, 3, 4]


def test_a_message_for_several_clients_is_encoded_once(tmp_path, monkeypatch) -> None:
    """FedDF sends each architecture's student to the clients that have it: two messages for five clients."""
    laid = []
    monkeypatch.setattr(federation, "encode", lambda record: laid.append(record) or encode(record))
    models = [{"name": "mlp", "hidden": [8]}, {"name": "mlp", "hidden": [6]}]
    run(experiment(FedDF(steps=2, batch=16), model=models, cohort=5, rounds=1), tmp_path / "run", engine=Inline())
    assert len(laid) == 2 + 1  # and the state, for evaluation


def test_lockstep_encodes_what_all_receive_once(tmp_path, monkeypatch) -> None:
    """One message for each of the five exchanges about four batches: not one for each client."""
    laid = []
    monkeypatch.setattr(federation, "encode", lambda record: laid.append(record) or encode(record))
    run(experiment(FCCLLockstep(public=PUBLIC), rounds=1), tmp_path / "run", engine=Inline())
    assert len(laid) == 5


def test_a_reply_of_another_architecture_is_turned_away(tmp_path, monkeypatch) -> None:
    """Each client's reply is compared with what that client was sent."""
    models = [{"name": "mlp", "hidden": [8]}, {"name": "mlp", "hidden": [6]}]
    plan = experiment(FedDF(steps=0), model=models, cohort=5, rounds=1)
    honest = FedDF.train

    def swapped(self, site, memory, message):
        reply, kept = honest(self, site, memory, message)
        return (reply | Record(model={"body.0.weight": torch.zeros(3, 3)}) if site.id == 1 else reply), kept

    monkeypatch.setattr(FedDF, "train", task(swapped))
    run(plan, tmp_path / "run", engine=Inline())
    turned_away = [e["client"] for e in events(tmp_path / "run" / "ledger.jsonl") if e["event"] == "rejected"]
    assert turned_away == [1]


# Different architectures on different domains


NAMES = ("plain", "inverted", "turned", "noisy")
MODELS = [
    {"name": "mlp", "hidden": [8]},
    {"name": "mlp", "hidden": [12, 6]},
    {"name": "cnn", "channels": [2, 4], "hidden": [8]},
    {"name": "lenet5"},
]


def four_domains(method, **changes) -> Experiment:
    table = {
        "name": "four-domains",
        "rounds": 2,
        "data": {"source": "digit-styles", "size": 16, "test": 80, "public": {"source": "digits", "samples": 48}},
        "partition": {"name": "domains", "samples": [20, 16, 30, 24]},
        "model": MODELS,
        "method": "fedavg",
        "pretraining": 1,
        "training": {"epochs": 1, "batch": 8, "optimiser": {"name": "adam", "lr": 0.001}},
        "evaluation": {"protocols": ["intra", "inter"]},
    }
    return Experiment.parse({**table, "method": "local"}).replace(method=method, **changes)


@pytest.mark.parametrize(
    "method",
    [
        FCCL(public=PUBLIC),
        FCCLLockstep(public=PUBLIC),
        FedMD(public=PUBLIC),
        FedDF(steps=10, batch=16),
        FedDFClient(public=PUBLIC),
        RCFLPublic(public=PUBLIC),
        FedMatchPublic(public=PUBLIC),
    ],
    ids=lambda method: method.name,
)
def test_four_architectures_on_four_domains(tmp_path, method) -> None:
    """Every engine gives the same bits, and a model was measured on every domain."""
    plan = four_domains(method)
    inline = run(plan, tmp_path / "inline", engine=Inline())
    workers = run(plan, tmp_path / "workers", engine=Processes(2))
    assert inline.summary["digest"] == workers.summary["digest"]
    measured = [e for e in events(tmp_path / "inline" / "ledger.jsonl") if e["event"] == "evaluation" and e["protocol"] == "domain"]
    cells = {(e["client"], e["domain"]) for e in measured if e["round"] == 2 and e["metric"] == "accuracy"}
    assert len(cells) == 4 * 4
    assert {e["metric"] for e in measured} == {"accuracy", "top5", "loss"}


def test_intra_and_inter_come_from_the_matrix(tmp_path) -> None:
    run(four_domains(FCCL(public=PUBLIC)), tmp_path / "run", engine=Inline())
    seen = [
        e for e in events(tmp_path / "run" / "ledger.jsonl") if e["event"] == "evaluation" and e["round"] == 2 and e["metric"] == "top5"
    ]
    matrix = {(e["client"], e["domain"]): e["value"] for e in seen if e["protocol"] == "domain"}
    for client in range(4):
        others = [value for (who, domain), value in matrix.items() if who == client and domain != NAMES[client]]
        found = {e["protocol"]: e["value"] for e in seen if e["client"] == client and "domain" not in e}
        assert found["intra"] == matrix[client, NAMES[client]]
        assert found["inter"] == pytest.approx(sum(others) / 3)


def test_two_models_of_a_client_are_on_disk_beyond_the_budget(tmp_path) -> None:
    plan = four_domains(FCCL(public=PUBLIC))
    result = run(plan, tmp_path / "run", engine=Inline())
    versions = latest(tmp_path / "run").memories
    for client in range(4):
        kept = read(memory_file(tmp_path / "run", client, versions[client]))
        assert set(kept.groups) == {"model", "pretrained"}
        assert kept.group("model").digest() != kept.group("pretrained").digest()
    tight = run(plan.overridden({"engine.memory_mb": 1}), tmp_path / "tight", engine=Inline())
    assert tight.summary["digest"] == result.summary["digest"]


def test_killed_and_resumed(tmp_path) -> None:
    """SIGKILL in the midst of a run of four architectures; the resumed run ends with the same bits."""
    plan = four_domains(FCCLLockstep(public=PUBLIC), rounds=4)
    whole = run(plan, tmp_path / "whole", engine=Inline())
    script = (
        "from tests.methods.test_public import *\n"
        f"run(four_domains(FCCLLockstep(public=PUBLIC), rounds=4), {str(tmp_path / 'killed')!r}, engine=Inline())"
    )
    child = subprocess.Popen([sys.executable, "-c", script], cwd=Path(__file__).parents[2])
    ledger = tmp_path / "killed" / "ledger.jsonl"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and child.poll() is None and not (ledger.exists() and b'"round","round":2' in ledger.read_bytes()):
        time.sleep(0.005)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert resume(tmp_path / "killed", engine=Inline()).summary["digest"] == whole.summary["digest"]


# Bytes of the paper's setting


@pytest.mark.parametrize("sent", [False, True])
def test_bytes_on_digits(data_folder, tmp_path, sent) -> None:
    """5,000 images of CIFAR-100, ten classes: 200,000 bytes up and down per client and round; the public data as setup, both ways."""
    public = {"source": {"name": "cifar100", "part": True}, "samples": 5000, "sent": sent}
    plan = four_domains(FCCL(public=PUBLIC.replace(epochs=0)), rounds=1, model=("mlp",), pretraining=0)
    plan = plan.overridden({"data.size": 32, "data.channels": 3, "data.public": public})
    run(plan, tmp_path / "run", engine=Inline(), data=data_folder)
    moved = [e for e in events(tmp_path / "run" / "ledger.jsonl") if e["event"] == "exchange"]
    for client in range(4):
        for direction in ("up", "down"):
            mine = [e for e in moved if (e["client"], e["direction"], e["round"]) == (client, direction, 1)]
            assert sum(e["payload_bytes"] for e in mine) == 200_000
            assert {e["kind"] for e in mine if e["payload_bytes"]} == {"logits"}
    setup = [e["payload_bytes"] for e in moved if e["kind"] == "public data"]
    assert setup == [5000 * 3 * 32 * 32 if sent else 0] * 4


# What each of the others is made of


def test_rcfl_believes_the_accurate() -> None:
    votes = [
        {"logits": torch.tensor([[1.0, 0.0]]), "accuracy": torch.tensor([0.9])},
        {"logits": torch.tensor([[0.0, 1.0]]), "accuracy": torch.tensor([0.3])},
    ]
    assert believed(votes).tolist() == [[0.75, 0.25]]
    assert believed([vote | {"accuracy": torch.zeros(1)} for vote in votes]).tolist() == [[0.5, 0.5]]


@pytest.mark.parametrize("validation", [0.0, 0.4])
def test_rcfl_weighs_clients_only_where_they_have_a_validation_split(tmp_path, validation) -> None:
    """After pretraining everybody is right about its own training data, so that without a split all weigh alike; the log shows it."""
    table = {"partition": {"name": "iid", "clients": 4, "validation": validation}, "pretraining": 60, "rounds": 1, "cohort": 4}
    run(experiment(RCFLPublic(public=PUBLIC), **table), tmp_path / "run", engine=Inline())
    [weights] = [e["values"] for e in events(tmp_path / "run" / "ledger.jsonl") if e["event"] == "log" and e["name"] == "trust"]
    assert len(weights) == 4
    assert sum(weights) == pytest.approx(1)
    assert (max(weights) - min(weights) > 0.005) == (validation > 0), weights


def test_fedmatch_asks_those_who_predict_alike() -> None:
    said = {client: torch.tensor([[value, 0.0]]) for client, value in {0: 0.0, 1: 10.0, 2: 1.0, 3: -1.0}.items()}
    beliefs = {client: logits.softmax(1) for client, logits in said.items()}
    helped = {client: FedMatchPublic()._nearest(client, own, said, beliefs) for client, own in said.items()}
    assert torch.equal(helped[0]["0"], beliefs[2])  # 2 and 3 are as near: the lower number
    assert torch.equal(helped[0]["1"], beliefs[3])
    assert torch.equal(helped[1]["0"], beliefs[2])


def test_feddf_stops_early_on_what_the_server_holds(tmp_path) -> None:
    """With validation images the best student is kept; a rate that destroys it leaves the average as it was."""
    plan = experiment(FedDF(steps=300, patience=100, batch=16, lr=10.0), **{"data.validation": 50}, rounds=2)
    kept = run(plan, tmp_path / "kept", engine=Inline())
    average = run(plan.replace(method=FedDF(steps=0)), tmp_path / "average", engine=Inline())
    blind = run(experiment(FedDF(steps=300, batch=16, lr=10.0), rounds=2), tmp_path / "blind", engine=Inline())
    assert kept.state.digest() == average.state.digest()
    assert blind.accuracy("global") < kept.accuracy("global")


def test_the_server_holds_images_that_no_client_has() -> None:
    plan = experiment(FedDF(), **{"data.validation": 50})
    population = plan.population()
    server = population.site(SERVER, 0, ModelCache())
    assert len(server.validation) == 50
    assert population.partition.train.sizes.sum() == 250
    assert torch.bincount(server.validation.labels, minlength=10).tolist() == [5] * 10


def test_feddf_distils_into_every_architecture(tmp_path) -> None:
    plan = four_domains(FedDF(steps=20, batch=16), rounds=1).overridden({"evaluation.protocols": ["global", "intra"]})
    result = run(plan, tmp_path / "run", engine=Inline())
    assert result.state.groups == ("model", "model-1", "model-2", "model-3")
    undistilled = run(plan.replace(method=FedDF(steps=0)), tmp_path / "no", engine=Inline())
    assert all(result.state.group(name) != undistilled.state.group(name) for name in result.state.groups)


# Bad input


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"name": "fccl", "average": "uniform"}, "method.average = 'uniform': expected 'none', because clients have different models"),
        ({"name": "fccl", "own_slot": "previous"}, "method.own_slot = 'previous': no such key here"),
        ({"name": "fedmd", "alignment": 1000}, "method.alignment = 1000: expected at most the 48 public images"),
        ({"name": "fccl", "public": {"bacth": 3}}, "method.public.bacth = 3: no such key here, did you mean 'batch'"),
        ({"name": "fccl-lockstep", "alignment": 8}, "method.alignment = 8: expected none, lockstep goes over all"),
        ({"name": "fedmd", "public": {"state": "kept"}}, "method.public.state = 'kept': expected 'fresh'"),
        ({"name": "rcfl"}, "did you mean 'rcfl-public'"),
        ({"name": "fedmd", "aggregation": "private"}, "predictions about public images are sent too, to which no noise is added"),
        ({"name": "fedmd", "aggregation": "median"}, "'median': no parameters are averaged where method.average = 'none'"),
    ],
)
def test_bad_settings(tmp_path, settings, complaint) -> None:
    with pytest.raises(UserError, match=complaint):
        run(four_domains(Local()).overridden({"method": settings}), tmp_path / "run")


def test_public_settings_left_out_are_the_methods() -> None:
    public = four_domains(Local()).overridden({"method": {"name": "fccl", "public": {"batch": 256}}}).method.public
    assert (public.batch, public.optimiser) == (256, Adam(lr=1e-3))
    shaken = four_domains(Local()).overridden({"method": {"name": "fedmatch-public", "public": {"batch": 256}}}).method.public
    assert (shaken.batch, shaken.augment) == (256, "crop-flip")
