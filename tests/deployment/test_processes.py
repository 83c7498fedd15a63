"""A deployment with real processes on loopback: keys, intruders, a client and a server that are killed, and the bits of `inline`."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest
from tests import digests
from tests.deployment.processes import Stage
from tests.forms import long

from coterie.deployment.keys import make_keys
from coterie.engines import Inline
from coterie.running.experiment import Experiment
from coterie.running.rounds import run

pytest.importorskip("flwr")
THREE = "north,south,west"
EXPERIMENT = """
name = "trial"
rounds = 4
data = { source = "digits", train = 300, test = 100 }
partition = { name = "iid", clients = 3 }
model = { name = "mlp", hidden = [16] }
method = "ditto"
"""
LARGE = """
name = "large"
rounds = 1
data = { source = "digits", train = 40, test = 10 }
partition = { name = "iid", clients = 1 }
model = { name = "mlp", hidden = [8192, 8192] }
method = "fedavg"
training = { steps = 1 }
"""
"""A model of 270 MB, and hardly any training."""


@long
def test_with_keys_intruders_and_kills_the_bits_are_those_of_inline(tmp_path) -> None:
    (tmp_path / "experiment.toml").write_text(EXPERIMENT)
    keys = make_keys(tmp_path / "keys", [*THREE.split(","), "stranger"])
    make_keys(tmp_path / "other", ["north"])
    with Stage(tmp_path) as stage:
        stage.server("--clients", THREE)
        stage.intrude()
        for name in THREE.split(","):
            stage.client(name)
        stage.until("round 1 took")
        stage.keeps_out()
        stage.kill("west")
        stage.client("west")
        stage.until("round 2 took")
        stage.kill("server")
        stage.server("--clients", THREE)
        assert stage.over() == 0, stage.words("server")
    here = run(Experiment.load(tmp_path / "experiment.toml"), tmp_path / "here", engine=Inline())
    there = json.loads((tmp_path / "deployment" / "run" / "summary.json").read_text())
    assert there["digest"] == here.summary["digest"]
    assert "stranger" not in stage.log()
    assert oct(keys.key.stat().st_mode)[-3:] == "600"
    assert "stopped" in stage.words("south")


@long
@pytest.mark.parametrize("case", ["fedavg", "fedfusion conv", "fml", "fccl", "split-metadata"])
def test_every_kind_of_method_has_the_bits_of_inline(case, tmp_path) -> None:
    table = digests.BASE | digests.CASES[next(name for name in digests.CASES if name.startswith(case))] | {"rounds": 2, "cohort": 2}
    plan = Experiment.parse(table | {"partition": {"name": "iid", "clients": 2}})
    (tmp_path / "experiment.toml").write_text(toml(plan))
    with Stage(tmp_path) as stage:
        stage.server("--clients", "north,south", "--insecure")
        for name in ("north", "south"):
            stage.client(name, "--insecure")
        assert stage.over() == 0, stage.words("server")
    here = run(plan, tmp_path / "here", engine=Inline())
    assert json.loads((tmp_path / "deployment" / "run" / "summary.json").read_text())["digest"] == here.summary["digest"]


def toml(plan: Experiment) -> str:
    """An experiment as a file; values of JSON without null are values of TOML, tables inline."""

    def value(each: object) -> str:
        if isinstance(each, dict):
            return "{" + ", ".join(f"{json.dumps(key)} = {value(inner)}" for key, inner in each.items() if inner is not None) + "}"
        if isinstance(each, list):
            return "[" + ", ".join(map(value, each)) + "]"
        return json.dumps(each)

    return "\n".join(f"{key} = {value(each)}" for key, each in plan.resolved().items() if each is not None)


@long
def test_a_message_of_hundreds_of_megabytes_arrives(tmp_path) -> None:
    """Flower cuts an array in pieces of 5 MiB; no piece is near the 2 GB that a single message of its may have."""
    (tmp_path / "experiment.toml").write_text(LARGE)
    with Stage(tmp_path) as stage:
        stage.server("--clients", "north", "--insecure")
        stage.client("north", "--insecure")
        assert stage.over() == 0, stage.words("server")
    events = [json.loads(line) for line in (tmp_path / "deployment" / "run" / "ledger.jsonl").read_text().splitlines()]
    moved = {event["direction"]: event["payload_bytes"] for event in events if event["event"] == "exchange"}
    assert min(moved.values()) > 270e6
    here = run(Experiment.load(tmp_path / "experiment.toml"), tmp_path / "here", engine=Inline())
    assert json.loads((tmp_path / "deployment" / "run" / "summary.json").read_text())["digest"] == here.summary["digest"]


@long
def test_a_key_of_ones_own_opens_a_server_at_another_address(tmp_path) -> None:
    """As on machines of their own: the certificate is for the address, and the server has only the public half of the key."""
    if shutil.which("ssh-keygen") is None:
        pytest.skip("no ssh-keygen here")
    (tmp_path / "experiment.toml").write_text(EXPERIMENT)
    keys, own = make_keys(tmp_path / "keys", ["north"], ["127.0.0.2"]), tmp_path / "own"
    own.mkdir()
    subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", str(own / "north.key")], check=True)
    shutil.move(own / "north.key.pub", keys.public("north"))
    keys.participant("north").unlink()
    shutil.copy(keys.ca, own)
    with Stage(tmp_path) as stage:
        stage.server("--clients", "north", "--host", "127.0.0.2", "--set", "partition.clients=1", "--set", "rounds=1")
        stage.client("north", "--server", f"127.0.0.2:{stage.port}", "--keys", "own")
        assert stage.over() == 0, stage.words("server")
    assert "was dropped" not in stage.log()
