"""Stacks that answer with a mean: the bytes, the rejections and the weights that there would be if each client had answered for itself."""

from __future__ import annotations

import json
import math
import os
import pickle
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from coterie.aggregation import Median
from coterie.awaited import PutAside, awaited
from coterie.data.partitions import PARTITIONS
from coterie.engines import Inline
from coterie.engines.engine import Job, Outcome, PartOfMean
from coterie.engines.processes import Processes
from coterie.engines.serving import answer_of, fields_of, job_of, outcome_of
from coterie.errors import RunError
from coterie.ledger import events
from coterie.method import task
from coterie.methods import FedAvg, Local
from coterie.record import Record, decode, encode, read
from coterie.replies import Averaging, means
from coterie.running.admission import Admission
from coterie.running.rounds import run
from coterie.running.sections import Evaluation
from coterie.running.testimony import Measures, fault_of
from coterie.settings import spec
from coterie.testing import small_experiment
from coterie.training.optimisers import Sgd
from coterie.training.settings import Training
from coterie.training.stacking import Stack

CLOSE = 1e-5
SELDOM = Evaluation(every=3, protocols=("global",))
"""Nobody looks at a client's weights."""
ALWAYS = Evaluation(every=1, protocols=("global", "local_post"), clients=6)
"""Everybody looks, in every round."""


def stacked(method, **changes):
    """Six clients of as many samples, three rounds, and how that is in stacks of three."""
    evenly = PARTITIONS.resolve({"name": "iid", "clients": 6})
    training = Training(epochs=2, batch=16, optimiser=Sgd(lr=0.1))
    plain = small_experiment(method, rounds=3, cohort=1.0, partition=evenly, training=training, **{"evaluation": SELDOM, **changes})
    return plain, plain.replace(training=training.replace(stack=3))


def close(one, other):
    return max(float((value - other.tensors[name]).abs().max()) for name, value in one.tensors.items()) < CLOSE


@pytest.fixture
def merged(monkeypatch):
    """How many clients each mean was taken of, and how often one client's weights were laid down."""
    found = Counter()
    mean, fitted = Stack.mean, Stack.fitted

    def counted_mean(self, weights):
        found[len(self)] += 1
        return mean(self, weights)

    def counted_fitted(self, at):
        found["by itself"] += 1
        return fitted(self, at)

    monkeypatch.setattr(Stack, "mean", counted_mean)
    monkeypatch.setattr(Stack, "fitted", counted_fitted)
    return found


def lines(folder, *kinds):
    """What a ledger says of some kinds of events, but for the order of clients, and losses only so far."""
    keep = [{**each, "loss": round(each["loss"], 4)} if each.get("loss") else each for each in events(folder / "ledger.jsonl")]
    return sorted(json.dumps(each, sort_keys=True) for each in keep if each["event"] in kinds)


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
@pytest.mark.parametrize("evaluation", [SELDOM, ALWAYS])
def test_a_mean_of_stacks_is_the_mean_of_all_and_every_byte_is_counted(weighting, evaluation, merged, tmp_path) -> None:
    plain, together = stacked(FedAvg(weighting=weighting), evaluation=evaluation)
    one = run(plain, tmp_path / "plain", engine=Inline())
    other = run(together, tmp_path / "stacked", engine=Inline())
    assert merged[3] == 6  # two stacks in each of three rounds
    assert bool(merged["by itself"]) == (evaluation is ALWAYS)
    assert close(one.state, other.state)
    kinds = ("exchange", "training", "rejected")
    assert lines(tmp_path / "plain", *kinds) == lines(tmp_path / "stacked", *kinds)


def test_who_looks_at_weights_and_where_they_run_decides_nothing(tmp_path) -> None:
    found = {
        (name, evaluation.every): run(stacked(FedAvg(), evaluation=evaluation)[1], tmp_path / f"{name}{evaluation.every}", engine=engine())
        for name, engine in {"inline": Inline, "one": lambda: Processes(1), "two": lambda: Processes(2)}.items()
        for evaluation in (SELDOM, ALWAYS)
    }
    assert len({result.state.digest() for result in found.values()}) == 1


class Lies(FedAvg):
    """Client 1 says something else than it has learned."""

    name: ClassVar[str] = "lies"

    @task
    def train(self, site, memory, message):
        reply, memory = super().train(site, memory, message)
        return (self.lie(reply), memory) if site.id == 1 else (reply, memory)

    def lie(self, reply):
        raise NotImplementedError


@spec
class NotFinite(Lies):
    name: ClassVar[str] = "not-finite"

    def lie(self, reply):
        return reply.map(lambda value: value * math.nan)


@spec
class TooFar(Lies):
    name: ClassVar[str] = "too-far"

    def lie(self, reply):
        return reply.map(lambda value: value * 1e6)


@spec
class TooMany(Lies):
    name: ClassVar[str] = "too-many"

    def lie(self, reply):
        return reply | Record(examples=10**6)


@spec
class NoWeight(Lies):
    name: ClassVar[str] = "no-weight"

    def lie(self, reply):
        return reply.drop("examples")


@spec
class Stray(Lies):
    name: ClassVar[str] = "stray"

    def lie(self, reply):
        return reply | Record(more=torch.ones(2))


@spec
class Incomplete(Lies):
    name: ClassVar[str] = "incomplete"

    def lie(self, reply):
        return Record({name: value for name, value in reply.items() if not name.endswith("bias")})


@spec
class Raises(Lies):
    name: ClassVar[str] = "raises"

    def lie(self, reply):
        raise ValueError("no such luck")


@pytest.mark.parametrize(
    "method", [NotFinite(), TooFar(), TooMany(), NoWeight(), Stray(), Incomplete(), Raises()], ids=lambda each: each.name
)
def test_who_is_not_let_in_is_named_and_left_out_as_without_a_stack(method, tmp_path) -> None:
    plain, together = stacked(method, admission=Admission(faults="drop"))
    one = run(plain, tmp_path / "plain", engine=Inline())
    others = [run(together, tmp_path / name, engine=engine) for name, engine in {"inline": Inline(), "two": Processes(2)}.items()]
    assert one.summary["rejected"] == 3
    for name, other in zip(("inline", "two"), others, strict=True):
        kinds = ("exchange", "training", "rejected")
        assert lines(tmp_path / "plain", *kinds) == lines(tmp_path / name, *kinds)
        assert close(one.state, other.state)
    assert others[0].state == others[1].state


def test_where_faults_stop_a_run_one_in_a_stack_does(tmp_path) -> None:
    with pytest.raises(RunError, match="client 1, task 'train', round 1: ValueError: no such luck"):
        run(stacked(Raises())[1], tmp_path / "run", engine=Inline())


def test_a_client_that_diverges_is_looked_at_by_itself(tmp_path, merged) -> None:
    """One of a stack is not finite, though it passes on nothing but what it was given."""
    plain, together = stacked(OneDiverges(), admission=Admission(faults="drop"))
    one, other = run(plain, tmp_path / "plain", engine=Inline()), run(together, tmp_path / "stacked", engine=Inline())
    assert one.summary["rejected"] == other.summary["rejected"] == 3
    assert merged[3] == 6
    assert merged["by itself"] == 9  # the three of its stack, in each round
    assert lines(tmp_path / "plain", "exchange", "rejected") == lines(tmp_path / "stacked", "exchange", "rejected")
    assert close(one.state, other.state)


@spec
class OneDiverges(FedAvg):
    """What client 4 holds is not finite."""

    name: ClassVar[str] = "one-diverges"

    def trained(self, site, memory, message, start):
        return site.fit(start, self.objective(), data=Broken(site.train) if site.id == 4 else site.train)


class Broken:
    """Samples that are not finite."""

    def __init__(self, data):
        self._data = data

    def __len__(self):
        return len(self._data)

    def batch(self, chosen, augment=None):
        x, y = self._data.batch(chosen, augment)
        return x * math.inf, y

    def batches(self, size, start=0, stop=None):
        return self._data.batches(size, start, stop)


@spec
class DiesOnce(FedAvg):
    """Client 4 takes its worker down, the first time that it is asked."""

    name: ClassVar[str] = "dies-once"

    mark: str = ""

    def returned(self, site, memory, message, fitted):
        if site.id == 4 and self.mark and not Path(self.mark).exists():
            Path(self.mark).touch()
            os._exit(3)
        return super().returned(site, memory, message, fitted)


def test_a_stack_whose_worker_died_is_done_again_with_the_same_bits(tmp_path) -> None:
    found = [
        run(stacked(DiesOnce(mark=mark))[1], tmp_path / f"run{len(mark)}", engine=Processes(2)) for mark in ("", str(tmp_path / "mark"))
    ]
    assert (tmp_path / "mark").exists()
    assert found[0].state == found[1].state


class Mixes(Inline):
    """Only the first of a stack is told that nothing but a mean is wanted; nobody ever hears of client 1."""

    def deliver(self, jobs):
        for job in jobs:
            first = not job.stack or job.client == job.stack[0][0]
            outcome = self._performer.perform(job if first else replace(job, mean=None))
            assert outcome.part is None or first
            yield job.failed("lost") if job.client == 1 else outcome


def test_a_mean_that_not_all_are_in_is_not_used(tmp_path) -> None:
    plain, together = stacked(FedAvg(), admission=Admission(faults="drop"))
    one, other = run(plain, tmp_path / "plain", engine=Mixes()), run(together, tmp_path / "stacked", engine=Mixes())
    assert one.summary["rejected"] == other.summary["rejected"] == 3
    assert lines(tmp_path / "plain", "exchange", "rejected") == lines(tmp_path / "stacked", "exchange", "rejected")
    assert close(one.state, other.state)


class Loses(Inline):
    """Nobody ever hears of client 1."""

    def deliver(self, jobs):
        outcomes = [(job, self._performer.perform(job)) for job in jobs]
        return iter([job.failed("lost") if job.client == 1 else outcome for job, outcome in outcomes])


def test_a_mean_with_somebody_in_it_who_has_failed_is_not_used(tmp_path, merged) -> None:
    plain, together = stacked(FedAvg(), admission=Admission(faults="drop"))
    one, other = run(plain, tmp_path / "plain", engine=Loses()), run(together, tmp_path / "stacked", engine=Loses())
    assert merged[3] == 6
    assert one.summary["rejected"] == other.summary["rejected"] == 3
    assert lines(tmp_path / "plain", "exchange", "rejected") == lines(tmp_path / "stacked", "exchange", "rejected")
    assert close(one.state, other.state)


KEPT = []


@spec
class Keeps(FedAvg):
    """Everybody says what the first one was trained to, which tasks have no business to know."""

    name: ClassVar[str] = "keeps"

    def returned(self, site, memory, message, fitted):
        KEPT.append(fitted.params)
        return Record(model=KEPT[0], examples=len(site.train)), memory


def test_a_task_that_keeps_what_another_waits_for_ends_and_says_why(tmp_path) -> None:
    KEPT.clear()
    why = "RuntimeError: it looks at weights that another task trains: a task keeps nothing but its memory"
    with pytest.raises(RunError, match=why):
        run(stacked(Keeps())[1], tmp_path / "run", engine=Inline())


@spec
class Differences(FedAvg):
    """Clients send how far they have come; the server adds the mean of that."""

    name: ClassVar[str] = "differences"

    def round(self, state, fed):
        sent = Record(model=state.group("model"))
        step = means(fed.ask("train", sent, like=sent), "model")
        return sent.combine(step, lambda old, new: old + new)

    def returned(self, site, memory, message, fitted):
        reply, memory = super().returned(site, memory, message, fitted)
        return reply.combine(message, lambda new, old: new - old), memory


@spec
class Edits(FedAvg):
    """Clients change their weights where torch does not see it."""

    name: ClassVar[str] = "edits"

    def returned(self, site, memory, message, fitted):
        for value in fitted.params.tensors.values():
            array = value.numpy()
            array *= 0.5
        return super().returned(site, memory, message, fitted)


@pytest.mark.parametrize("method", [Differences(), Edits(), FedAvg(aggregation=Median())], ids=lambda each: each.name)
def test_what_is_more_than_weights_or_wanted_for_more_than_a_mean_comes_one_by_one(method, merged, tmp_path) -> None:
    plain, together = stacked(method)
    one, other = run(plain, tmp_path / "plain", engine=Inline()), run(together, tmp_path / "stacked", engine=Inline())
    assert not merged[3]
    assert merged["by itself"]
    assert lines(tmp_path / "plain", "exchange", "training") == lines(tmp_path / "stacked", "exchange", "training")
    assert close(one.state, other.state)


@spec
class Checked(FedAvg):
    """The server looks at every reply."""

    name: ClassVar[str] = "checked"

    def round(self, state, fed):
        sent = Record(model=state.group("model"))
        return means(fed.ask("train", sent, like=sent, check=lambda reply: None), "model")


@spec
class Renamed(FedAvg):
    """Weights travel under other names, and not all of them."""

    name: ClassVar[str] = "renamed"

    def round(self, state, fed):
        sent = Record(model=state.group("model"))
        like = Record(net=sent.group("model").prefixed("mine"))
        mean = means(fed.ask("train", sent, like=like), "net")
        return Record(model=mean.group("net").under("mine"))

    def returned(self, site, memory, message, fitted):
        return Record(net=fitted.params.prefixed("mine"), examples=len(site.train)), memory


@pytest.mark.parametrize(("method", "count"), [(Checked(), 0), (Renamed(), 6)])
def test_a_server_that_looks_at_each_gets_each(method, count, merged, tmp_path) -> None:
    plain, together = stacked(method)
    seldom = run(together, tmp_path / "seldom", engine=Inline()).state
    assert merged[3] == count
    assert close(run(plain, tmp_path / "plain", engine=Inline()).state, seldom)
    assert run(together.replace(evaluation=ALWAYS), tmp_path / "always", engine=Inline()).state == seldom
    assert merged[3] == 2 * count


def test_what_a_client_keeps_is_what_it_was_trained_to(tmp_path) -> None:
    plain, together = stacked(Local(), evaluation=Evaluation(every=3))
    for each, name in ((plain, "plain"), (together, "stacked")):
        run(each, tmp_path / name, engine=Processes(2))
    files = sorted(path.name for path in (tmp_path / "plain" / "memory").iterdir())
    assert sorted(path.name for path in (tmp_path / "stacked" / "memory").iterdir()) == files
    for name in files:
        assert close(read(tmp_path / "plain" / "memory" / name), read(tmp_path / "stacked" / "memory" / name))


LOOKS = {
    "its shape": lambda weight: weight.shape,
    "its type": lambda weight: weight.dtype,
    "a sum": lambda weight: weight + 1,
    "a sum from the right": lambda weight: torch.ones(2) - weight,
    "a product": lambda weight: torch.mm(torch.ones(2, 2), weight),
    "in a list": lambda weight: torch.stack([torch.ones(2), weight]),
    "by key": lambda weight: torch.add(torch.ones(2), other=weight),
    "as numbers": lambda weight: weight.tolist(),
    "as an array": lambda weight: weight.numpy(),
    "as numpy's": lambda weight: np.asarray(weight),
    "as a truth": bool,
    "as a parameter": nn.Parameter,
    "where it lies": lambda weight: weight.data_ptr(),
    "in place": lambda weight: weight.mul_(2),
    "another's place": lambda weight: torch.zeros(2).copy_(weight),
    "a part of it": lambda weight: weight[0],
    "written into": lambda weight: weight.__setitem__(0, 1.0),
    "a copy": lambda weight: weight.clone(),
    "equal": lambda weight: torch.equal(weight, weight),
    "pickled": pickle.dumps,
    "shown": repr,
    "its weight in a record": lambda weight: Record(model={"w": weight}).payload_bytes,
    "a digest": lambda weight: Record(model={"w": weight}).digest(),
    "in a network": lambda weight: nn.Linear(2, 2).load_state_dict({"weight": weight, "bias": torch.ones(2)}),
    "as bytes": lambda weight: encode(Record(w=weight)),
    "mapped": lambda weight: Record(w=weight).map(torch.neg),
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_whoever_looks_at_what_is_not_there_is_put_aside(look) -> None:
    with pytest.raises(PutAside) as aside:
        look(awaited("this training", "0.weight"))
    assert aside.value.request == "this training"


def test_what_is_told_of_a_reply_crosses_and_is_looked_at() -> None:
    job = Job(2, "train", 1, "message", stack=((1, None), (2, "1-1")), mean=Averaging(("model",), "uniform"))
    assert job_of(json.loads(json.dumps(fields_of(3, job) | {"visit": {"protocols": [], "logging": False, "span": None}}))) == (3, job)
    part = PartOfMean({"examples": 60}, length=400, norm=1.5)
    assert outcome_of(job, json.loads(answer_of(job, Outcome(2, part=part))), b"").part == part
    assert fault_of(job, Outcome(2, part=part), Measures(classes=10)) is None
    for wrong in (
        PartOfMean({"examples": 60}, length=-1, norm=1.5),
        PartOfMean({"examples": 60}, length=400, norm="far"),  # type: ignore[arg-type]
        PartOfMean({"examples": 60}, length=400, norm=-1.0),
        PartOfMean({"examples": [60]}, length=400, norm=1.5),  # type: ignore[dict-item]
        PartOfMean([60], length=400, norm=1.5),  # type: ignore[arg-type]
        PartOfMean({"": 60}, length=400, norm=1.5),
        PartOfMean({"examples": {"more": 60, "less": 6}}, length=400, norm=1.5),  # type: ignore[dict-item]
    ):
        assert fault_of(job, Outcome(2, part=wrong), Measures(classes=10)) == "its part in a mean is not told in numbers"


class Claims(Inline):
    """Client 1 sends what is not finite, and tells of it as of a part in a mean that is near."""

    def deliver(self, jobs):
        for job in jobs:
            outcome = self._performer.perform(job)
            sent = decode(bytes(outcome.reply)).map(lambda value: value * math.nan)
            claim = replace(outcome, reply=encode(sent), part=PartOfMean({"examples": 1}, length=400, norm=1.0))
            yield claim if job.client == 1 and job.task == "train" else outcome


def test_nobody_gets_past_the_check_by_telling_of_a_mean_that_nobody_wants(tmp_path) -> None:
    plain, _ = stacked(FedAvg(), admission=Admission(faults="drop"))
    result = run(plain, tmp_path / "run", engine=Claims())
    rejected = [event for event in events(tmp_path / "run" / "ledger.jsonl") if event["event"] == "rejected"]
    assert {event["client"] for event in rejected} == {1}
    assert all(each["reason"].endswith("it tells of a part in a mean that nobody wants: a reply is looked at") for each in rejected)
    assert result.summary["rejected"] == 3
    assert result.state.fault() is None
