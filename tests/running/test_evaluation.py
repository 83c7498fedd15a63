"""A protocol means one thing: the same clients for every method and round, guests among them, and all of them at the end."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from coterie.engines import Inline
from coterie.errors import RunError, UserError
from coterie.ledger import events
from coterie.methods import FML, Centralised, Ditto, FedAvg, FedMMD, FedPer, FedProto, Local, Scaffold
from coterie.record import Record
from coterie.results.sheets import outcome
from coterie.results.tally import USUAL
from coterie.running.rounds import run
from coterie.settings import spec
from coterie.site import ModelCache
from coterie.testing import small_experiment
from coterie.training.score import Scores

METHODS = [FedAvg(), FedMMD(), FML(), Scaffold(), Ditto(), FedPer(), FedProto(), Local()]


def ledger(method, folder: Path, protocols=("local_post",), **changes) -> list[dict]:
    plan = small_experiment(method).overridden({"evaluation.protocols": list(protocols), **changes})
    return list(events(run(plan, folder / "run", engine=Inline()).folder / "ledger.jsonl"))


def clients_of(found: list[dict], protocol: str = "local_post") -> dict[int, set[int]]:
    """Round -> the clients that were measured."""
    by_round = defaultdict(set)
    for event in found:
        if event["event"] == "evaluation" and event["protocol"] == protocol and event["client"] is not None:
            by_round[event["round"]].add(event["client"])
    return dict(by_round)


def means_of(found: list[dict], protocol: str = "local_post", metric: str = "accuracy") -> list[dict]:
    chosen = (e for e in found if e["event"] == "evaluation" and e["client"] is None and e["metric"] == metric and "domain" not in e)
    return [event for event in chosen if event["protocol"] == protocol]


def test_local_post_covers_the_same_clients_for_every_method(tmp_path) -> None:
    """At f8afa0a FedAvg was measured on the round's cohort, local and FML on all clients seen so far."""
    covered = {method.name: clients_of(ledger(method, tmp_path / method.name)) for method in METHODS}
    first = covered["fedavg"]
    assert all(each == first for each in covered.values()), covered
    assert len(first[1]) == 3
    assert first[1] == first[2], "the set does not follow the cohort"
    assert first[3] == {0, 1, 2, 3, 4}, "all of them at the end"


def test_the_number_of_clients_stands_beside_every_mean(tmp_path) -> None:
    means = means_of(ledger(FedAvg(), tmp_path))
    assert [(each["round"], each["clients"], each.get("final", False)) for each in means] == [
        (1, 3, False),
        (2, 3, False),
        (3, 3, False),
        (3, 5, True),
    ]


def test_a_mean_is_the_mean_of_its_clients_and_fairness_is_beside_it(tmp_path) -> None:
    found = ledger(FedAvg(), tmp_path)
    final = means_of(found)[-1]
    last = [e["value"] for e in found if e["event"] == "evaluation" and e["round"] == 3 and e["client"] is not None]
    accuracies = [
        e["value"]
        for e in found
        if e["event"] == "evaluation" and e["round"] == 3 and e["client"] is not None and e["metric"] == "accuracy"
    ]
    assert len(last) == 3 * len(accuracies), "accuracy, top5 and loss"
    assert final["value"] == pytest.approx(np.mean(accuracies))
    assert final["worst"] == min(accuracies)
    assert final["spread"] == pytest.approx(np.std(accuracies))


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_guests_change_nothing_but_the_evaluation(method, tmp_path) -> None:
    plain = run(small_experiment(method), tmp_path / "plain", engine=Inline())
    measured = small_experiment(method).overridden({"evaluation.protocols": ["local_post"], "evaluation.clients": 5})
    guests = run(measured, tmp_path / "guests", engine=Inline())
    assert plain.summary["digest"] == guests.summary["digest"]
    assert plain.summary["bytes"] == guests.summary["bytes"]


def test_a_guests_training_is_on_the_ledger_as_evaluation(tmp_path) -> None:
    found = ledger(FedAvg(), tmp_path, **{"evaluation.clients": 5})
    work = [event for event in found if event["event"] == "training"]
    rounds = {(e["round"], e["purpose"]): e for e in work}
    assert {key: event["clients"] for key, event in rounds.items()} == {
        (1, "training"): 3,
        (1, "evaluation"): 2,
        (2, "training"): 3,
        (2, "evaluation"): 2,
        (3, "training"): 3,
        (3, "evaluation"): 2,
    }
    assert all(event["steps"] > 0 and event["loss"] > 0 for event in work)
    exchanged = {event["client"] for event in found if event["event"] == "exchange" and event["round"] == 1}
    assert len(exchanged) == 3, "a guest moves no byte"


def test_a_guest_is_measured_as_if_it_had_been_drawn(tmp_path) -> None:
    """Its model is the one that the same task gives from the same message: drawn or not, the accuracy is the same."""
    everybody = ledger(FedAvg(), tmp_path / "all", cohort=5, **{"evaluation.clients": 5})
    some = ledger(FedAvg(), tmp_path / "some", **{"evaluation.clients": 5})

    def first_round(found: list[dict]) -> dict[int, float]:
        chosen = (e for e in found if e["event"] == "evaluation" and e["round"] == 1 and e["metric"] == "loss")
        return {e["client"]: e["value"] for e in chosen if e["client"] is not None}

    assert first_round(everybody) == first_round(some)


def test_no_memory_of_a_guest_outlives_its_round(tmp_path) -> None:
    plan = small_experiment(Local()).overridden({"evaluation.clients": 5, "rounds": 1})
    folder = run(plan, tmp_path / "run", engine=Inline()).folder
    kept = {int(path.name.split(".")[0]) for path in (folder / "memory").iterdir()}
    assert len(kept) == 3
    assert not [path.name for path in (folder / "memory").iterdir() if "guest" in path.name]


def test_clients_by_number_are_measured_and_no_others(tmp_path) -> None:
    """At f8afa0a this was refused for FedAvg."""
    assert clients_of(ledger(FedAvg(), tmp_path, **{"evaluation.clients": [1, 4]})) == {1: {1, 4}, 2: {1, 4}, 3: {1, 4}}


def test_a_number_of_clients_at_the_end(tmp_path) -> None:
    found = clients_of(ledger(FedAvg(), tmp_path, **{"evaluation.clients": 2, "evaluation.final": 4}))
    assert {round: len(clients) for round, clients in found.items()} == {1: 2, 2: 2, 3: 4}
    assert found[1] < found[3]


def test_local_val_is_the_locally_trained_model_and_global_val_the_servers(tmp_path) -> None:
    found = ledger(FedAvg(), tmp_path, ("local_val", "global_val"), **{"partition.validation": 0.3})
    assert {e["protocol"] for e in found if e["event"] == "evaluation"} == {"local_val", "global_val"}
    assert clients_of(found, "local_val") == clients_of(found, "global_val")
    local, served = (means_of(found, name)[-1]["value"] for name in ("local_val", "global_val"))
    assert local != served


def test_clients_without_data_are_in_no_mean(tmp_path) -> None:
    """Of few rows none are left for validation: such a client has no accuracy, which is not 0."""
    partition = {"name": "dirichlet", "clients": 12, "alpha": 0.3, "minimum": 1, "validation": 0.02}
    found = ledger(Local(), tmp_path, ("local_val",), partition=partition, cohort=1.0, rounds=1)
    plan = small_experiment(Local()).overridden({"partition": partition})
    holding = {client for client, rows in enumerate(plan.population().partition.validation) if len(rows)}
    assert 0 < len(holding) < 12
    assert clients_of(found, "local_val") == {1: holding}
    assert {each["clients"] for each in means_of(found, "local_val")} == {len(holding)}


def test_clients_without_any_data_to_be_measured_on_are_a_sentence(tmp_path) -> None:
    partition = {"name": "dirichlet", "clients": 12, "alpha": 0.3, "minimum": 1, "validation": 0.02}
    plan = small_experiment(Local()).overridden({"partition": partition, "evaluation.protocols": ["local_val"], "cohort": 12})
    empty = next(client for client, rows in enumerate(plan.population().partition.validation) if not len(rows))
    with pytest.raises(UserError, match=r"none of the 1 measured clients has data for it, expected more evaluation\.clients"):
        plan.overridden({"evaluation.clients": [empty]}).population()


def test_pretraining_is_in_epochs_where_training_is_in_steps(tmp_path) -> None:
    found = ledger(Local(), tmp_path, pretraining=3, rounds=1, cohort=1.0, **{"training.steps": 1})
    [before] = [event for event in found if event["event"] == "training" and event["task"] == "pretrain"]
    assert before["samples"] == 3 * 300


def test_accuracy_by_class_and_confusion_add_up(tmp_path) -> None:
    found = ledger(FedAvg(), tmp_path, ("global", "local_post"))
    classes = [event for event in found if event["event"] == "classes"]
    assert [("confusion" in event) for event in classes] == [False] * 4 + [True] * 2
    last = next(event for event in classes if event["round"] == 3 and event["protocol"] == "global")
    table = np.array(last["confusion"])
    accuracy = next(e["value"] for e in found if e["event"] == "evaluation" and e["round"] == 3 and e["metric"] == "accuracy")
    assert table.sum() == 100
    assert np.trace(table) / table.sum() == pytest.approx(accuracy)
    assert last["accuracy"] == pytest.approx((np.diag(table) / table.sum(1)).tolist())


def mean_margin(logits: Tensor, labels: Tensor) -> float:
    """A metric of one's own: by how much the right class leads."""
    right = logits.gather(1, labels[:, None])[:, 0]
    rest = logits.scatter(1, labels[:, None], -torch.inf).amax(1)
    return float((right - rest).mean())


def test_a_metric_of_ones_own(tmp_path) -> None:
    found = ledger(FedAvg(), tmp_path, ("global",), **{"evaluation.metrics": [f"{__name__}:mean_margin"], "rounds": 1})
    own = [event for event in found if event["event"] == "evaluation" and event["metric"] == "mean_margin"]
    assert len(own) == 1
    plan = small_experiment(FedAvg(), rounds=1)
    state = run(plan, tmp_path / "again", engine=Inline()).state
    site = plan.population().site(-1, 1, ModelCache())
    x, y = site.test.one_batch()
    net = site.model().eval()
    net.load_state_dict(state.group("model").tensors)
    with torch.no_grad():
        assert own[0]["value"] == pytest.approx(mean_margin(net(x), y), rel=1e-5)


def test_what_is_measured_of_every_model_is_no_metric_of_ones_own() -> None:
    assert tuple(Scores(1, 1, 1, 0.0).metrics()) == USUAL


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("accuracy", "expected package.module:function"),
        ("no_such_module:f", "cannot be imported"),
        ("math:pi", "is a float, expected a function"),
    ],
)
def test_a_metric_that_is_none_is_a_sentence(path, sentence, tmp_path) -> None:
    with pytest.raises(UserError, match=sentence):
        ledger(FedAvg(), tmp_path, ("global",), **{"evaluation.metrics": [path]})


def test_a_metric_that_fails_is_named(tmp_path) -> None:
    with pytest.raises(RunError, match=r"evaluation\.metrics, 'sqrt': TypeError: "):
        ledger(FedAvg(), tmp_path, ("global",), **{"evaluation.metrics": ["math:sqrt"]})


def test_the_table_says_of_whom_its_numbers_are(tmp_path) -> None:
    """The last mean is over all clients, the curve's over some: the best can be below the last."""
    plan = small_experiment(FedAvg()).overridden({"evaluation.protocols": ["local_post"]})
    [sheet, _] = outcome("some", run(plan, tmp_path / "some", engine=Inline()).summary)
    assert sheet.note == "last is of 5 clients, all else of the 3 whom every round measures"
    [sheet, _] = outcome("all", run(plan.replace(cohort=1.0), tmp_path / "all", engine=Inline()).summary)
    assert sheet.note == ""


@spec
class Forgetful(FedAvg):
    """Says that it evaluates, and does not."""

    name = "forgetful"

    def received(self, site, memory, message) -> Record:
        site.evaluate = lambda *_, **__: None
        return super().received(site, memory, message)


def test_a_protocol_that_was_never_measured_is_an_error(tmp_path) -> None:
    """At f8afa0a it was an empty table and exit code 0."""
    with pytest.raises(
        RunError, match=r"round 1: nothing was measured under local_post; .*site.evaluate\('personal', ...\) was not called"
    ):
        ledger(Forgetful(), tmp_path)


@pytest.mark.parametrize(
    ("protocol", "sentence"),
    [
        ("globl", "no such protocol, did you mean 'global'"),
        ("composed", "method 'fedavg' does not offer it"),
        ("local_val", "there is no validation split"),
        ("inter", "clients have no domains"),
    ],
)
def test_a_protocol_that_cannot_be_is_a_sentence(protocol, sentence, tmp_path) -> None:
    with pytest.raises(UserError, match=sentence):
        ledger(FedAvg(), tmp_path, (protocol,))


def test_means_by_domain(tmp_path) -> None:
    table = {
        "data": {"source": "digit-styles", "test": 200},
        "partition": {"name": "domains", "samples": [30, 30, 30, 30]},
        "rounds": 1,
        "cohort": 4,
    }
    found = ledger(FedAvg(), tmp_path, ("inter", "global_intra"), **table)
    inter = [e for e in found if e["event"] == "evaluation" and e["protocol"] == "inter" and "domain" in e and e["metric"] == "accuracy"]
    assert len({event["domain"] for event in inter}) == 4
    assert {event["clients"] for event in inter} == {3}, "each domain is another's for three clients"
    assert {event["client"] for event in inter} == {None}


def test_centralised_says_that_it_was_given_the_data(tmp_path) -> None:
    found = ledger(Centralised(), tmp_path, ("global",))
    setup = [event for event in found if event["event"] == "exchange"]
    assert {event["round"] for event in setup} == {0}
    assert sum(event["payload_bytes"] for event in setup) == 300 * (64 + 8)
    work = [event for event in found if event["event"] == "training"]
    assert {event["site"] for event in work} == {"server"}
    assert [event["samples"] for event in work] == [600, 600, 600], "two epochs of 300 samples in a round"


def test_equal_pretraining_is_the_experiments(tmp_path) -> None:
    """At f8afa0a local had none and the others 50 epochs, and every method seemed 11.5 points better than local."""
    steps = {}
    for method in (Local(), FML()):
        found = ledger(method, tmp_path / method.name, pretraining=2, cohort=5)
        before = [event for event in found if event["event"] == "training" and event["round"] == 0]
        steps[method.name] = (sum(event["steps"] for event in before), {event["task"] for event in before})
    assert steps["local"] == steps["fml"]
    assert steps["local"][1] == {"pretrain"}


def test_pretraining_is_done_once_for_runs_that_share_it(tmp_path) -> None:
    plan = small_experiment(Local(), rounds=1).overridden({"pretraining": 2, "cohort": 5})
    shared = tmp_path / "pretrained"
    first = run(plan, tmp_path / "a", engine=Inline(), shared=shared)
    times = {path: path.stat().st_mtime_ns for path in shared.rglob("*.safetensors")}
    second = run(plan.replace(method=FML()), tmp_path / "b", engine=Inline(), shared=shared)
    alone = run(plan, tmp_path / "c", engine=Inline())
    assert len(times) == 5
    assert times == {path: path.stat().st_mtime_ns for path in shared.rglob("*.safetensors")}, "the second run reads"
    assert first.summary["digest"] == alone.summary["digest"]
    assert second.summary["rounds"] == 1


def test_other_pretraining_is_not_shared(tmp_path) -> None:
    plan = small_experiment(Local(), rounds=1).overridden({"pretraining": 1, "cohort": 5})
    for name, changed in (("a", plan), ("b", plan.replace(pretraining=2)), ("c", plan.replace(seed=1))):
        run(changed, tmp_path / name, engine=Inline(), shared=tmp_path / "pretrained")
    assert len(list((tmp_path / "pretrained").iterdir())) == 3
