"""One flipped bit, anywhere in what a run can go on from: it is noticed, every time; never another result."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from tests.hostile.processes import TRIES

from coterie.engines import Inline
from coterie.errors import CoterieError, Interrupted
from coterie.methods import FedAvg
from coterie.record import RecordError, read
from coterie.running.checkpoint import CHECKPOINT, PREVIOUS, latest
from coterie.running.rounds import resume, run
from coterie.testing import small_experiment

PLAN = small_experiment(FedAvg(), rounds=4).overridden({"training.state": "kept"})
FLIPS = 24 * TRIES


@pytest.fixture(scope="module")
def stopped(tmp_path_factory) -> tuple[Path, str]:
    """A run that was stopped in its last round, and the digest it would have had."""
    folder = tmp_path_factory.mktemp("bits")
    digest = run(PLAN, folder / "calm", engine=Inline()).summary["digest"]

    def stop(event) -> None:
        if event["event"] == "round" and event["round"] == 4:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        run(PLAN, folder / "stopped", engine=Inline(), callbacks=[stop])
    return folder / "stopped", digest


def flipped(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


@pytest.mark.parametrize("kind", ["checkpoint", "memory", "ledger"])
def test_a_flipped_bit_gives_the_same_result_or_a_sentence_never_another_result(stopped, tmp_path, kind) -> None:
    """Where the checkpoint before can stand in, the same bits; else a sentence with the file's name."""
    source, digest = stopped
    rng = random.Random(kind)
    named, vouched = latest(source).memories, latest(source).length or 0
    got_over = refused = 0
    for _ in range(FLIPS):
        folder = tmp_path / "run"
        shutil.copytree(source, folder)
        paths = {
            "checkpoint": [folder / CHECKPOINT],
            "memory": [folder / "memory" / f"{client}.{version}.safetensors" for client, version in named.items()],
            "ledger": [folder / "ledger.jsonl"],
        }[kind]
        path = rng.choice(paths)
        flipped(path, rng.randrange(8 * (vouched if kind == "ledger" else path.stat().st_size)))
        try:
            found = resume(folder, engine=Inline()).summary["digest"]
        except CoterieError as error:
            found, refused = f"refused, by name: {path.name in str(error)}", refused + 1
        else:
            got_over += 1
        assert found in (digest, "refused, by name: True")
        shutil.rmtree(folder)
    assert got_over + refused == FLIPS
    assert {"checkpoint": refused == 0, "memory": refused > 0 and got_over > 0, "ledger": got_over == 0}[kind]


@pytest.mark.parametrize("kind", ["checkpoint", "memory"])
def test_every_byte_range_of_a_file_is_under_the_checksum(stopped, tmp_path, kind) -> None:
    """The length, the header's every field, names, padding, tensors, the last byte: a bit in each of its first 4,000 bytes and beyond."""
    source, _ = stopped
    path = tmp_path / "x.safetensors"
    original = source / CHECKPOINT if kind == "checkpoint" else next((source / "memory").iterdir())
    sound = original.read_bytes()
    places = [*range(min(4000, len(sound))), *range(4000, len(sound), 97), len(sound) - 1]
    for place in places:
        data = bytearray(sound)
        data[place] ^= 1 << place % 8
        path.write_bytes(data)
        with pytest.raises(RecordError, match=r"x\.safetensors is damaged"):
            read(path)


def test_the_checkpoint_before_is_checked_too(stopped, tmp_path) -> None:
    source, digest = stopped
    shutil.copytree(source, tmp_path / "run")
    flipped(tmp_path / "run" / PREVIOUS, 8000)
    assert resume(tmp_path / "run", engine=Inline()).summary["digest"] == digest  # it was not needed
