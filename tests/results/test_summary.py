"""A run in one page of numbers, by hand."""

from __future__ import annotations

import pytest
from tests.results.ledgers import CLIENTS, ROUNDS, last_mean, write_run

from coterie.errors import RunError
from coterie.results.summary import summarise
from coterie.results.tally import Tally


def test_numbers_by_hand() -> None:
    lines: list[dict] = [{"event": "start", "experiment": {"evaluation": {"targets": [0.5]}}}]
    sent = {"event": "exchange", "direction": "up", "kind": "weights", "payload_bytes": 10, "framed_bytes": 12}
    lines.append({**sent, "round": 0, "kind": "data", "payload_bytes": 7, "framed_bytes": 7})
    for round, value in enumerate([0.1, 0.6, 0.4, 0.5, 0.6, 0.45, 0.7], 1):
        lines.append({**sent, "round": round})
        lines.append({"event": "evaluation", "round": round, "protocol": "global", "client": None, "metric": "accuracy", "value": value})
        lines.append({"event": "round", "round": round, "seconds": 0.5})
    summary = summarise(Tally.of(lines))
    assert summary["protocols"]["global"]["accuracy"] == {"last": 0.7, "best": 0.7, "mean_of_last_five": pytest.approx(0.53)}
    assert summary["seconds"] == 3.5
    assert summary["bytes"]["framed_up"] == 84
    assert (summary["bytes"]["up"], summary["bytes"]["setup_up"]) == (70, 7)
    assert (summary["bytes"]["by_kind"], summary["bytes"]["setup_by_kind"]) == ({"weights": 70}, {"data": 7})


def test_bytes_to_a_target_include_the_setup() -> None:
    """As every other view has it; centralised once reached its target at 0 B here."""
    sent = {"event": "exchange", "direction": "up", "kind": "data", "payload_bytes": 103_820, "framed_bytes": 103_820}
    seen = {"event": "evaluation", "protocol": "global", "client": None, "metric": "accuracy"}
    start = {"event": "start", "experiment": {"evaluation": {"targets": [0.8]}}}
    summary = summarise(Tally.of([start, {**sent, "round": 0}, *({**seen, "round": r, "value": 0.9} for r in range(1, 6))]))
    assert summary["targets"]["global"]["0.8"]["first_crossing"] == {"round": 1, "bytes": 103_820}
    assert summary["targets"]["global"]["0.8"]["running_mean"] == {"round": 5, "bytes": 103_820}


def test_a_mean_over_clients_says_how_many_and_what_it_hides(tmp_path) -> None:
    found = summarise(Tally.read(write_run(tmp_path / "run", "fedavg", 0) / "ledger.jsonl"))
    accuracy = found["protocols"]["local_post"]["accuracy"]
    assert accuracy["last"] == pytest.approx(last_mean("fedavg", 0))
    assert accuracy["clients"] == CLIENTS
    assert accuracy["worst"] < accuracy["last"]
    assert "clients" not in found["protocols"]["global"]["accuracy"]
    assert found["work"]["pretraining"]["steps"] == 50
    assert found["work"]["rounds"]["steps"] == 60 * ROUNDS
    assert found["work"]["evaluation"]["steps"] == 20 * ROUNDS
    assert found["work"]["last_loss"] == pytest.approx(2 * 0.8**ROUNDS)
    assert len(found["classes"]["global"]) == 4


def test_nothing_measured_is_an_error() -> None:
    start = {"event": "start", "experiment": {"evaluation": {"protocols": ["local_post"], "targets": []}}}
    with pytest.raises(RunError, match="nothing was measured under 'local_post'"):
        summarise(Tally.of([start, {"event": "end"}]))
