"""The demonstration: every arm of it can work, and a small one ends with a page and commands to try."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.test_cli import call  # noqa: F401

from coterie.cli.commands import demo as command
from coterie.methods import METHODS
from coterie.studies import demo
from coterie.studies.compare import check
from coterie.studies.demo import PARTS, Part

SMALL = """
name = "small"
rounds = 1
cohort = 2
model = { name = "mlp", hidden = [8] }
method = "fedavg"
data = { source = "digits", train = 100, test = 50 }
partition = { name = "iid", clients = 2 }
evaluation = { protocols = ["global", "local_post"], targets = [0.8] }
engine = { name = "inline" }
"""


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_every_arm_can_work_and_has_a_sentence(part) -> None:
    check([arm for arm in part.arms(Path("runs")) if arm.experiment.seed == 0])
    assert all(name in METHODS for name in part.rows)
    assert part.baseline in part.rows
    assert part.protocol in part.arms(Path("runs"))[0].experiment.evaluation.protocols or part.baseline == "local"


def test_it_ends_with_a_page_that_holds_everything_and_with_commands_to_try(call, tmp_path, monkeypatch) -> None:  # noqa: F811
    (tmp_path / "small.toml").write_text(SMALL)
    rows = {"fedavg": ("a paper", "averages"), "local": ("no paper", "stays alone")}
    monkeypatch.setattr(demo, "PARTS", (Part(str(tmp_path / "small.toml"), "A title", "A sentence.", "global", rows, "fedavg", (0, 1)),))
    code, out, err = call("demo", "--jobs", "1")
    assert code == 0, err
    assert out.count("1 round ") == 4
    assert "averages (a paper)" in " ".join(out.split())
    assert "No method is shown to be better than fedavg here." in " ".join(out.split())
    page = tmp_path / "runs" / "demo" / "index.html"
    assert "A title" in page.read_text()
    assert "srcdoc=" in page.read_text()
    assert f"{sys.argv[0]} {command.NEXT[0][0]}" in out
    assert "4 of 4 runs were there already and are reused" in call("demo", "--jobs", "1")[1]
