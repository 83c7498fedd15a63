"""The deployment as an ordinary Flower app: the commands of docs/deploy.md, on a SuperLink and SuperNodes that are there already."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.deployment.processes import PATIENCE, wait_for

from coterie.deployment.flower import free_port, started
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
    here = run(Experiment.load("digits-two-class", ["rounds=2", "partition.clients=2", "cohort=1.0"]), tmp_path / "here", engine=Inline())
    summary = json.loads((tmp_path / "deployment" / "run" / "summary.json").read_text())
    assert summary["digest"] == here.summary["digest"]
    assert (tmp_path / "homes" / "north" / "sent.jsonl").exists()
