"""The deployment as an ordinary Flower app: the commands of docs/deploy.md, on a SuperLink and SuperNodes that are there already."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.deployment.post import Desk
from tests.deployment.processes import PATIENCE, wait_for
from tests.forms import long

from coterie.deployment import server_app
from coterie.deployment.flower import free_port, started
from coterie.deployment.participant import Participant
from coterie.engines import Inline
from coterie.running.experiment import Experiment
from coterie.running.rounds import run

pytest.importorskip("flwr")
ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")


def commands(ports: dict[str, str]) -> list[list[str]]:
    """Of the page, with other ports."""
    (block,) = re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL)
    for old, new in ports.items():
        block = block.replace(old, new)
    return [shlex.split(line) for line in block.replace("\\\n", " ").splitlines()]


def plan() -> Experiment:
    """What the page runs."""
    (words,) = [words for words in commands({}) if words[0] == "coterie"]
    return Experiment.load(words[3], [words[at + 1] for at, word in enumerate(words) if word == "--set"])


def test_the_app_has_the_whole_experiment_in_it(tmp_path, monkeypatch) -> None:
    """The page's command, and what Flower would call with what it wrote, where there is nothing but a place to write to."""
    (words,) = [words for words in commands({}) if words[0] == "coterie"]
    subprocess.run([sys.executable, "-m", *words], cwd=tmp_path, check=True, capture_output=True, timeout=PATIENCE)
    config = tomllib.loads((tmp_path / "lab-app" / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert config["folder"] == str(tmp_path / "deployment")
    people = {at: Participant(name, tmp_path / name, engine=Inline) for at, name in enumerate(("north", "south"))}
    monkeypatch.setattr(server_app, "GridPost", lambda grid: Desk(people))
    server_app.main(None, SimpleNamespace(run_config=config | {"folder": str(tmp_path / "elsewhere")}))
    assert json.loads((tmp_path / "elsewhere" / "status.json").read_text())["state"] == "done"
    summary = json.loads((tmp_path / "elsewhere" / "run" / "summary.json").read_text())
    assert summary["digest"] == run(plan(), tmp_path / "here", engine=Inline()).summary["digest"]


@long
def test_flwr_run_on_somebody_elses_superlink_has_the_bits_of_inline(tmp_path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "FLWR_HOME": str(tmp_path / "flower"), "FLWR_TELEMETRY_ENABLED": "0"}
    (tmp_path / "flower").mkdir()
    port = str(free_port())
    (tmp_path / "flower" / "config.toml").write_text(f'[superlink.lab]\naddress = "127.0.0.1:{port}"\ninsecure = true\n')
    status = tmp_path / "deployment" / "status.json"
    with ExitStack() as stack, (tmp_path / "out").open("ab") as out:
        for words in commands({"8000": port, "9094": str(free_port()), "9095": str(free_port())}):
            if words[0].startswith("flower-"):
                process = subprocess.Popen(words, cwd=tmp_path, env=environment, stdout=out, stderr=out, start_new_session=True)
                stack.enter_context(started(process))
                wait_for(lambda: "Uvicorn running" in (tmp_path / "out").read_text(), lambda: (tmp_path / "out").read_text())
            else:
                subprocess.run(words, cwd=tmp_path, env=environment, check=True, capture_output=True, timeout=PATIENCE)
        wait_for(status.exists, lambda: (tmp_path / "out").read_text())
    assert json.loads(status.read_text())["state"] == "done", status.read_text()
    here = run(plan(), tmp_path / "here", engine=Inline())
    summary = json.loads((tmp_path / "deployment" / "run" / "summary.json").read_text())
    assert summary["digest"] == here.summary["digest"]
    assert (tmp_path / "homes" / "north" / "sent.jsonl").exists()
