"""The fault table of docs/deploy.md, with real processes on loopback: what is expected of a run that something happens to.

One row is in CI; `make test-long` has them all. What needs no network is in `test_participant.py`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.deployment.processes import Stage
from tests.deployment.proxy import Proxy
from tests.forms import long

from coterie.deployment.keys import make_keys
from coterie.engines import Inline
from coterie.running.experiment import Experiment
from coterie.running.rounds import run

pytest.importorskip("flwr")
NAMES = ("north", "south", "west")
OPEN = "--insecure"
EXPERIMENT = """
name = "trial"
rounds = {rounds}
data = {{ source = "digits", train = 300, test = 100 }}
partition = {{ name = "iid", clients = {clients} }}
model = {{ name = "mlp", hidden = [16] }}
method = "ditto"
training = {{ epochs = {epochs} }}
"""
"""A method whose clients keep a model; epochs enough to be killed in the middle of a task."""
SKEW = """
import datetime, os, time
shift, real = float(os.environ["SKEW"]), time.time
time.time = lambda: real() + shift
class Skewed(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return super().now(tz) + datetime.timedelta(seconds=shift)
datetime.datetime = Skewed
"""
"""A clock that is wrong, for Python: a `sitecustomize`."""


@contextmanager
def staged(
    folder: Path,
    *settings: str,
    rounds: int = 3,
    epochs: int = 150,
    names: Sequence[str] = NAMES,
    west: Callable[[Stage], None] | None = None,
) -> Iterator[Stage]:
    """Server and participants, the last of whom is west, in the first round."""
    (folder / "experiment.toml").write_text(EXPERIMENT.format(rounds=rounds, epochs=epochs, clients=len(names)))
    with Stage(folder) as stage:
        stage.server("--clients", ",".join(names), OPEN, *(word for each in settings for word in ("--set", each)))
        for name in names[:-1]:
            stage.client(name, OPEN)
        (west or (lambda stage: stage.client("west", OPEN)))(stage)
        stage.until("north is in")
        yield stage


def same_bits(stage: Stage) -> bool:
    """Whether the run ends, with everybody in every round, and the bits of `inline`."""
    assert stage.over() == 0, stage.words("server")
    here = run(Experiment.load(stage.folder / "experiment.toml"), stage.folder / "here", engine=Inline())
    return "was dropped" not in stage.log() and summary(stage)["digest"] == here.summary["digest"]


def summary(stage: Stage) -> dict:
    return json.loads((stage.folder / "deployment" / "run" / "summary.json").read_text())


def restart(stage: Stage, name: str) -> None:
    """Start somebody again who was killed."""
    if name == "server":
        stage.server("--clients", ",".join(NAMES), OPEN)
    else:
        stage.client(name, OPEN)


KILLS = {
    "a participant, mid-task": (("west",), Stage.kill),
    "a participant's machine, mid-task": (("west",), Stage.cut_power),
    "the server, mid-round": (("server",), Stage.kill),
    "the server's machine, mid-round": (("server",), Stage.cut_power),
    "both": (("server", "west"), Stage.kill),
}


@long
@pytest.mark.parametrize("kill", KILLS)
def test_who_is_killed_and_started_again_costs_nothing(kill, tmp_path) -> None:
    who, how = KILLS[kill]
    with staged(tmp_path) as stage:
        stage.until("round 1 took")
        stage.until_busy("west")
        for name in who:
            how(stage, name)
        for name in who:
            restart(stage, name)
        assert same_bits(stage), stage.log()


def test_a_kill_and_a_cut_connection_cost_nothing(tmp_path) -> None:
    """What CI has of the rows below, in one run."""
    with Proxy() as proxy:

        def through(stage: Stage) -> None:
            proxy.lead_to(stage.port)
            stage.client("west", OPEN, port=proxy.port)

        with staged(tmp_path, rounds=2, epochs=20, names=("north", "west"), west=through) as stage:
            stage.until("round 1 took")
            stage.kill("north")
            proxy.cut()
            stage.client("north", OPEN)
            proxy.heal()
            assert same_bits(stage), stage.log()


@long
def test_a_connection_that_is_cut_and_healed_costs_nothing(tmp_path) -> None:
    with Proxy() as proxy:

        def through(stage: Stage) -> None:
            proxy.lead_to(stage.port)
            stage.client("west", OPEN, port=proxy.port)

        with staged(tmp_path, west=through) as stage:
            stage.until("round 1 took")
            stage.until_busy("west")
            proxy.cut()
            time.sleep(10)
            proxy.heal()
            assert same_bits(stage), stage.log()
            assert proxy.passed > 10_000


@long
def test_who_is_killed_for_good_is_late_and_the_others_go_on(tmp_path) -> None:
    with staged(tmp_path, "admission.deadline=45", rounds=2) as stage:
        stage.until("round 1 took")
        stage.until_busy("west")
        stage.cut_power("west")
        assert stage.over() == 0, stage.words("server")
        assert "round 2: west was dropped: client 2, task 'train', round 2: late: it took more than 45 s" in stage.log()
        assert summary(stage)["rounds"] == 2


@long
def test_who_is_too_slow_is_late_and_in_again_later(tmp_path) -> None:
    with staged(tmp_path, "admission.deadline=45") as stage:
        stage.until("round 1 took")
        stage.until_busy("west")
        stage.signal(stage.running["west"], signal.SIGSTOP)
        stage.until("round 2: west was dropped: client 2, task 'train', round 2: late")
        stage.signal(stage.running["west"], signal.SIGCONT)
        assert stage.over() == 0, stage.words("server")
        assert "round 3: west was dropped" not in stage.log()


@long
def test_a_disk_that_is_full_is_its_participants_trouble(tmp_path) -> None:
    """A disk of its own, of 300 kB, under the participant's folder, as far as this system lets anybody mount one."""
    mount = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", 'mount -t tmpfs -o size=300k full home-west && exec "$@"', "sh"]
    (tmp_path / "home-west").mkdir()
    if subprocess.run([*mount, "true"], cwd=tmp_path, capture_output=True, check=False).returncode:
        pytest.skip("no disk can be mounted here")
    with staged(tmp_path, "model.hidden=[300]", west=lambda stage: stage.client("west", OPEN, before=mount)) as stage:
        assert stage.over() == 0, stage.words("server")
        assert "No space left on device" in stage.log(), stage.log() + stage.words("west")
        assert summary(stage)["rounds"] == 3


@long
def test_a_memory_that_was_damaged_on_its_disk_is_never_computed_with(tmp_path) -> None:
    with staged(tmp_path) as stage:
        stage.until("round 1 took")
        stage.kill("west")
        for path in (tmp_path / "home-west").glob("*/memory/*"):
            data = bytearray(path.read_bytes())
            data[-1] ^= 1
            path.write_bytes(data)
        stage.client("west", OPEN)
        assert stage.over() == 0, stage.words("server")
        assert "is damaged: its bytes are not those that were written" in stage.log()
        assert summary(stage)["rounds"] == 3


@long
def test_of_two_with_one_name_one_takes_part(tmp_path) -> None:
    def last(stage: Stage) -> None:
        stage.until("north is in")
        stage.client("north", OPEN, out="second")
        stage.until("a second 'north' is not let in: the first is still there")
        stage.client("west", OPEN)

    with staged(tmp_path, west=last) as stage:
        assert same_bits(stage), stage.log()
        assert not (tmp_path / "home-second" / "sent.jsonl").exists()


def skewed(folder: Path, seconds: float) -> dict[str, str]:
    """Variables with which a Python has a wrong clock."""
    (folder / "skew").mkdir()
    (folder / "skew" / "sitecustomize.py").write_text(SKEW)
    return {"PYTHONPATH": os.pathsep.join([str(folder / "skew"), os.environ.get("PYTHONPATH", "")]), "SKEW": str(seconds)}


@long
def test_a_clock_that_is_three_minutes_slow_costs_nothing(tmp_path) -> None:
    make_keys(tmp_path / "keys", NAMES)
    (tmp_path / "experiment.toml").write_text(EXPERIMENT.format(rounds=2, epochs=5, clients=len(NAMES)))
    with Stage(tmp_path) as stage:
        stage.server("--clients", ",".join(NAMES), "--set", "admission.deadline=60")
        for name in NAMES[:2]:
            stage.client(name)
        stage.client("west", **skewed(tmp_path, -200.0))
        assert same_bits(stage), stage.log()


@long
def test_a_clock_that_is_a_minute_fast_is_not_let_in(tmp_path) -> None:
    """By Flower's rule: a signature may be five minutes old, and five seconds from the future."""
    make_keys(tmp_path / "keys", NAMES)
    (tmp_path / "experiment.toml").write_text(EXPERIMENT.format(rounds=2, epochs=5, clients=len(NAMES)))
    with Stage(tmp_path) as stage:
        stage.server("--clients", ",".join(NAMES))
        stage.until("listening", tmp_path / "server.out")
        stage.client("west", **skewed(tmp_path, 60.0))
        stage.until('"POST /v1/fleet/activate-node HTTP/1.1" 401', tmp_path / "deployment" / "superlink.log")
        stage.until("are its key registered and this machine's clock right?", tmp_path / "west.out")
        assert stage.log() == ""
