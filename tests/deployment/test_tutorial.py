"""The commands of docs/deploy.md, as they stand there."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tests.deployment.processes import PATIENCE, Stage

pytest.importorskip("flwr")
ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")


def commands() -> list[list[str]]:
    """Of the tutorial: all but installing, which whoever runs tests has done."""
    lines = [line for block in re.findall(r"```bash\n(.*?)```", PAGE, flags=re.DOTALL) for line in block.splitlines()]
    return [shlex.split(line) for line in lines if not line.startswith("pip ")]


def test_the_tutorial_does_what_it_says(tmp_path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    with Stage(tmp_path) as stage:
        for command in commands():
            words = [word.replace(":8000", f":{stage.port}").replace("8000", str(stage.port)) for word in command]
            if words[:3] == ["coterie", "deploy", "server"]:
                stage.coterie("server", *words[1:])
            elif words[:3] == ["coterie", "deploy", "client"]:
                stage.coterie(words[words.index("--name") + 1], *words[1:])
            else:
                if words[1] == "report":
                    assert stage.over() == 0, stage.words("server")
                subprocess.run(words, cwd=tmp_path, env=environment, check=True, capture_output=True, timeout=PATIENCE)
    summary = json.loads((tmp_path / "deployment" / "run" / "summary.json").read_text())
    assert summary["rounds"] == 3
    assert (tmp_path / "deployment" / "run" / "report.html").exists()
    assert "weights: 9,640 bytes" in stage.words("west")
    sent = [json.loads(line) for line in (tmp_path / "homes" / "west" / "sent.jsonl").read_text().splitlines()]
    assert [set(line["kinds"]) for line in sent] == [{"weights"}] * 3
