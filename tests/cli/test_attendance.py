"""What the server of a deployment shows in a terminal, and what it says where there is none."""

from __future__ import annotations

import io
import json
import re
from collections import Counter

import pytest
from rich.console import Console
from tests.deployment.post import NAMES, Clock, Desk, deploy, people

from coterie.cli.attendance import Attendance
from coterie.cli.commands import deploy as command
from coterie.cli.commands.run import _check_run
from coterie.deployment.server_app import Deployment
from coterie.errors import UserError
from coterie.framing import Letter
from coterie.methods import METHODS
from coterie.running.admission import Admission
from coterie.testing import small_experiment

pytest.importorskip("flwr")


def screen() -> Console:
    return Console(file=io.StringIO(), width=100, force_terminal=True)


def rows(console: Console) -> dict[str, list[str]]:
    """The last image's participants: the words of each one's row."""
    assert isinstance(console.file, io.StringIO)
    lines = [re.split(r"\s{2,}", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line).strip()) for line in console.file.getvalue().splitlines()]
    return {words[0]: words[1:] for words in lines if words[0] in NAMES}


def shown(folder) -> dict[str, list[str]]:
    console = screen()
    console.print(Attendance(folder / "deployment", NAMES).frame())
    return rows(console)


def test_before_anybody_is_there_everybody_is_waited_for(tmp_path) -> None:
    assert shown(tmp_path) == {name: ["not here yet", "-", "0 B", "0 B", "0"] for name in NAMES}


def test_it_shows_who_is_in_who_is_late_and_everybodys_bytes(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("coterie.engines.flower.time", Clock())
    seen: dict[str, list[str]] = {}

    def change(asked: Letter, answer: Letter) -> Letter | None:
        if asked.fields.get("client") == 4:  # the last to be asked: the others have been
            seen.update(shown(tmp_path))
        return None if asked.fields.get("client") == 1 else answer

    plan = small_experiment(METHODS.resolve("ditto"), rounds=2, cohort=1.0, admission=Admission(deadline=6.0))
    there = deploy(tmp_path / "deployment", plan, Desk(people(tmp_path), change))
    assert seen["north"][0].startswith("at work for 0:0")
    now, moved = shown(tmp_path), Counter[tuple[int, str]]()
    for line in (there.folder / "ledger.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["event"] == "exchange":
            moved[event["client"], event["direction"]] += event["payload_bytes"]
    assert now["east"][0].startswith("late for 0:0")
    assert now["east"][4] == "2"
    assert now["east"][2] == "0 B"
    assert {name: words[0] for name, words in now.items() if name != "east"} == dict.fromkeys(set(NAMES) - {"east"}, "in")
    for client, name in enumerate(NAMES):
        assert now[name][2:4] == [f"{moved[client, way] / 1e3:.2f} kB" if moved[client, way] else "0 B" for way in ("up", "down")]


def test_where_there_is_no_terminal_a_round_is_a_line(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("coterie.engines.flower.time", Clock())
    there = deploy(tmp_path / "deployment", small_experiment(METHODS.resolve("fedavg"), rounds=2, cohort=1.0), Desk(people(tmp_path)))
    lines = [line for line in (tmp_path / "deployment" / "deployment.log").read_text().splitlines() if "round" in line]
    assert len(lines) == 2
    assert lines[1].endswith(
        f"global {100 * there.summary['protocols']['global']['accuracy']['last']:.2f}%; so far 48.40 kB up, 48.40 kB down"
    )


def test_a_deployments_run_goes_on_with_its_participants_only(tmp_path) -> None:
    made = Deployment.new(tmp_path, small_experiment(METHODS.resolve("fedavg")), NAMES, 5).begun()
    with pytest.raises(UserError, match=r"its clients are participants; go on with: coterie deploy server \.\.\. --out"):
        _check_run(None, made.folder / "run", fresh=False, changed=False)


def test_the_command_shows_it_in_a_terminal_and_only_there(tmp_path, monkeypatch) -> None:
    made = Deployment.new(tmp_path, small_experiment(METHODS.resolve("fedavg")), NAMES, 5).begun()
    for console, found in ((screen(), set(NAMES)), (Console(file=io.StringIO()), set[str]())):
        monkeypatch.setattr(command, "console", console)
        with command._shown(made) as look:
            look()
        assert rows(console).keys() == found
