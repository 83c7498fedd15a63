"""The conformance suite catches what it promises to catch."""

from __future__ import annotations

import dataclasses
import random
from typing import ClassVar

import numpy as np
import pytest
import torch

from coterie.method import task
from coterie.methods import FedAvg
from coterie.record import Record
from coterie.replies import means
from coterie.settings import spec
from coterie.testing import ConformanceError, check_method


def check(method) -> None:
    check_method(method, engines=())


class EditsMessage(FedAvg):
    @task
    def train(self, site, memory, message):
        next(iter(message.tensors.values())).zero_()
        return super().train(site, memory, message)


class EditsMemory(FedAvg):
    @task
    def train(self, site, memory, message):
        if "seen" in memory:
            memory["seen"].add_(1)
        reply, _ = super().train(site, memory, message)
        return reply, Record(seen=torch.zeros(1))


class HidesStateOnSelf(FedAvg):
    @task
    def train(self, site, memory, message):
        object.__setattr__(self, "visits", getattr(self, "visits", 0) + 1)
        return super().train(site, memory, message)


class HidesStateInBetween(FedAvg):
    """State that survives between tasks on one instance and decides the result."""

    @task
    def train(self, site, memory, message):
        reply, memory = super().train(site, memory, message)
        factor = self.__dict__.setdefault("factors", [1.0])
        factor[0] *= 0.5
        return Record(model={k: v * factor[0] for k, v in reply.group("model").tensors.items()}, examples=1), memory


class GlobalTorch(FedAvg):
    @task
    def train(self, site, memory, message):
        torch.rand(1)
        return super().train(site, memory, message)


class GlobalNumpy(FedAvg):
    @task
    def train(self, site, memory, message):
        np.random.rand()  # noqa: NPY002
        return super().train(site, memory, message)


class GlobalPython(FedAvg):
    @task
    def train(self, site, memory, message):
        random.random()
        return super().train(site, memory, message)


class NeedsEverybody(FedAvg):
    def round(self, state, fed):
        replies = {reply.client: reply for reply in fed.ask("train", state, like=state)}
        return means([replies[client] for client in fed.cohort], "model")


class RemembersOnTheServer(FedAvg):
    """Keeps what the next round needs outside the state: lost on a resume."""

    past: ClassVar[list[Record]] = []

    def start(self, fed):
        self.past.clear()
        return super().start(fed)

    def round(self, state, fed):
        merged = super().round(state, fed)
        self.past.append(merged)
        if fed.round == 3:
            return merged if len(self.past) == 3 else self.past[0]
        return merged


@pytest.mark.parametrize(
    ("method", "sentence"),
    [
        (EditsMessage(), "edits the message"),
        (EditsMemory(), "edits its memory"),
        (HidesStateOnSelf(), "hides state on the method"),
        (HidesStateInBetween(), "hides state on the method"),
        (GlobalTorch(), "global random generator"),
        (GlobalNumpy(), "global random generator"),
        (GlobalPython(), "global random generator"),
        (NeedsEverybody(), "does not survive a client that is missing"),
        (RemembersOnTheServer(), "changes when the run is stopped and resumed"),
    ],
)
def test_broken_methods_are_caught(method, sentence) -> None:
    with pytest.raises(ConformanceError, match=sentence):
        check(method)


def test_wrong_bytes_are_caught() -> None:
    with pytest.raises(ConformanceError, match=r"moves 4840 payload bytes up in round 1, the formula says 1"):
        check_method(FedAvg(), up=1, engines=())


def test_a_false_reduction_is_caught() -> None:
    with pytest.raises(ConformanceError, match="does not reduce"):
        check_method(FedAvg(), same_as=FedAvg(weighting="uniform"), engines=())


def test_a_mutable_method_is_caught() -> None:
    @dataclasses.dataclass
    class Mutable(FedAvg.__mro__[1]):
        name: ClassVar[str] = "mutable"

    with pytest.raises(ConformanceError, match="mutable"):
        check(Mutable())

    class Plain(FedAvg.__mro__[1]):
        pass

    with pytest.raises(ConformanceError, match="not a dataclass"):
        check(Plain())


def test_an_unpicklable_method_is_caught() -> None:
    class Inner(FedAvg):  # a class inside a function cannot be found by a worker
        pass

    with pytest.raises(ConformanceError, match="cannot be pickled"):
        check(Inner())


@spec
class Momentum(FedAvg):
    """FedAvg with a momentum at the server, of which nothing is left where `beta` is 0."""

    name: ClassVar[str] = "momentum"
    beta: float = 0.0

    def start(self, fed):
        state = super().start(fed)
        return state | Record(momentum=state.group("model").map(torch.zeros_like))

    def round(self, state, fed):
        mean = super().round(Record(model=state.group("model")), fed).group("model")
        step = mean.combine(state.group("model"), torch.sub)
        momentum = step.combine(state.group("momentum"), lambda new, old: new + self.beta * old)
        moved = state.group("model").combine(momentum, torch.add) if self.beta else mean
        return Record(model=moved, momentum=momentum)


def test_a_method_that_keeps_more_reduces_to_one_that_keeps_less() -> None:
    check_method(Momentum(), same_as=FedAvg(), engines=())
    with pytest.raises(ConformanceError, match=r"after the last round model/dense1.0.bias in its state differs by up to 0\.\d"):
        check_method(Momentum(beta=0.5), same_as=FedAvg(), engines=())
    with pytest.raises(ConformanceError, match=r"its state has no momentum/"):
        check_method(FedAvg(), same_as=Momentum(), engines=())
