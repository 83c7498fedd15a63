"""Reading a ledger fast gives what folding it line by line gives, and damage costs no more than what it hit."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.report import write_ledger
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coterie.ledger import Ledger
from coterie.results.gather import gather
from coterie.results.read import read_run
from coterie.results.report import write_page
from coterie.results.tally import Amount, Seen, Tally
from coterie.running.experiment import Experiment
from coterie.running.rounds import run


def slowly(folder: Path) -> Tally:
    return Tally.read(folder / "ledger.jsonl")


@pytest.fixture(scope="module")
def real(tmp_path_factory) -> Path:
    """A real run: clients that are measured in training, a cohort that changes, new clients."""
    settings = ["rounds=4", "engine.name=inline", "new_clients={count=2,epochs=2}", "training.epochs=1"]
    return run(Experiment.load("digits-two-class", settings), tmp_path_factory.mktemp("real") / "run").folder


def test_fast_is_the_same_as_slow_on_a_real_run(real) -> None:
    found = read_run(real)
    assert found.tally == slowly(real)
    assert found.tally.ended
    assert found.missing == []
    assert len(found.tally.new_clients) == 2


def test_fast_is_the_same_as_slow_on_everything_a_ledger_can_hold(comparison_folder) -> None:
    for folder in comparison_folder.iterdir():
        assert read_run(folder).tally == slowly(folder)


def test_the_partition_is_in_the_ledger(real) -> None:
    found = read_run(real).tally.partition
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
    assert read_run(tmp_path).tally == slowly(tmp_path)


def test_a_client_that_is_measured_twice_in_a_round_has_its_later_value(tmp_path) -> None:
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        for round, values in ((1, (0.1,)), (2, (0.2, 0.3))):
            for value in values:
                ledger.write("evaluation", round=round, protocol="local_post", client=3, metric="accuracy", value=value)
    assert read_run(tmp_path).tally.clients["local_post"]["accuracy"] == {3: Seen(2, 0.3)}
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        ledger.write("evaluation", round=2, protocol="local_post", client=3, metric="accuracy", value=0.4, final=True)
    assert read_run(tmp_path).tally == slowly(tmp_path)


def test_every_message_of_another_size(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("coterie.results.read.FORGET", 10)
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        for number in range(100):
            sizes = {"payload_bytes": number // 2, "framed_bytes": number}
            ledger.write("exchange", round=number // 10, task="train", client=number % 3, direction="up", kind="logits", **sizes)
    assert read_run(tmp_path).tally == slowly(tmp_path)


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
        assert found.tally == slowly(tmp_path / "whole")
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
    sent, all_sent = (sum(tally.total(way) for way in ("up", "down")) for tally in (found.tally, whole.tally))
    assert sent == all_sent - 4000
    assert found.tally.clients["local_post"]["accuracy"][2].round == 11
    assert found.tally.means == whole.tally.means


def test_a_damaged_matrix_is_named_and_the_rest_is_whole(comparison_folder, tmp_path) -> None:
    lines = (comparison_folder / "fedavg-s0" / "ledger.jsonl").read_text().splitlines(keepends=True)
    hit = next(at for at, line in enumerate(lines) if '"public correlation"' in line)
    lines[hit] = lines[hit].replace("-0.5", "-0.5.5")
    (tmp_path / "ledger.jsonl").write_text("".join(lines))
    found = read_run(tmp_path)
    assert found.missing == ["its last line of the log 'public correlation' is damaged"]
    assert ("public correlation", None) not in found.tally.logs
    assert ("alpha and beta", None) in found.tally.logs


def test_a_lost_first_line_and_lost_rounds_are_told(comparison_folder, tmp_path) -> None:
    lines = (comparison_folder / "fedavg-s0" / "ledger.jsonl").read_text().splitlines(keepends=True)[1:]
    lines = [line for line in lines if '"event":"round","round":3' not in line]
    (tmp_path / "ledger.jsonl").write_text("".join(lines))
    assert read_run(tmp_path).missing == [
        "its first line, which names the experiment and the seed, is lost",
        "1 of 12 rounds has lost the line with the seconds",
    ]
    assert "global" in write_page(gather([tmp_path]), tmp_path / "report.html").read_text()


def test_a_ledger_of_a_thousand_rounds_is_parsed_once_a_round_and_not_once_a_message(tmp_path, monkeypatch) -> None:
    """Two hundred thousand exchanges; how long ten times as many take is for `benchmarks/report.py` to say."""
    folder = write_ledger(tmp_path / "run", rounds=1000, clients=100, measured=True)
    parsed: list[str] = []
    take = Tally.on_event

    def counted(tally: Tally, event: dict) -> None:
        parsed.append(event["event"])
        take(tally, event)

    monkeypatch.setattr(Tally, "on_event", counted)
    found = gather([folder])
    assert parsed.count("exchange") < 200 + 2 * 1000
    assert parsed.count("evaluation") < 300 + 4 * 1000
    [tally] = found.tallies
    assert tally.total("up") == 1000 * 100 * 220_840
    assert tally.traffic[777]["down", "weights"] == Amount(100 * 220_840, 100 * 221_376)
    page = write_page(found, tmp_path / "report.html")
    assert page.stat().st_size < 2e6
    assert "300 of 1,000 measured rounds are drawn" in page.read_text()


def test_models_on_every_domain_are_read_by_their_pieces_too(tmp_path, monkeypatch) -> None:
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        for round in range(1, 31):
            for client in range(4):
                about = {"round": round, "protocol": "domain", "client": client, "metric": "accuracy"}
                for domain in ("plain", "noisy"):
                    ledger.write("evaluation", **about, domain=domain, value=0.01 * round + 0.1 * client)
            ledger.write("evaluation", round=round, protocol="intra", client=None, metric="accuracy", clients=4, value=0.01 * round)
    assert read_run(tmp_path).tally == slowly(tmp_path)
    parsed: list[int] = []
    take = Tally.on_event
    monkeypatch.setattr(Tally, "on_event", lambda tally, event: (parsed.append(1), take(tally, event))[1])
    read_run(tmp_path)
    assert len(parsed) < 4 * 2 + 30 * 2 + 4 * 2 + 1
