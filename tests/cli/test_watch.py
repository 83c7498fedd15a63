"""Looking at a run from another terminal."""

from __future__ import annotations

import fcntl
import io
import json
import threading
import time
from pathlib import Path

import pytest
from rich.console import Console
from tests.results.ledgers import write_run

from coterie.cli.watch import Tail, View, watch, watch_all
from coterie.errors import UserError
from coterie.methods import FedAvg
from coterie.running.rounds import run
from coterie.testing import small_experiment


def screen() -> Console:
    return Console(file=io.StringIO(), width=100, force_terminal=True)


def seen(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.fixture(scope="module")
def lines(tmp_path_factory) -> list[str]:
    folder = tmp_path_factory.mktemp("run")
    run(small_experiment(FedAvg()).replace(engine={"name": "inline"}), folder)
    return (folder / "ledger.jsonl").read_text().splitlines(keepends=True)


def test_a_finished_run_says_so_at_once(tmp_path, lines) -> None:
    (tmp_path / "ledger.jsonl").write_text("".join(lines))
    console = screen()
    assert watch(tmp_path, console).state == "finished"
    assert "conformance fedavg seed 0: finished" in seen(console)
    assert "round 3/3" in seen(console)
    last = [json.loads(line) for line in lines if '"metric":"accuracy"' in line and '"protocol":"global"' in line][-1]["value"]
    assert f"{100 * last:.2f}%" in seen(console)


def test_a_run_in_progress_is_followed_to_its_end(tmp_path, lines) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_text(lines[0])

    def write() -> None:
        with path.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            held.set()
            for line in lines[1:]:
                for half in (line[:7], line[7:]):
                    file.write(half)
                    file.flush()
                    time.sleep(0.002)

    held = threading.Event()
    console, writer = screen(), threading.Thread(target=write)
    writer.start()
    held.wait()
    view = watch(tmp_path, console, every=0.01)
    writer.join()
    assert view.state == "finished"
    assert "round 1/3" in seen(console)
    assert "round 3/3" in seen(console)
    assert "s left" in seen(console)


def test_once_is_one_image_of_what_there_is(tmp_path, lines) -> None:
    half = [line for line in lines if '"end"' not in line][: len(lines) // 2]
    (tmp_path / "ledger.jsonl").write_text("".join(half) + '{"event":"rou')
    console = screen()
    with (tmp_path / "ledger.jsonl").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert watch(tmp_path, console, once=True).state == "running"
    assert "seed 0: running" in seen(console)


def test_a_run_that_nobody_holds_was_stopped_and_watching_it_ends(tmp_path, lines) -> None:
    (tmp_path / "ledger.jsonl").write_text("".join(line for line in lines if '"end"' not in line))
    console = screen()
    assert watch(tmp_path, console).state == "stopped"
    text = " ".join(seen(console).split())
    assert "seed 0: stopped; go on with: coterie run --resume" in text
    assert "s left" not in text


def test_a_comparisons_folder_is_a_line_for_each_run(tmp_path, lines) -> None:
    for name, kept in (("a", lines), ("b", lines[: len(lines) // 2])):
        (tmp_path / name).mkdir()
        (tmp_path / name / "ledger.jsonl").write_text("".join(kept))
    console = Console(file=io.StringIO(), width=80)
    assert [view.state for view in watch_all(tmp_path, console, once=True)] == ["finished", "stopped"]
    assert seen(console).count("fedavg seed 0") == 2
    assert [view.state for view in watch_all(tmp_path, screen(), every=0.01, patience=0.05)] == ["finished", "stopped"]


def test_a_run_that_goes_on_is_read_again(tmp_path, lines) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_text("".join(lines[:-1]))
    tail = Tail(path)
    assert len(list(tail.new())) == len(lines) - 1
    assert not tail.shortened
    path.write_text("".join(lines[:4]))
    assert tail.shortened


def test_silence_is_noticed() -> None:
    view = View(Path("run"))
    view.on_event({"event": "start", "seed": 0, "experiment": {"name": "n", "method": {"name": "m"}, "rounds": 3}})
    view.on_event({"event": "rejected", "round": 1, "task": "train", "client": 0, "reason": "late"})
    console = screen()
    console.print(view.frame(silent=600))
    assert "nothing was heard for 600 s" in seen(console)
    assert "1 reply rejected" in seen(console)


def test_means_say_of_how_many_clients_and_the_setup_stands_apart(tmp_path) -> None:
    write_run(tmp_path / "run", "fedavg", 0)
    console = Console(file=io.StringIO(), width=80)
    view = watch(tmp_path / "run", console)
    text = " ".join(seen(console).split())
    last = view.tally.last("local_post")
    assert last is not None
    assert f"local_post {100 * last.value:.2f}% (6 clients)" in text
    assert "sent up 288.00 kB, down 288.00 kB, setup 5.00 kB; 770 steps, 240 more to measure personal models" in text
    assert max(map(len, seen(console).splitlines())) <= 80


def test_a_domain_is_not_taken_for_the_mean() -> None:
    view = View(Path("run"))
    about = {"event": "evaluation", "round": 1, "protocol": "intra", "client": None, "metric": "accuracy"}
    view.on_event({**about, "value": 0.5})
    view.on_event({**about, "value": 0.9, "domain": "plain"})
    console = screen()
    console.print(view.frame())
    assert "50.00%" in seen(console)
    assert "90.00%" not in seen(console)


def test_a_folder_without_a_run(tmp_path) -> None:
    with pytest.raises(UserError, match="is empty: expected a run"):
        watch_all(tmp_path, screen())
