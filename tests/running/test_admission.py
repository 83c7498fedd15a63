"""A bad reply is dropped, named and counted; a quorum decides."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import pytest
import torch

from coterie.engines import Inline, TaskError
from coterie.engines.engine import Job, Outcome
from coterie.ledger import events
from coterie.method import task
from coterie.methods import FedAvg
from coterie.methods.fedproto import FedProto, _miscounted
from coterie.record import Record, RecordError, decode, encode
from coterie.replies import means
from coterie.running.admission import Admission, Expected, QuorumError, rejection
from coterie.running.rounds import _no_curve, resume, run
from coterie.running.testimony import Measures, fault_of, sums_of
from coterie.site import Observation, Visit, Work
from coterie.testing import small_experiment
from coterie.training.score import Scores

SENT = Record(model={"w": torch.ones(2), "n": torch.tensor(3)})
ROWS = Record(model={"w": torch.ones(2)}, maps={"x": torch.empty(0, 3)}, labels=torch.empty(0, dtype=torch.int64))


def objection(reply, like=SENT, rules=None, needed=(), held=None) -> str | None:
    """What the server has against a reply, as it finds it: its form first, then what is in it."""
    expected = Expected(like)
    return expected.misfit(reply, held) or rejection(reply, expected, rules or Admission(), needed, held)


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (SENT | Record(examples=3), None),
        (Record(model={"w": torch.zeros(2)}, examples=3), "model/n is missing"),
        (Record(examples=3), "model/w is missing"),
        (Record(model={"w": torch.zeros(2, 1), "n": torch.tensor(3)}), r"model/w is float32[2, 1], expected float32[2]"),
        (Record(model={"w": torch.zeros(2).double(), "n": torch.tensor(3)}), "model/w is float64[2], expected float32[2]"),
        (SENT | Record(model={"x": torch.zeros(1)}), "model/x was not expected"),
        (SENT | Record(evil=torch.zeros(1)), "evil was not expected"),
        (Record(model={"w": torch.tensor([0.0, math.inf]), "n": torch.tensor(3)}), "model/w is not finite"),
        (Record(model={"w": torch.tensor([0.0, math.nan]), "n": torch.tensor(3)}), "model/w is not finite"),
        (Record(model={"w": torch.tensor([0.0, 1e38]), "n": torch.tensor(3)}), "model/w holds 1e+38, too large to compute with"),
        (SENT | Record(loss=math.nan), "loss = nan is not finite"),
        (SENT | Record(examples=0), "examples = 0, expected a whole number from 1"),
        (SENT | Record(examples=-4), "examples = -4, expected a whole number from 1"),
        (SENT | Record(examples=2.5), "examples = 2.5, expected a whole number from 1"),
        (SENT | Record(examples=True), "examples = True, expected a whole number from 1"),
        (SENT | Record(examples="many"), "examples = 'many', expected a whole number from 1"),
    ],
)
def test_objections(reply, reason) -> None:
    assert objection(reply) == reason


def test_a_reply_to_which_nothing_is_compared_may_hold_anything_that_can_be_computed_with() -> None:
    assert objection(Record(anything={"x": torch.ones(3)}, n=torch.tensor(3)), like=Record()) is None
    assert objection(Record(x=torch.tensor([1e19])), like=Record()) == "x holds 1e+19, too large to compute with"
    assert objection(Record(x=torch.tensor([math.nan])), like=Record()) == "x is not finite"


def test_there_is_room_for_as_many_entries_as_the_method_itself_has_a_few_times_over() -> None:
    many = Record({f"g{at}/x": at for at in range(20_000)})
    with pytest.raises(RecordError, match="more than 10,000 entries"):
        decode(encode(many), Expected().limits(10**9))
    assert decode(encode(many), Expected(sent=many).limits(10**9)) == many
    with pytest.raises(RecordError, match="more than the 1,000 allowed"):
        decode(encode(many), Expected(sent=many).limits(1000))


@pytest.mark.parametrize(
    ("claimed", "most", "reason"),
    [
        (60, None, None),
        (61, None, "examples = 61, expected at most 60"),
        (10_000_000, None, "examples = 10000000, expected at most 60"),
        (61, 100, None),
        (101, 100, "examples = 101, expected at most 100"),
    ],
)
def test_a_client_counts_no_more_examples_than_it_registered_with_unless_the_experiment_says_so(claimed, most, reason) -> None:
    assert objection(SENT | Record(examples=claimed), rules=Admission(max_examples=most), held=60) == reason


def test_a_number_that_the_method_needs_is_there() -> None:
    assert objection(SENT | Record(examples=3), needed={"examples"}) is None
    assert objection(SENT, needed={"examples"}) == "examples is missing, a number that the method needs"
    assert objection(SENT | Record(examples="3"), needed={"examples"}) == "examples is missing, a number that the method needs"


@pytest.mark.parametrize(
    ("rows", "labels", "reason"),
    [
        (torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64), None),
        (torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64), None),
        (torch.zeros(4, 3), torch.zeros(5, dtype=torch.int64), "these have different numbers of rows: maps/x 4, labels 5"),
        (torch.zeros(61, 3), torch.zeros(61, dtype=torch.int64), "maps/x has 61 rows, the client has 60 samples"),
        (torch.zeros(4, 3), torch.tensor(3), "labels is int64[], expected int64[0]"),
        (torch.full((4, 3), math.nan), torch.zeros(4, dtype=torch.int64), "maps/x is not finite"),
    ],
)
def test_rows_for_samples(rows, labels, reason) -> None:
    assert objection(Record(model={"w": torch.ones(2)}, maps={"x": rows}, labels=labels), like=ROWS, held=60) == reason


def test_norm_bounds() -> None:
    reply = Record(model={"w": torch.tensor([4.0, 5.0]), "n": torch.tensor(3)})
    assert objection(reply, rules=Admission(max_norm=5.0)) is None
    assert objection(reply, rules=Admission(max_norm=4.9)) == "its distance 5 is over the bound 4.9 (admission.max_norm)"
    near, far = (Record(model={"w": 1 + torch.tensor([factor, 0.0]), "n": torch.tensor(3)}) for factor in (3316.0, 3317.0))
    assert objection(near) is None
    assert objection(far) == ("its distance 3317 is over 1000 times the norm 3.31662 of what it is compared with (admission.max_ratio)")
    assert objection(far, rules=Admission(max_ratio=1e4)) is None
    nothing = Record(model={"w": torch.zeros(2), "n": torch.tensor(0)})
    assert objection(far, like=nothing) is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_distances_do_not_overflow_in_small_precisions(dtype) -> None:
    sent = Record(model={"w": torch.full((1000,), 1000.0, dtype=dtype)})
    assert objection(sent.map(lambda value: 2 * value), like=sent) is None
    assert "is over the bound" in (objection(sent.map(lambda value: 2 * value), like=sent, rules=Admission(max_norm=3e4)) or "")


def test_there_is_room_for_the_methods_own_shapes() -> None:
    model = Record(model={"w": torch.ones(1000)})
    assert Expected(model, model).bytes(held=60) == 4 * (4000 + 4000)
    assert Expected(ROWS).bytes(held=60) == 4 * (8 + 60 * (12 + 8))
    assert Admission().limit(100) == 64 * 2**20 + 100
    assert Admission(max_mb=1).limit(10**9) == 2**20


NOT_ASKED = "it measures what it was not asked to measure, or not in numbers"
SEEN = Observation("local_post", Scores(10, 9, 10, 2.0, {"1:2": 1, "2:2": 9}))
TEN = Measures(classes=10)


def scored(*scores, **more) -> dict[str, object]:
    return {"observations": [Observation("local_post", Scores(*scores, **more))]}


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        ({"observations": [SEEN], "work": [Work("train", 3, 60, 0.5)], "logs": {"losses": [0.5]}, "kept": "2-1"}, None),
        ({"work": [Work("train", 3, 60, math.inf), Work("train", 0, 0, None)], "kept": "1-1"}, None),
        ({"kept": "../../checkpoint"}, "what it keeps is not under the name it was given: '../../checkpoint'"),
        ({"observations": [Observation("global", SEEN.scores)]}, NOT_ASKED),
        ({"observations": [Observation("local_post", Scores(10, "all"))]}, NOT_ASKED),
        (scored(10, 9, 10, math.inf), None),
        (scored(10, 11, 11, 2.0), NOT_ASKED),
        (scored(10, 9, 11, 2.0), NOT_ASKED),
        (scored(10, -1, 10, 2.0), NOT_ASKED),
        (scored(10**400, 9, 10, 2.0), NOT_ASKED),
        (scored(10, 9, 10, 10**400), NOT_ASKED),
        (scored(10, 9, 10, 2.0, {"1:2": 10**400}), NOT_ASKED),
        (scored(10, 9, 10, 2.0, {"1:2": 2, "2:2": 8}), NOT_ASKED),
        (scored(10, 9, 10, 2.0, {"1:10": 1, "2:2": 9}), NOT_ASKED),
        (scored(10, 9, 10, 2.0, {7: 10}), NOT_ASKED),
        (scored(10, 9, 10, 2.0, own={"accuracy": 1e9}), NOT_ASKED),
        ({"observations": [SEEN, SEEN]}, NOT_ASKED),
        ({"observations": [Observation("local_post", SEEN.scores, "mars")]}, NOT_ASKED),
        ({"observations": [Observation("local_post", SEEN.scores, ["mars"])]}, NOT_ASKED),
        ({"observations": None}, NOT_ASKED),
        ({"seconds": math.nan}, "it took nan seconds, expected a number from 0"),
        ({"seconds": -1.0}, "it took -1.0 seconds, expected a number from 0"),
        ({"work": None}, "its training is not counted in numbers"),
        ({"work": [Work("train", 3, 60, 10**400)]}, "its training is not counted in numbers"),
        ({"work": [Work("train", 1, 1, 0.5)] * 1001}, "its training is not counted in numbers"),
        ({"work": [Work("train", True, 60, 0.5)]}, "its training is not counted in numbers"),
        ({"work": [Work("train", 3, 60, "low")]}, "its training is not counted in numbers"),
        ({"logs": None}, "what it logs is not a table of at most 1,000 arrays"),
        ({"logs": {str(each): [] for each in range(1001)}}, "what it logs is not a table of at most 1,000 arrays"),
        ({"logs": {"x": object()}}, "what it logs is not made of numbers: Object of type object is not JSON serializable"),
        ({"logs": {"x": "x" * 2**24}}, "what it logs has 16,777,225 bytes, more than the 16,777,216 allowed"),
    ],
)
def test_what_is_said_beside_a_reply(said, fault) -> None:
    job = Job(3, "train", 2, "message", memory="1-1", keep="2-1", visit=Visit(("local_post",)))
    assert fault_of(job, Outcome(3, **said), TEN) == fault


def test_metrics_are_those_that_were_asked_for() -> None:
    job = Job(3, "train", 2, "message", visit=Visit(("local_post",)))
    asked = Measures(classes=10, metrics=frozenset({"f1"}))
    assert fault_of(job, Outcome(3, **scored(10, 9, 10, 2.0, own={"f1": 5.0})), asked) is None
    assert fault_of(job, Outcome(3, **scored(0, 0, 0, 0.0)), asked) is None
    assert fault_of(job, Outcome(3, **scored(10, 9, 10, 2.0)), asked) == NOT_ASKED
    assert fault_of(job, Outcome(3, **scored(10, 9, 10, 2.0, own={"f1": 5.0, "evil": 1.0})), asked) == NOT_ASKED


@pytest.mark.parametrize("losses", [(1e308, 1e308), (math.inf, -math.inf), (math.nan, 1.0)])
def test_losses_that_cannot_be_added_up_have_no_mean(losses) -> None:
    assert not math.isfinite(sums_of([[Work("train", 1, 10, loss) for loss in losses]])["loss"])


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
            from coterie.replies import means

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


class Lists(FedAvg):
    """Looks at replies before it takes their mean, so that the mean cannot say by itself what it needs."""

    name: ClassVar[str] = "lists"

    def round(self, state, fed):
        return means(list(fed.ask("train", state, like=state).needing("examples")), "model")

    @task
    def train(self, site, memory, message):
        reply, memory = super().train(site, memory, message)
        return (Record(model=reply.group("model")) if site.id == 1 else reply), memory


class Checks(FedAvg):
    """Has a check that cannot cope with everything."""

    name: ClassVar[str] = "checks"

    def round(self, state, fed):
        return means(fed.ask("train", state, like=state, check=lambda reply: None if reply["steps"] > 0 else "lazy"), "model")

    @task
    def train(self, site, memory, message):
        reply, memory = super().train(site, memory, message)
        return reply | Record(steps="many" if site.id == 1 else site.id), memory


@pytest.mark.parametrize(
    ("method", "reasons"),
    [
        (Lists(), {1: "examples is missing, a number that the method needs"}),
        (
            Checks(),
            {0: "lazy", 1: "it cannot be checked: TypeError: '>' not supported between instances of 'str' and 'int'"},
        ),
    ],
)
def test_no_reply_raises_on_the_server(method, reasons, tmp_path) -> None:
    plan = small_experiment(method, rounds=1).replace(cohort=1.0)
    run(plan, tmp_path / "run", engine=Inline())
    rejected = [event for event in events(tmp_path / "run" / "ledger.jsonl") if event["event"] == "rejected"]
    assert {event["client"]: event["reason"] for event in rejected} == reasons


class MeasuresNothing(FedAvg):
    name: ClassVar[str] = "measures-nothing"

    def models(self, state, site):
        raise ZeroDivisionError("no model")


def test_what_fails_at_the_server_ends_the_run_even_if_clients_faults_are_dropped(tmp_path) -> None:
    plan = small_experiment(MeasuresNothing()).replace(admission=Admission(faults="drop"))
    with pytest.raises(TaskError, match="the server, task '@evaluate', round 1: ZeroDivisionError: no model"):
        run(plan, tmp_path / "run", engine=Inline())


class Strays(FedAvg):
    """Guests are clients too: one of them answers nonsense."""

    name: ClassVar[str] = "strays"

    def round(self, state, fed):
        return means(fed.ask("train", state, like=state, keep_guests=True), "model")

    @task
    def train(self, site, memory, message):
        reply, memory = super().train(site, memory, message)
        return (Record(model=3) if site.id == 1 else reply), memory


def test_a_guest_that_answers_nonsense_is_turned_away(tmp_path) -> None:
    plan = small_experiment(Strays(), rounds=1).overridden({"evaluation.protocols": ["global", "local_post"], "cohort": 2, "seed": 1})
    plan = plan.replace(method=Strays(), admission=Admission(quorum=0.1))
    assert 1 not in plan.cohort_of(1, 5)
    run(plan, tmp_path / "run", engine=Inline())
    (rejected,) = [event for event in events(tmp_path / "run" / "ledger.jsonl") if event["event"] == "rejected"]
    assert (rejected["client"], rejected["reason"].partition(" ")[2]) == (1, "is missing")


def test_a_reply_of_another_form_is_counted_as_malformed(tmp_path) -> None:
    plan = small_experiment(Strays(), rounds=1).replace(cohort=1.0)
    run(plan, tmp_path / "run", engine=Inline())
    up = [e for e in events(tmp_path / "run" / "ledger.jsonl") if e["event"] == "exchange" and e["direction"] == "up"]
    assert {e["client"]: e["kind"] for e in up} == {0: "weights", 1: "malformed", 2: "weights", 3: "weights", 4: "weights"}
    assert all(e["framed_bytes"] > 0 for e in up)


class Garbles(Inline):
    """Client 3's reply arrives as something else."""

    def deliver(self, jobs):
        for outcome in super().deliver(jobs):
            yield dataclasses.replace(outcome, reply=b"not a record") if outcome.client == 3 else outcome


def test_bytes_that_are_no_record_are_a_reply_that_is_rejected(tmp_path) -> None:
    run(small_experiment(FedAvg(), rounds=1).replace(cohort=1.0), tmp_path / "run", engine=Garbles())
    (rejected,) = [event for event in events(tmp_path / "run" / "ledger.jsonl") if event["event"] == "rejected"]
    assert rejected["client"] == 3
    assert "these bytes are not a record" in rejected["reason"]


class Boasts(FedProto):
    """Client 3 says that each of its prototypes is of a million samples."""

    name: ClassVar[str] = "boasts"

    @task
    def train(self, site, memory, message):
        reply, memory = super().train(site, memory, message)
        return (reply | Record(counts=reply.tensors["counts"] + 10**6) if site.id == 3 else reply), memory


def test_nobody_says_how_much_its_prototypes_are_worth(tmp_path) -> None:
    run(small_experiment(Boasts(), rounds=1).replace(cohort=1.0), tmp_path / "run", engine=Inline())
    rejected = [event for event in events(tmp_path / "run" / "ledger.jsonl") if event["event"] == "rejected"]
    assert [(event["client"], event["reason"]) for event in rejected] == [(3, "counts are not those of its examples")]


class Silent(FedAvg):
    """Of the new clients, the last says nothing of how it fared."""

    name: ClassVar[str] = "silent"

    @task
    def adapt(self, site, memory, message):
        reply, memory = super().adapt(site, memory, message)
        return (Record() if site.id == 4 else reply), memory


@pytest.mark.parametrize(
    ("curve", "wrong"),
    [
        ([0.5, 1.0], None),
        ([0.5], "curve is missing, the 2 accuracies before and after each epoch"),
        ([0.5] * 3_000, "curve is missing, the 2 accuracies before and after each epoch"),
        ([0.5, 5.0], "curve is not made of accuracies, from 0 to 1"),
        ([0.5, math.nan], "curve is not made of accuracies, from 0 to 1"),
        ([-0.1, 0.5], "curve is not made of accuracies, from 0 to 1"),
    ],
)
def test_a_new_clients_curve_is_of_accuracies(curve, wrong) -> None:
    assert _no_curve(Record(curve=torch.tensor(curve, dtype=torch.float64)), epochs=1) == wrong


def test_counts_that_wrap_around_are_no_counts() -> None:
    honest, lie = [4, 6, 0, 0, 0], [2**62, 2**62, 2**62, 2**62, 10]
    assert int(torch.tensor(lie).sum()) == 10
    said = [_miscounted(Record(counts=torch.tensor(each), examples=10)) for each in (honest, lie)]
    assert said == [None, "counts are not those of its examples"]


def test_a_new_client_that_says_nothing_is_rejected_and_the_others_are_not(tmp_path) -> None:
    run(small_experiment(Silent(), rounds=1, new_clients={"count": 2, "epochs": 1}), tmp_path / "run", engine=Inline())
    seen = list(events(tmp_path / "run" / "ledger.jsonl"))
    assert [event["client"] for event in seen if event["event"] == "new_client"] == [3]
    (rejected,) = [event for event in seen if event["event"] == "rejected"]
    assert (rejected["client"], rejected["reason"]) == (4, "curve is missing, the 2 accuracies before and after each epoch")
