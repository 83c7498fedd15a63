"""What a person sees while runs go on."""

from __future__ import annotations

import io
import json
import re

import pytest
from rich.console import Console
from tests.results.ledgers import ROUNDS, last_mean, write_run

from coterie.cli import progress
from coterie.cli.progress import Times, board, watching


@pytest.fixture(scope="module")
def lines(tmp_path_factory) -> list[dict]:
    folder = write_run(tmp_path_factory.mktemp("progress") / "run", "fedavg", 0)
    return [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]


def screen(width: int = 80) -> Console:
    return Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)


def text(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", console.file.getvalue())


def test_without_a_terminal_every_round_is_a_line(lines) -> None:
    console = Console(file=io.StringIO(), width=80)
    with watching(console, "toy fedavg", ROUNDS) as listeners:
        for event in lines:
            for listener in listeners:
                listener(event)
    shown = text(console).splitlines()
    assert len(shown) == ROUNDS
    assert shown[-1].startswith(f"toy fedavg  round {ROUNDS}/{ROUNDS}  global ")
    assert f"local_post {100 * last_mean('fedavg', 0):.2f}%" in shown[-1]


def test_a_bar_never_cuts_names_counts_or_times_at_eighty_columns(lines) -> None:
    console = screen()
    with board(console, runs=6) as show:
        listeners = [show(f"fedprox mu=0.1 epochs=5 seed {seed}", ROUNDS) for seed in (0, 1)]
        for event in lines[:-1]:
            for each in listeners:
                each[0](event)
    last = text(console).replace("\r", "\n").splitlines()[-3:]
    assert [line.split(" ")[0] for line in last] == ["runs", "fedprox", "fedprox"]
    for line in last[1:]:
        assert "fedprox mu=0.1 epochs=5 seed" in line
        assert re.search(rf"{ROUNDS}/{ROUNDS} +\d:\d\d", line)
        assert re.search(r"global \d\d\.\d\d%", line)
        assert len(line) <= 80
    assert "…" not in "".join(last)


def test_what_is_left_is_told_by_rounds_and_not_by_runs(lines, monkeypatch) -> None:
    """Two of six runs at half of their rounds are a sixth of the work, whatever ended at the same time."""
    told = []
    monkeypatch.setattr(Times, "render", lambda self, task: told.append((task.description, task.fields["done"])) or progress.Text(""))
    with board(screen(), runs=6) as show:
        listeners = [show(f"seed {seed}", ROUNDS)[0] for seed in (0, 1)]
        for round in range(1, ROUNDS // 2 + 1):
            for listener in listeners:
                listener({"event": "round", "round": round, "seconds": 0.1})
    assert dict(told)["runs"] == pytest.approx(1 / 6)
    assert dict(told)["seed 1"] == pytest.approx(0.5)


def test_a_resumed_run_is_timed_from_where_it_goes_on(monkeypatch) -> None:
    told = []
    monkeypatch.setattr(Times, "render", lambda self, task: told.append((task.completed, task.fields["done"])) or progress.Text(""))
    with watching(screen(), "toy", 10) as [listener]:
        listener({"event": "resume", "round": 6, "dropped_bytes": 0, "versions": {}})
        listener({"event": "round", "round": 7, "seconds": 0.1})
    assert told[-1] == (7, 0.25)


def test_quiet_is_quiet() -> None:
    with watching(screen(), "toy", 3, quiet=True) as listeners:
        assert listeners == []
