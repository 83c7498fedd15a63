"""A bad reply is dropped, named and counted; a quorum decides."""

from __future__ import annotations

import math
from typing import ClassVar

import pytest
import torch

from coterie.engines import Inline
from coterie.ledger import events
from coterie.method import task
from coterie.methods import FedAvg
from coterie.record import Record
from coterie.running.admission import Admission, QuorumError, rejection
from coterie.running.rounds import resume, run
from coterie.testing import small_experiment

SENT = Record(model={"w": torch.zeros(2), "n": torch.tensor(3)})


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (Record(model={"w": torch.zeros(2), "n": torch.tensor(3)}, examples=3), None),
        (Record(model={"w": torch.zeros(2)}, examples=3), "model/n is missing"),
        (Record(examples=3), "model/w is missing"),
        (Record(model={"w": torch.zeros(2, 1), "n": torch.tensor(3)}), r"model/w is float32[2, 1], expected float32[2]"),
        (Record(model={"w": torch.zeros(2).double(), "n": torch.tensor(3)}), "model/w is float64[2], expected float32[2]"),
        (Record(model={"w": torch.zeros(2), "n": torch.tensor(3), "x": torch.zeros(1)}), "model/x was not expected"),
        (Record(model={"w": torch.tensor([0.0, math.inf]), "n": torch.tensor(3)}), "model/w is not finite"),
        (SENT | Record(loss=math.nan), "loss = nan is not finite"),
        (SENT | Record(examples=0), "examples = 0, expected a whole number from 1 to 10000000"),
        (SENT | Record(examples=-4), "examples = -4, expected a whole number from 1 to 10000000"),
        (SENT | Record(examples=2.5), "examples = 2.5, expected a whole number from 1 to 10000000"),
        (SENT | Record(examples=True), "examples = True, expected a whole number from 1 to 10000000"),
        (SENT | Record(examples=10**12), "examples = 1000000000000, expected a whole number from 1 to 10000000"),
    ],
)
def test_objections(reply, reason) -> None:
    assert rejection(reply, SENT, Admission()) == reason


def test_norm_bound() -> None:
    reply = Record(model={"w": torch.tensor([3.0, 4.0]), "n": torch.tensor(3)})
    assert rejection(reply, SENT, Admission(max_norm=5.0)) is None
    assert rejection(reply, SENT, Admission(max_norm=4.9)) == "its distance 5 is over the bound 4.9"


class Bad(FedAvg):
    """Client 1 sends what is not finite, client 3 raises."""

    name: ClassVar[str] = "bad"

    @task
    def train(self, site, memory, message):
        reply, memory = super().train(site, memory, message)
        if site.id == 3 and site.round > 1:
            raise RuntimeError("out of battery")
        if site.id == 1:
            poison = {name: tensor * math.nan for name, tensor in reply.group("model").tensors.items()}
            return Record(model=poison, examples=7), memory
        return reply, memory


def test_bad_replies_are_dropped_named_and_counted(tmp_path) -> None:
    plan = small_experiment(Bad()).replace(cohort=1.0, admission=Admission(faults="drop"))
    result = run(plan, tmp_path / "run", engine=Inline())
    rejected = [event for event in events(tmp_path / "run" / "ledger.jsonl") if event["event"] == "rejected"]
    assert [(e["round"], e["client"], e["task"]) for e in rejected] == [
        (1, 1, "train"),
        (2, 1, "train"),
        (2, 3, "train"),
        (3, 1, "train"),
        (3, 3, "train"),
    ]
    assert rejected[0]["reason"].endswith("is not finite")
    assert "RuntimeError: out of battery" in rejected[2]["reason"]
    assert result.summary["rejected"] == 5
    assert result.state.fault() is None


def test_the_mean_is_over_who_was_admitted(tmp_path) -> None:
    """Dropping client 1 gives what FedAvg gives when client 1 is not asked at all."""

    class Without(FedAvg):
        def round(self, state, fed):
            from coterie.method import means

            others = [client for client in fed.cohort if client != 1]
            return means(fed.ask("train", state, clients=others), "model")

    plan = small_experiment(Bad(), rounds=1).replace(cohort=1.0)
    dropped = run(plan, tmp_path / "a", engine=Inline())
    absent = run(plan.replace(method=Without()), tmp_path / "b", engine=Inline())
    assert dropped.state == absent.state


def test_too_few_replies_stop_the_run_and_leave_the_checkpoint_whole(tmp_path) -> None:
    plan = small_experiment(Bad()).replace(cohort=1.0, admission=Admission(quorum=0.8, faults="drop"))
    with pytest.raises(QuorumError, match=r"round 2, task 'train': 3 of 5 replies admitted, 4 needed; client 1: .* not finite"):
        run(plan, tmp_path / "run", engine=Inline())
    with pytest.raises(QuorumError, match="round 2"):
        resume(tmp_path / "run", engine=Inline())
    rounds = [event["round"] for event in events(tmp_path / "run" / "ledger.jsonl") if event["event"] == "round"]
    assert rounds == [1]
