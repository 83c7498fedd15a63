"""What the ledger says of a message depends on the message, and not on where it lay before."""

from __future__ import annotations

import torch

from coterie.methods import FedProto
from coterie.record import Record, decode, encode
from coterie.running.rounds import resume, run
from coterie.running.traffic import kinds_of
from coterie.testing import small_experiment


def test_a_message_that_was_stored_is_counted_in_the_same_lines() -> None:
    """A resumed run reads its state back in another order than it was made in."""
    record = Record(prototypes=torch.ones(3, dtype=torch.float64), counts=torch.ones(2, dtype=torch.int64), model={"w": torch.ones(4)})
    stored = decode(encode(record))
    assert list(stored.tensors) != list(record.tensors)
    assert list(kinds_of(stored).items()) == list(kinds_of(record).items())


def test_a_run_that_was_stopped_before_its_first_round_has_the_same_exchanges(tmp_path) -> None:
    plan = small_experiment(FedProto(), rounds=1)

    def exchanges(folder) -> list[str]:
        return [line for line in (folder / "ledger.jsonl").read_text().splitlines() if '"exchange"' in line]

    class Stop(Exception):
        """Stands for a kill."""

    def stop(event) -> None:
        if event["event"] == "exchange":
            raise Stop

    whole = run(plan, tmp_path / "whole")
    try:
        run(plan, tmp_path / "stopped", callbacks=[stop])
    except Stop:
        resume(tmp_path / "stopped")
    assert exchanges(tmp_path / "stopped") == exchanges(whole.folder)
