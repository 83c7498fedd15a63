"""All engines give the same bits, whatever happens to the workers on the way."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import ClassVar

import pytest
import torch

from coterie.engines import Inline, Processes, TaskError
from coterie.engines.worker import Memories, memory_file
from coterie.errors import RunError
from coterie.method import task
from coterie.methods import FedAvg, FedProx, Local
from coterie.record import EMPTY, Record
from coterie.running.rounds import run
from coterie.testing import small_experiment


@pytest.mark.parametrize("method", [FedAvg(), FedProx(mu=0.1), Local()])
@pytest.mark.parametrize("model", [{"name": "mlp", "hidden": [16]}, {"name": "resnet10-slim", "width": 0.125}])
def test_the_same_bits_on_every_engine(tmp_path, method, model) -> None:
    changes = {"model": model, "data": {"source": "digits", "train": 120, "test": 40, "size": 16, "channels": 1}, "cohort": 4}
    plan = small_experiment(method, rounds=2).replace(**changes)
    engines = {"inline": Inline(), **{f"{n} workers": Processes(n) for n in (1, 2, 3)}}
    results = {name: run(plan, tmp_path / name, engine=engine) for name, engine in engines.items()}
    assert len({result.summary["digest"] for result in results.values()}) == 1
    for key in ("protocols", "bytes", "targets"):
        assert all(result.summary[key] == results["inline"].summary[key] for result in results.values())


def test_a_worker_that_is_killed_is_replaced_and_the_bits_stay(tmp_path) -> None:
    plan = small_experiment(Local(), rounds=4).replace(cohort=1.0)
    plan = plan.replace(training=plan.training.replace(epochs=30, batch=4))
    expected = run(plan, tmp_path / "calm", engine=Inline())
    engine, killed = Processes(2), []

    def assassin() -> None:
        while len(killed) < 3:
            time.sleep(0.3)
            for pid in engine.pids[len(killed) % 2 :][:1]:
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)

    thread = threading.Thread(target=assassin)
    thread.start()
    result = run(plan, tmp_path / "stormy", engine=engine)
    thread.join()
    assert result.summary["digest"] == expected.summary["digest"]
    assert len(killed) == 3


class Raises(FedAvg):
    name: ClassVar[str] = "raises"

    @task
    def train(self, site, memory, message):
        if site.id == 2 and site.round == 2:
            raise ZeroDivisionError("no such luck")
        return super().train(site, memory, message)


class Dies(FedAvg):
    name: ClassVar[str] = "dies"

    @task
    def train(self, site, memory, message):
        if site.id == 2:
            os._exit(9)
        return super().train(site, memory, message)


class AnswersWrongly(FedAvg):
    name: ClassVar[str] = "answers-wrongly"

    @task
    def train(self, site, memory, message):
        return message


@pytest.mark.parametrize("engine", [Inline(), Processes(2)], ids=["inline", "processes"])
def test_a_task_that_raises_is_reported_with_client_task_and_round(tmp_path, engine) -> None:
    with pytest.raises(TaskError, match=r"client 2, task 'train', round 2: ZeroDivisionError: no such luck"):
        run(small_experiment(Raises()).replace(cohort=1.0), tmp_path / "run", engine=engine)


def test_inline_shows_the_exception_itself(tmp_path) -> None:
    with pytest.raises(TaskError) as caught:
        run(small_experiment(Raises()).replace(cohort=1.0), tmp_path / "run", engine=Inline())
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_task_that_always_takes_its_worker_down_ends_the_run(tmp_path) -> None:
    with pytest.raises(RunError, match=r"client 2, task 'train', round 1: its worker died 3 times \(exit code 9\)"):
        run(small_experiment(Dies()).replace(cohort=1.0), tmp_path / "run", engine=Processes(2))
    assert (tmp_path / "run" / "checkpoint.safetensors").exists()
    assert not (tmp_path / "run" / "live").exists()


def test_a_task_that_answers_with_something_else_is_told_so(tmp_path) -> None:
    with pytest.raises(TaskError, match="a task returns \\(reply, memory\\), two Records, not Record"):
        run(small_experiment(AnswersWrongly()), tmp_path / "run", engine=Inline())


class Asks(FedAvg):
    """Asks for something that is not a task."""

    name: ClassVar[str] = "asks"

    def round(self, state, fed):
        list(fed.ask("models", state))
        return state


def test_only_tasks_can_be_called_from_afar(tmp_path) -> None:
    with pytest.raises(TaskError, match="has no task 'models': valid: adapt, train"):
        run(small_experiment(Asks()), tmp_path / "run", engine=Inline())


def test_no_worker_survives_the_run(tmp_path) -> None:
    engine = Processes(2)
    seen: list[int] = []
    run(small_experiment(FedAvg()), tmp_path / "run", engine=engine, callbacks=[lambda event: seen.extend(engine.pids)])
    assert len(set(seen)) == 2
    for pid in set(seen):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_memories_beyond_the_budget_lie_on_disk(tmp_path) -> None:
    memories = Memories(tmp_path, budget=2 * 4000)
    for client in range(5):
        assert memories.put(client, "1", Record(x=torch.full((1000,), float(client)))) == "1"
    assert len(memories._held) == 2
    assert memories._bytes <= 8000
    for client in range(5):
        assert memories.get(client, "1") == Record(x=torch.full((1000,), float(client)))
    assert len(memories._held) == 2
    memories.put(4, "2", Record(x=torch.zeros(1)))
    assert memories.get(4, "1") == Record(x=torch.full((1000,), 4.0))
    assert memory_file(tmp_path, 4, "1").exists()
    assert memories.put(0, "2", EMPTY) is None
    assert memories.get(0, None) == EMPTY
