"""Replies that lie in memory which a worker and its parent share: whole, nobody else's, and given back."""

from __future__ import annotations

import itertools
import mmap
import os
import socket
from typing import ClassVar

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from coterie.engines import Inline, Processes, places
from coterie.engines.places import COUNT, Places, share, shared
from coterie.framing import LARGEST, FrameError
from coterie.method import aggregate, task
from coterie.methods import FedAvg
from coterie.record import Record, decode, encode
from coterie.running.rounds import run
from coterie.testing import small_experiment


def both() -> tuple[Places, Places]:
    """The parent's view and the worker's."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        return share(ours), shared(theirs)


class Exchange(RuleBasedStateMachine):
    """A worker lays down replies, a parent holds them for a while: whatever the order, each is what was laid down."""

    def __init__(self) -> None:
        super().__init__()
        self.parent, self.worker = both()
        self.ready, self.held, self.count = [], [], 0

    @rule(length=st.sampled_from([1, 700, 5000, 3 * 2**20]))
    def lay_down(self, length) -> None:
        body, self.count = self.worker.take(length), self.count + 1
        body[:] = bytes([self.count % 251]) * length
        self.ready.append((body, self.count % 251))

    @precondition(lambda self: self.ready)
    @rule()
    def send(self) -> None:
        body, mark = self.ready.pop(0)
        at, length = self.worker.name(body), len(body)
        self.held.append((body if at is None else self.parent.find(at, length), mark))

    @precondition(lambda self: self.held)
    @rule(which=st.integers(0))
    def let_go(self, which) -> None:
        self.held.pop(which % len(self.held))

    @rule()
    def sweep(self) -> None:
        self.parent.sweep()

    @invariant()
    def whole(self) -> None:
        assert all(body[0] == body[-1] == mark for body, mark in self.ready + self.held)


TestExchange = Exchange.TestCase
TestExchange.settings = settings(max_examples=60, deadline=None)


def test_a_place_is_used_again_when_nobody_holds_what_was_made_of_it() -> None:
    parent, worker = both()
    record = Record(model={"w": torch.arange(300.0)})
    seen = set()
    for _ in range(3 * COUNT):
        body = encode(record, worker.take)
        at, length = worker.name(body), len(body)
        del body
        seen.add(at)
        found = decode(parent.find(at, length))
        assert found == record
        del found
        parent.sweep()
    assert seen == {0}
    kept = [decode(parent.find(*named(worker, record))).tensors["model/w"] for _ in range(COUNT)]
    parent.sweep()
    assert worker.name(encode(record, worker.take)) is None  # all are held: it goes through the socket
    assert all(torch.equal(each, torch.arange(300.0)) for each in kept)
    del kept[3]
    parent.sweep()
    assert worker.name(encode(record, worker.take)) == 3


def named(worker, record) -> tuple[int, int]:
    body = encode(record, worker.take)
    return worker.name(body), len(body)


@pytest.mark.parametrize(("at", "length"), [(COUNT, 5), (-1, 5), (0, LARGEST + 1), (0, -1), ("0", 5), (None, 5), (True, 5), (0, 5.0)])
def test_a_reply_that_lies_nowhere_is_an_error(at, length) -> None:
    parent, _ = both()
    with pytest.raises(FrameError, match="lies nowhere"):
        parent.find(at, length)


def test_a_reply_is_found_once() -> None:
    parent, worker = both()
    found = parent.find(*named(worker, Record(x=torch.ones(3))))
    with pytest.raises(FrameError):
        parent.find(0, len(found))


def test_what_is_too_large_lies_elsewhere_and_large_ones_are_few() -> None:
    _, worker = both()
    assert worker.name(worker.take(LARGEST + 1)) is None
    taken = [worker.take(LARGEST) for _ in range(6)]
    assert [worker.name(body) for body in taken] == [0, 1, 2, 3, None, None]


class Keeps(FedAvg):
    """Its server looks at all replies at once, so that none of them can be given back."""

    name: ClassVar[str] = ""

    def round(self, state, fed):
        sent = Record(model=state.group("model"))
        came = list(fed.ask("train", sent, like=sent))
        return aggregate(self.aggregation, fed, came, sent, "model")


class Scribbles(FedAvg):
    """Its clients write into whatever they have open."""

    name: ClassVar[str] = ""

    @task
    def train(self, site, memory, message):
        descriptors = [at for at in range(3, 64) if "memfd:coterie" in os.path.realpath(f"/proc/self/fd/{at}")]
        assert descriptors
        for at, harm in itertools.product(
            descriptors, (lambda at: os.write(at, b"ha"), lambda at: os.ftruncate(at, 0), lambda at: mmap.mmap(at, 0))
        ):
            with pytest.raises(PermissionError):
                harm(at)
        return super().train(site, memory, message)


def test_no_task_can_write_where_replies_lie_as_into_a_file(tmp_path) -> None:
    assert run(small_experiment(Scribbles(), rounds=1), tmp_path / "run", engine=Processes(2)).summary["rounds"] == 1


@pytest.mark.parametrize("method", [FedAvg(), Keeps()])
@pytest.mark.parametrize("stack", [None, 3])
def test_bits_do_not_depend_on_the_way_of_a_reply(method, stack, tmp_path, monkeypatch) -> None:
    plan = small_experiment(method, rounds=2).replace(cohort=1.0)
    plan = plan.replace(training=plan.training.replace(stack=stack))
    digests = [
        run(plan, tmp_path / name, engine=engine).summary["digest"] for name, engine in (("inline", Inline()), ("places", Processes(2)))
    ]
    for way, key, value in (("one place", "COUNT", 1), ("too much", "COUNT", 2**30), ("none", "SEALS", 0)):
        monkeypatch.setattr(places, key, value)
        digests.append(run(plan, tmp_path / way, engine=Processes(2)).summary["digest"])
    assert len(set(digests)) == 1
