"""All engines give the same bits, whatever happens to the workers on the way."""

from __future__ import annotations

import errno
import inspect
import itertools
import json
import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from tests.forms import long

from coterie.data.partitions.sizes import IID
from coterie.engines import Inline, Processes, TaskError
from coterie.engines.surroundings import Surroundings
from coterie.engines.worker import Memories, memory_file
from coterie.errors import Interrupted
from coterie.ledger import events
from coterie.method import task
from coterie.methods import FedAvg, FedProx, Local
from coterie.record import EMPTY, Record
from coterie.running.admission import Admission
from coterie.running.experiment import Experiment
from coterie.running.result import Result
from coterie.running.rounds import run
from coterie.testing import small_experiment
from coterie.training.optimisers import Sgd


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


class Overwrites(FedAvg):
    """Its clients write into the message that they have read, as tensors or behind torch's back."""

    name: ClassVar[str] = ""

    @task
    def train(self, site, memory, message):
        answer = super().train(site, memory, message)
        for value in message.group("model").tensors.values():
            if site.id % 2:
                value.fill_(7.0)
            else:
                value.numpy()[...] = np.nan
        return answer


@pytest.mark.parametrize("stack", [None, 3])
@pytest.mark.parametrize("engine", [Inline(), Processes(1)])
def test_what_a_client_writes_into_its_message_the_next_does_not_read(engine, stack, tmp_path) -> None:
    plan = small_experiment(FedAvg(), rounds=2).replace(cohort=1.0)
    plan = plan.replace(training=plan.training.replace(stack=stack))
    expected = run(plan, tmp_path / "calm", engine=Inline())
    assert run(plan.replace(method=Overwrites()), tmp_path / "run", engine=engine).state == expected.state


def long_experiment(stack: int | None) -> Experiment:
    """Clients that keep something, or equal ones that are trained in stacks."""
    plan = small_experiment(Local(), rounds=4).replace(cohort=1.0)
    if stack is None:
        return plan.replace(training=plan.training.replace(epochs=30, batch=4))
    training = plan.training.replace(epochs=150, batch=4, stack=stack, optimiser=Sgd(lr=0.01))
    return plan.replace(partition=IID(clients=6), method=FedAvg(), training=training)


def run_among_killers(folder: Path, stack: int | None) -> None:
    engine, killed = Processes(2), []

    def assassin() -> None:
        while len(killed) < 3:
            time.sleep(0.3)
            for pid in engine.pids[len(killed) % 2 :][:1]:
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)

    thread = threading.Thread(target=assassin)
    thread.start()
    run(long_experiment(stack), folder, engine=engine)
    thread.join()
    assert len(killed) == 3


@pytest.mark.parametrize("stack", [pytest.param(None, marks=long), 3])
def test_a_worker_that_is_killed_is_replaced_and_the_bits_stay(tmp_path, stack) -> None:
    """The run has a process of its own: how that ends is seen, should it end with its workers."""
    expected = run(long_experiment(stack), tmp_path / "calm", engine=Inline())
    process = multiprocessing.get_context("spawn").Process(target=run_among_killers, args=(tmp_path / "stormy", stack))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert Result.load(tmp_path / "stormy").summary["digest"] == expected.summary["digest"]


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
def test_a_task_that_raises_is_reported_in_one_sentence_with_the_users_file_and_line(tmp_path, engine, capfd) -> None:
    line = inspect.getsourcelines(Raises.train)[1] + 3
    with pytest.raises(TaskError) as caught:
        run(small_experiment(Raises()).replace(cohort=1.0), tmp_path / "run", engine=engine)
    assert str(caught.value) == f"client 2, task 'train', round 2: ZeroDivisionError: no such luck (test_processes.py:{line})"
    assert capfd.readouterr() == ("", "")


def test_inline_shows_the_exception_itself(tmp_path) -> None:
    with pytest.raises(TaskError) as caught:
        run(small_experiment(Raises()).replace(cohort=1.0), tmp_path / "run", engine=Inline())
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_a_task_that_always_takes_its_worker_down_ends_the_run(tmp_path) -> None:
    with pytest.raises(TaskError, match=r"client 2, task 'train', round 1: its worker died 3 times \(exit code 9\)"):
        run(small_experiment(Dies()).replace(cohort=1.0), tmp_path / "run", engine=Processes(2))
    assert (tmp_path / "run" / "checkpoint.safetensors").exists()
    assert not (tmp_path / "run" / "live").exists()


class Careless(FedAvg):
    """Fails in somebody else's code."""

    name: ClassVar[str] = "careless"

    @task
    def train(self, site, memory, message):
        return json.loads("{"), memory


def test_the_line_that_is_named_is_the_users_and_not_a_librarys(tmp_path) -> None:
    line = inspect.getsourcelines(Careless.train)[1] + 2
    with pytest.raises(TaskError, match=rf"JSONDecodeError: .* \(test_processes.py:{line}\)$"):
        run(small_experiment(Careless()), tmp_path / "run", engine=Inline())


class Sleepy(FedAvg):
    """Client 2 takes its time."""

    name: ClassVar[str] = "sleepy"

    @task
    def train(self, site, memory, message):
        if site.id == 2:
            time.sleep(0.5)
        return super().train(site, memory, message)


LATE = r"client 2, task 'train', round 1: late: it took more than 0.4 s \(admission.deadline\)"


def test_inline_finds_out_afterwards_who_was_late(tmp_path) -> None:
    plan = small_experiment(Sleepy(), rounds=1).replace(cohort=1.0, admission=Admission(deadline=0.4, faults="drop", quorum=0.1))
    run(plan, tmp_path / "run", engine=Inline())
    rejected = {e["client"]: e["reason"] for e in events(tmp_path / "run" / "ledger.jsonl") if e["event"] == "rejected"}
    assert re.fullmatch(LATE, rejected[2])


def test_who_is_late_stops_the_run_where_faults_do(tmp_path) -> None:
    plan = small_experiment(Sleepy(), rounds=1).replace(cohort=1.0, admission=Admission(deadline=0.4))
    with pytest.raises(TaskError, match=LATE.replace("client 2", r"client \d")):
        run(plan, tmp_path / "run", engine=Inline())


class Interrupts(FedAvg):
    """While client 2 trains, somebody presses Ctrl-C; it does not care."""

    name: ClassVar[str] = "interrupts"

    @task
    def train(self, site, memory, message):
        if site.id == 2:
            with suppress(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        return super().train(site, memory, message)


def test_a_persons_interrupt_stops_the_run_whatever_a_task_makes_of_it(tmp_path) -> None:
    before = signal.getsignal(signal.SIGINT)
    plan = small_experiment(Interrupts()).replace(cohort=1.0, admission=Admission(faults="drop"))
    with pytest.raises(Interrupted):
        run(plan, tmp_path / "run", engine=Inline())
    assert signal.getsignal(signal.SIGINT) is before


def test_inline_leaves_the_global_generators_as_they_were(tmp_path) -> None:
    random.seed(5)
    torch.manual_seed(5)
    before = random.getstate(), torch.get_rng_state()
    run(small_experiment(FedAvg(), rounds=1), tmp_path / "run", engine=Inline())
    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])


class Gambles(FedAvg):
    """Draws from global generators, as nobody should."""

    name: ClassVar[str] = "gambles"

    @task
    def train(self, site, memory, message):
        reply, memory = super().train(site, memory, message)
        noise = random.random() + float(np.random.rand()) + float(torch.rand(()))  # noqa: NPY002
        return reply.map(lambda value: value + noise), memory


def test_even_a_task_that_draws_from_global_generators_draws_the_same_everywhere(tmp_path) -> None:
    plan = small_experiment(Gambles(), rounds=2).replace(cohort=1.0)
    digests = {run(plan, tmp_path / str(at), engine=each).summary["digest"] for at, each in enumerate([Inline(), Processes(2)])}
    assert len(digests) == 1


class Spoils(FedAvg):
    """Client 2 changes something that cannot be put back."""

    name: ClassVar[str] = "spoils"

    @task
    def train(self, site, memory, message):
        if site.id == 2 and site.round == 1:
            Surroundings.restore = lambda self: False
        return super().train(site, memory, message)


def test_a_worker_in_which_something_cannot_be_put_back_is_replaced(tmp_path) -> None:
    seen: set[int] = set()
    engine = Processes(1)
    run(small_experiment(Spoils()).replace(cohort=1.0), tmp_path / "run", engine=engine, callbacks=[lambda event: seen.update(engine.pids)])
    assert len(seen) == 2


def test_a_full_disk_is_nobodys_fault_and_stops_the_run(tmp_path, monkeypatch) -> None:
    def full(*about, **more):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("coterie.engines.worker.write", full)
    with pytest.raises(TaskError, match=r"client \d, task 'train', round 1: DiskError: .*No space left on device"):
        run(small_experiment(Local()).replace(admission=Admission(faults="drop")), tmp_path / "run", engine=Inline())


def test_after_a_task_has_failed_only_the_file_of_a_memory_counts(tmp_path) -> None:
    memories = Memories(tmp_path, budget=10**6)
    memories.put(3, "1", Record(x=torch.ones(2)))
    memories.get(3, "1").tensors["x"].zero_()
    memories.let_go(3)
    assert memories.get(3, "1") == Record(x=torch.ones(2))
    assert memories._bytes == 8


SCRIPT = """
import os, signal, sys, time
import coterie
from coterie.engines import Processes
from coterie.method import task
from coterie.methods import FedAvg
from coterie.testing import small_experiment

class Hangs(FedAvg):
    @task
    def train(self, site, memory, message):
        print(f"worker {{os.getpid()}}\\n", end="", flush=True)  # in one piece: workers share a pipe
        {how}

def main():
    coterie.run(small_experiment(Hangs()), sys.argv[1], engine=Processes(2))

{guard}main()
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize(
    "how", ["time.sleep(10**6)", pytest.param("sum(iter(int, 1))", marks=long), "os.kill(os.getpid(), signal.SIGSTOP)"]
)
def test_a_worker_ends_with_its_parent_whatever_it_does(tmp_path, how) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(how=how, guard="if __name__ == '__main__': "))
    with subprocess.Popen([sys.executable, str(script), str(tmp_path / "run")], stderr=subprocess.PIPE, text=True) as parent:
        try:
            said = (line.split() for line in parent.stderr)
            workers = list(itertools.islice((int(words[1]) for words in said if words[:1] == ["worker"]), 2))
            assert all(map(alive, workers))
        finally:  # it would wait for its workers for ever, and this test for it
            parent.kill()
        parent.wait()
        until = time.monotonic() + 30
        while any(map(alive, workers)) and time.monotonic() < until:
            time.sleep(0.05)
        assert not any(map(alive, workers))


def test_a_script_without_a_guard_is_told_so_in_a_sentence(tmp_path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(how="return super().train(site, memory, message)", guard=""))
    done = subprocess.run([sys.executable, str(script), str(tmp_path / "run")], capture_output=True, text=True, check=False)
    assert done.stderr.count("Traceback") == 1
    assert "put what the script does under `if __name__ == '__main__':`" in done.stderr.splitlines()[-1]
    assert not (tmp_path / "run").exists(), "the script, once it has a guard, is not told that something is there"


def test_what_a_task_prints_does_not_reach_standard_output(tmp_path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(how="return super().train(site, memory, message)", guard="if __name__ == '__main__': "))
    for engine in ("Processes(2)", "coterie.engines.Inline()"):
        script.write_text(script.read_text().replace("Processes(2)", engine))
        done = subprocess.run([sys.executable, str(script), str(tmp_path / engine)], capture_output=True, text=True, check=True)
        assert (done.stdout, done.stderr.count("worker")) == ("", 9)


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
