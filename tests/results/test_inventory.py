"""What lies in a folder of runs, and what of it can go."""

from __future__ import annotations

import pytest
from tests.results.ledgers import write_run

from coterie.errors import UserError
from coterie.ledger import LEDGER, Ledger
from coterie.results.frames import frame, frames
from coterie.results.inventory import going_on, inventory, removable, remove


@pytest.fixture
def folder(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path / "runs" / f"fedavg-s{seed}", "fedavg", seed)
    (tmp_path / "runs" / "linked").symlink_to(tmp_path / "runs" / "fedavg-s0")
    return tmp_path / "runs"


def test_every_run_is_listed_once(folder) -> None:
    found = inventory(folder)
    assert [(each.method, each.seed) for each in found] == [("fedavg", 0), ("fedavg", 1)]
    assert all(each.disk > 0 for each in found)


def test_a_run_whose_ledger_is_held_goes_on(folder) -> None:
    run = folder / "fedavg-s0"
    assert not going_on(run)
    with Ledger(run / LEDGER):
        assert going_on(run)
        assert inventory(run)[0].state == "going on"
    assert not going_on(run)


def test_what_can_be_made_again_goes_and_the_rest_stays(folder) -> None:
    run = folder / "fedavg-s0"
    (run / "summary.json").write_text("{}")
    (run / "memory").mkdir()
    for name in ("checkpoint.safetensors", "memory/0.1-1.safetensors", "mine.txt"):
        (run / name).write_text("x")
    other = folder / "fedavg-s1" / "checkpoint.safetensors"
    other.write_text("of a run that is not finished")
    (folder / "fedavg-s1" / "summary.json").unlink(missing_ok=True)
    files = removable(folder)
    assert sorted(path.name for path in files) == ["0.1-1.safetensors", "checkpoint.safetensors"]
    remove(files)
    assert (run / "mine.txt").exists()
    assert (run / LEDGER).exists()
    assert other.exists()
    assert not (run / "memory").exists()


def test_frames_have_a_row_for_each_event(folder) -> None:
    pytest.importorskip("pandas")
    one, both = frame(folder / "fedavg-s0"), frames(folder / "fedavg-s0", folder / "fedavg-s1")
    assert len(one) == (folder / "fedavg-s0" / LEDGER).read_text().count("\n")
    assert set(both["seed"]) == {0, 1}
    assert list(both.columns[:4]) == ["run", "name", "method", "seed"]
    with pytest.raises(UserError, match="there is no run in"):
        frames(folder / "nothing")
