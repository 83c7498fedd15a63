"""More rounds for a finished run."""

from __future__ import annotations

import pytest

from coterie.engines import Inline
from coterie.errors import UserError
from coterie.ledger import LEDGER, events
from coterie.methods.ditto import Ditto
from coterie.running.extending import extended
from coterie.running.result import Result
from coterie.running.rounds import resume, run
from coterie.testing import small_experiment

PLAN = small_experiment(Ditto()).replace(rounds=2)


def test_a_longer_run_has_the_bits_of_one_that_was_meant_to_be_so_long(tmp_path) -> None:
    short = run(PLAN, tmp_path / "short", engine=Inline())
    before = (short.folder / LEDGER).read_bytes()
    longer = resume(extended(short.folder, 4, tmp_path / "longer"), engine=Inline())
    meant = run(PLAN.replace(rounds=4), tmp_path / "meant", engine=Inline())
    assert longer.summary["digest"] == meant.summary["digest"]
    assert longer.summary["protocols"] == meant.summary["protocols"]
    starts = [next(events(each.folder / LEDGER)) for each in (longer, meant)]
    assert starts[0]["digest"] == starts[1]["digest"]
    assert starts[0]["extends"] == {"rounds": 2}
    assert (short.folder / LEDGER).read_bytes() == before


def test_more_rounds_are_more(tmp_path) -> None:
    short = run(PLAN, tmp_path / "short", engine=Inline())
    with pytest.raises(UserError, match=r"--rounds 2: the run in .* has 2 rounds already, expected more"):
        extended(short.folder, 2)
    with pytest.raises(UserError, match="is not empty"):
        extended(short.folder, 3, short.folder)
    with pytest.raises(UserError, match="there is no ledger"):
        extended(tmp_path / "nothing", 3)


def test_a_finished_run_whose_last_checkpoint_is_damaged_is_called_so(tmp_path) -> None:
    run(PLAN, tmp_path / "short", engine=Inline())
    (tmp_path / "short" / "checkpoint.safetensors").write_bytes(b"x")
    for ask in (lambda: extended(tmp_path / "short", 3), lambda: Result.load(tmp_path / "short")):
        with pytest.raises(
            UserError, match=r"checkpoint\.safetensors is damaged: .*; go on from the checkpoint before it with coterie run"
        ):
            ask()
