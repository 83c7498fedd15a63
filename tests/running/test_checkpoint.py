"""What a run can go on from, and what it does when some of that is damaged."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from coterie import durable
from coterie.engines import Inline
from coterie.errors import Interrupted, RunError
from coterie.ledger import events
from coterie.methods import FedAvg, Local
from coterie.record import Record, RecordError, read, write
from coterie.running import checkpoint
from coterie.running.checkpoint import CHECKPOINT, PREVIOUS, latest
from coterie.running.rounds import resume, run
from coterie.testing import small_experiment

KEEPING = small_experiment(Local(), rounds=4)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run that went through, and one that was stopped in its fourth round."""
    folder = tmp_path_factory.mktemp("runs")
    calm = run(KEEPING, folder / "calm", engine=Inline())

    def stop(event) -> None:
        if event["event"] == "round" and event["round"] == 4:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        run(KEEPING, folder / "stopped", engine=Inline(), callbacks=[stop])
    return folder, calm.summary["digest"]


@pytest.fixture
def stopped(runs, tmp_path) -> Path:
    shutil.copytree(runs[0] / "stopped", tmp_path / "run")
    return tmp_path / "run"


def spoil(path: Path, at: int = -1) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def resumed(folder: Path) -> dict:
    return next(event for event in events(folder / "ledger.jsonl") if event["event"] == "resume")


def test_two_checkpoints_are_kept_with_all_that_they_need(stopped) -> None:
    newest, older = (read(stopped / name, "a checkpoint") for name in (CHECKPOINT, PREVIOUS))
    assert (newest.number("round"), older.number("round")) == (3, 2)
    found = latest(stopped)
    named = found.memories.items() | found.spare.items()
    assert found.spare
    kept = {path.name for path in (stopped / "memory").iterdir() if ".4-" not in path.name}  # the fourth round was under way
    assert kept == {f"{client}.{version}.safetensors" for client, version in named}


@pytest.mark.parametrize("how", ["flipped", "empty", "cut", "gone", "another file"])
def test_the_checkpoint_before_stands_in_for_a_damaged_one(runs, stopped, how) -> None:
    path = stopped / CHECKPOINT
    match how:
        case "flipped":
            spoil(path)
        case "empty":
            path.write_bytes(b"")
        case "cut":
            path.write_bytes(path.read_bytes()[:-100])
        case "gone":
            path.unlink()
        case "another file":
            shutil.copy(next((stopped / "memory").iterdir()), path)
    assert resume(stopped, engine=Inline()).summary["digest"] == runs[1]
    line = resumed(stopped)
    assert line["round"] == 2
    assert ("damaged" in line) == (how != "gone")  # a kill between two renames leaves none, which is no damage
    if how != "gone":
        assert str(path) in line["damaged"]


def test_a_damaged_memory_of_the_last_round_is_made_again_from_the_one_before(runs, stopped) -> None:
    found = latest(stopped)
    client = next(iter(found.spare))
    path = stopped / "memory" / f"{client}.{found.memories[client]}.safetensors"
    spoil(path)
    assert resume(stopped, engine=Inline()).summary["digest"] == runs[1]
    assert str(path) in resumed(stopped)["damaged"]


def test_a_memory_that_no_checkpoint_has_another_of_ends_the_run_by_its_name(stopped) -> None:
    found = latest(stopped)
    client = next(client for client in found.memories if client not in found.spare)
    path = stopped / "memory" / f"{client}.{found.memories[client]}.safetensors"
    spoil(path)
    with pytest.raises((RunError, RecordError), match=f"{path.name} is damaged"):
        resume(stopped, engine=Inline())


def test_swapped_memories_are_noticed(stopped) -> None:
    a, b = sorted((stopped / "memory").iterdir())[:2]
    data = a.read_bytes()
    a.write_bytes(b.read_bytes())
    b.write_bytes(data)
    with pytest.raises((RunError, RecordError), match="not where it belongs"):
        resume(stopped, engine=Inline())


def test_two_damaged_checkpoints_are_a_sentence_that_says_what_to_do(runs, stopped) -> None:
    spoil(stopped / CHECKPOINT)
    spoil(stopped / PREVIOUS)
    before = {path: path.read_bytes() for path in stopped.rglob("*") if path.is_file()}
    with pytest.raises(RunError, match=r"checkpoint\.safetensors is damaged.*previous\.safetensors is damaged.*begins again"):
        resume(stopped, engine=Inline())
    assert {path: path.read_bytes() for path in stopped.rglob("*") if path.is_file()} == before
    (stopped / CHECKPOINT).unlink()
    (stopped / PREVIOUS).unlink()
    assert resume(stopped, engine=Inline()).summary["digest"] == runs[1]


def test_a_second_resume_finds_two_checkpoints_again(runs, stopped) -> None:
    """Falling back must not leave a damaged file where the next save keeps the older one."""
    spoil(stopped / CHECKPOINT)

    def stop(event) -> None:
        if event["event"] == "round" and event["round"] == 4:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        resume(stopped, engine=Inline(), callbacks=[stop])
    assert [read(stopped / name).number("round") for name in (CHECKPOINT, PREVIOUS)] == [3, 2]
    spoil(stopped / CHECKPOINT)
    assert resume(stopped, engine=Inline()).summary["digest"] == runs[1]


@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize("line", [1, 5, -1])
def test_a_damaged_ledger_is_named_and_nothing_is_written(runs, tmp_path, finished, line) -> None:
    """Row 8: a finished run with one damaged line was given a new summary with wrong totals, and exit code 0."""
    folder = tmp_path / "run"
    shutil.copytree(runs[0] / ("calm" if finished else "stopped"), folder)
    length = latest(folder).length
    lines = (folder / "ledger.jsonl").read_bytes()[:length].splitlines(keepends=True)
    lines[line] = lines[line].replace(b"1", b"2", 1) if line == 1 else b"{}\n"
    (folder / "ledger.jsonl").write_bytes(b"".join(lines))
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(RunError, match=r"ledger\.jsonl is damaged (in|somewhere between|after) line") as caught:
        resume(folder, engine=Inline())
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert "nothing was changed" in str(caught.value)


def test_the_checkpoint_of_another_run_is_not_blamed_on_the_ledger_alone(runs, stopped, tmp_path) -> None:
    other = run(KEEPING.replace(seed=1), tmp_path / "other", engine=Inline()).folder
    for name in (CHECKPOINT, PREVIOUS):
        shutil.copy(other / name, stopped / name)
    shutil.copytree(other / "memory", stopped / "memory", dirs_exist_ok=True)
    with pytest.raises(RunError, match=r"ledger\.jsonl is damaged .*, or its checkpoint is of another run; nothing was changed"):
        resume(stopped, engine=Inline())


def test_a_ledger_cut_short_is_not_filled_with_zeros(runs, tmp_path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(runs[0] / "calm", folder)
    path = folder / "ledger.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:20]))
    with pytest.raises(RunError, match=r"line 20: [\d,]+ bytes are missing"):
        resume(folder, engine=Inline())
    assert b"\0" not in path.read_bytes()


def test_what_is_not_durable_has_the_same_bits(runs, tmp_path, monkeypatch) -> None:
    synced = []
    monkeypatch.setattr("coterie.durable.sync_file", synced.append)
    quick = KEEPING.overridden({"engine.durable": False})
    assert quick.digest() == KEEPING.digest()
    assert run(quick, tmp_path / "run", engine=Inline()).summary["digest"] == runs[1]
    assert not synced


def test_memories_are_on_disk_before_the_checkpoint_that_names_them_and_go_only_after_the_next(tmp_path, monkeypatch) -> None:
    told: list[str] = []

    def noted(owner, name: str, word: str, at: int = 0) -> None:
        real = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *args, **more: (told.append(f"{word} {args[at].name}"), real(*args, **more)))

    noted(durable, "sync_file", "sync")
    noted(durable, "sync_folder", "sync")
    noted(checkpoint, "write", "write", at=1)
    noted(Path, "unlink", "remove")
    run(small_experiment(Local(), rounds=3).replace(cohort=1.0), tmp_path / "run", engine=Inline())
    first_of_2 = told.index("sync 0.2-1.safetensors")
    saves = [place for place, what in enumerate(told) if what == f"write {CHECKPOINT}"]
    assert first_of_2 < told.index("sync memory", first_of_2) < saves[2] < told.index("sync run", saves[2])
    assert told.index("remove 0.1-1.safetensors") > saves[3]
    assert not any(what.startswith("remove 0.2") for what in told)


def test_a_checkpoint_of_many_clients_is_columns_not_names(tmp_path) -> None:
    versions = {client: f"{client % 7}-1" for client in range(0, 30_000, 3)}
    path = tmp_path / "x.safetensors"
    size = write(Record(memories=checkpoint._table(versions), state={"w": torch.ones(2)}), path)
    assert size < 10_000 * 12 + 2_000
    assert checkpoint._versions(read(path)) == versions


def test_marks_are_thinned_but_the_last_is_always_there(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("coterie.running.checkpoint.MARKS", 4)
    folder = run(small_experiment(FedAvg(), rounds=9), tmp_path / "run", engine=Inline()).folder
    marks = json.loads(str(read(folder / CHECKPOINT)["ledger"]))
    assert len(marks) <= 4
    assert marks[-1][0] == (folder / "ledger.jsonl").stat().st_size
    lines = (folder / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    lines[3] = b"?\n"
    (folder / "ledger.jsonl").write_bytes(b"".join(lines))
    with pytest.raises(RunError, match="in line 4: it is not an event"):
        resume(folder, engine=Inline())
