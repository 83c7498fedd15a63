"""Workers map the data; they do not copy it. Measured as proportional set size, which counts a shared page once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from coterie.engines import Processes
from coterie.engines.engine import EVALUATE, Job, RunContext
from coterie.record import Record, write
from coterie.running.experiment import Experiment
from coterie.site import SERVER, ModelCache, Visit

PICTURES = "pool.x.npy"


def held(pids: list[int]) -> int:
    """Bytes of the images' file that these processes hold, shared pages counted once."""
    total = 0
    for pid in pids:
        for block in re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", Path(f"/proc/{pid}/smaps").read_text()):
            if PICTURES in block.splitlines()[0]:
                total += 1024 * int(re.search(r"^Pss:\s+(\d+) kB", block, re.M)[1])
    return total


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux's /proc/PID/smaps")
def test_two_workers_hold_the_data_once(data_folder, tmp_path) -> None:
    plan = Experiment.load("mnist-shards", ["model=mlp", "training.batch=all"])
    population = plan.population(data_folder)
    size = population.pool.x.nbytes
    assert size == 70_000 * 784
    state = Record(model=population.site(SERVER, 0, ModelCache()).fresh())
    found = {}
    for workers in (1, 2):
        folder = tmp_path / str(workers)
        engine = Processes(workers)
        engine.open(RunContext(plan.method, population, folder))
        write(state, folder / "live" / "state.safetensors")
        # Every worker reads every image: all clients' test slices, and the server's, several times over.
        look = {"task": EVALUATE, "round": 1, "message": str(folder / "live" / "state.safetensors")}
        list(engine.deliver([Job(client=SERVER, visit=Visit(("global",), span=(0, 10_000)), **look) for _ in range(4)]))
        train = [Job(client=client, task="train", round=1, message=look["message"]) for client in range(100)]
        for _ in range(2):
            list(engine.deliver(train))
        found[workers] = held(engine.pids)
        engine.close()
    assert 0.7 * size < found[1] <= 1.01 * size, "one worker touched most pages, and holds none twice"
    assert found[2] - found[1] < 0.1 * size
    assert found[2] <= 1.01 * size
