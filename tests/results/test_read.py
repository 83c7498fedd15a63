"""Reading a ledger fast gives what reading it slowly gives, and damage costs no more than what it hit."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from benchmarks.report import write_ledger
from coterie.results.report.read import Amount, Run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coterie.ledger import Ledger, events
from coterie.results.report import gather, read_run, write_page
from coterie.results.summary import summarise
from coterie.running.experiment import Experiment
from coterie.running.rounds import run


def slowly(folder: Path) -> tuple[dict, dict, dict]:
    """Curves, last measurements of clients and traffic, line by line through json."""
    curves, clients, traffic = {}, {}, {}
    for event in events(folder / "ledger.jsonl"):
        if event["event"] == "exchange":
            key = (event["round"], event["direction"], event["kind"])
            before = traffic.get(key, (0, 0))
            traffic[key] = (before[0] + event["payload_bytes"], before[1] + event["framed_bytes"])
        elif event["event"] == "evaluation" and "epoch" not in event:
            key = (event["protocol"], event["metric"])
            if event["client"] is None:
                curves.setdefault(key, {})[event["round"]] = event["value"]
            else:
                clients[*key, event["client"]] = (event["round"], event["value"])
    return curves, clients, traffic


def flat(found: Run) -> tuple[dict, dict, dict]:
    curves = {(p, m): curve for p, metrics in found.curves.items() for m, curve in metrics.items()}
    clients = {(p, m, c): tuple(seen) for p, metrics in found.clients.items() for m, each in metrics.items() for c, seen in each.items()}
    traffic = {(r, *key): (amount.payload, amount.framed) for r, sent in found.traffic.items() for key, amount in sent.items()}
    return curves, clients, traffic


@pytest.fixture(scope="module")
def real(tmp_path_factory) -> Path:
    """A real run: evaluation by observation and by visit, a cohort that changes, new_clients."""
    settings = ["rounds=4", "engine.name=inline", "new_clients={count=2,epochs=2}", "training.epochs=1"]
    return run(Experiment.load("digits-two-class", settings), tmp_path_factory.mktemp("real") / "run").folder


def test_fast_is_the_same_as_slow_on_a_real_run(real) -> None:
    found = read_run(real)
    assert flat(found) == slowly(real)
    summary = summarise(events(real / "ledger.jsonl"))
    totals = summary["bytes"]
    assert (found.total("up"), found.total("down")) == (totals["up"], totals["down"])
    assert (found.total("up", setup=True), found.total("down", setup=True)) == (totals["setup_up"], totals["setup_down"])
    assert sum(found.seconds.values()) == pytest.approx(summary["seconds"])
    assert found.ended
    assert found.missing == []
    assert len(found.new_clients) == 2


def test_the_partition_is_in_the_ledger(real) -> None:
    found = read_run(real).partition
    assert found is not None
    assert (found["clients"], found["classes"], len(found["counts"])) == (10, 10, 10)
    assert all(sum(samples > 0 for samples in row) == 2 for row in found["counts"])
    assert [sum(column) for column in zip(*found["counts"], strict=True)] == found["totals"]


def test_names_that_look_like_json_are_read_right(tmp_path) -> None:
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        for odd in ('a,"client":7,b', 'q"uo\\te', "é", ',"value":1}'):
            for round in (1, 2, 2):
                sizes = {"payload_bytes": 3, "framed_bytes": 4}
                ledger.write("exchange", round=round, task=odd, client=1, direction="up", kind=odd, **sizes)
                ledger.write("evaluation", round=round, protocol=odd, client=3, metric=odd, value=round / 7)
                ledger.write("evaluation", round=round, protocol=odd, client=None, metric=odd, value=round / 3)
    assert flat(read_run(tmp_path)) == slowly(tmp_path)


def test_every_message_of_another_size(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("coterie.results.report.read.FORGET", 10)
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        for number in range(100):
            sizes = {"payload_bytes": number // 2, "framed_bytes": number}
            ledger.write("exchange", round=number // 10, task="train", client=number % 3, direction="up", kind="logits", **sizes)
    assert flat(read_run(tmp_path)) == slowly(tmp_path)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, 10**6), garbage=st.binary(max_size=12))
def test_half_a_ledger_is_a_report_of_its_half(comparison_folder, tmp_path, cut, garbage) -> None:
    whole = (comparison_folder / "fedprox-s1" / "ledger.jsonl").read_bytes()
    first = whole.index(b"\n") + 1
    kept = whole[: first + cut % (len(whole) - first)]
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(kept + garbage.replace(b"\n", b""))
    found = read_run(tmp_path)
    (tmp_path / "whole").mkdir(exist_ok=True)
    (tmp_path / "whole" / "ledger.jsonl").write_bytes(kept[: kept.rfind(b"\n") + 1])
    if not garbage.strip():
        assert flat(found) == slowly(tmp_path / "whole")
    assert any("no end" in sentence for sentence in found.missing)
    assert write_page(gather([tmp_path]), tmp_path / "report.html").stat().st_size < 6e6


def test_damage_in_the_middle_costs_only_the_lines_it_hit(comparison_folder, tmp_path) -> None:
    lines = (comparison_folder / "fedavg-s0" / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    hit = [at for at, line in enumerate(lines) if b'"exchange"' in line][5]
    lost = [at for at, line in enumerate(lines) if b'"local_post","client":2' in line][-1]
    lines[hit] = lines[hit][:40] + b"\x00\xff\n"
    lines[lost] = lines[lost].replace(b'"value":0.', b'"value":0.x')
    lines[-1] = b"[1, 2]\n"
    (tmp_path / "ledger.jsonl").write_bytes(b"".join(lines))
    found, whole = read_run(tmp_path), read_run(comparison_folder / "fedavg-s0")
    assert found.missing[0] == f"3 lines are damaged and left out (lines {hit + 1}, {lost + 1}, {len(lines)})"
    assert "no end" in found.missing[-1]
    assert found.total("up") + found.total("down") == whole.total("up") + whole.total("down") - 4000
    assert found.clients["local_post"]["accuracy"][2].round == 11
    assert found.curves == whole.curves


def test_a_lost_first_line_and_lost_rounds_are_told(comparison_folder, tmp_path) -> None:
    lines = (comparison_folder / "fedavg-s0" / "ledger.jsonl").read_text().splitlines(keepends=True)[1:]
    lines = [line for line in lines if '"event":"round","round":3' not in line]
    (tmp_path / "ledger.jsonl").write_text("".join(lines))
    assert read_run(tmp_path).missing == [
        "its first line, which names the experiment and the seed, is lost",
        "1 of 12 rounds has lost the line with the seconds",
    ]
    assert "global" in write_page(gather([tmp_path]), tmp_path / "report.html").read_text()


def test_a_ledger_of_ten_thousand_rounds_and_a_hundred_clients(tmp_path) -> None:
    """Two million exchanges: ten seconds of this machine's time at most, and a page that says that its curves are thinned."""
    folder = write_ledger(tmp_path / "run", rounds=10_000, clients=100)
    began = time.process_time()
    found = gather([folder])
    page = write_page(found, tmp_path / "report.html")
    assert time.process_time() - began < 10
    assert found.runs[0].total("up") == 10_000 * 100 * 220_840
    assert found.runs[0].traffic[7777]["down", "weights"] == Amount(100 * 220_840, 100 * 221_376)
    assert page.stat().st_size < 2e6
    assert "300 of 10,000 measured rounds are drawn" in page.read_text()
