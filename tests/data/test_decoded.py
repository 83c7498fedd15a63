"""What was read once is mapped by later runs: the same pool, never an old one, never a damaged one."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from coterie.data import arrays, decoded
from coterie.data.pool import Pool
from coterie.data.sources import Source
from coterie.data.sources.npz import Npz
from coterie.running.experiment import Experiment
from coterie.settings import spec


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(decoded, "LONG", 0.0)
    monkeypatch.setattr(Npz, "licence", "CC0")  # as if it were published
    return decoded.cache_folder()


def written(folder: Path, value: int = 7, samples: int = 20) -> Path:
    path = folder / "own.npz"
    x, y = np.full((samples, 4, 4), value, np.uint8), np.arange(samples) % 2
    np.savez(path, x_train=x, y_train=y, x_test=x[:4], y_test=y[:4])
    return path


def same(one: Pool, other: Pool) -> bool:
    pairs = [(getattr(one, each.name), getattr(other, each.name)) for each in dataclasses.fields(Pool)]
    return all(np.array_equal(a, b) and a.dtype == b.dtype if isinstance(a, np.ndarray) else a == b for a, b in pairs)


def test_a_pool_is_read_once(tmp_path, own_cache, monkeypatch) -> None:
    source = Npz(path=str(written(tmp_path)))
    first = decoded.load(source, tmp_path)
    assert len(list(own_cache.iterdir())) == 1
    monkeypatch.setattr(Npz, "read", lambda *_: pytest.fail("it was read again"))
    assert same(decoded.load(source, tmp_path), first)
    assert isinstance(decoded.load(source, tmp_path).x.base, np.memmap)


def test_what_is_read_quickly_is_not_kept(tmp_path, own_cache, monkeypatch) -> None:
    monkeypatch.setattr(decoded, "LONG", 1e9)
    decoded.load(Npz(path=str(written(tmp_path))), tmp_path)
    assert not own_cache.exists()


def test_other_bytes_are_another_pool(tmp_path) -> None:
    source = Npz(path=str(written(tmp_path, 7)))
    assert decoded.load(source, tmp_path).x.max() == 7
    before = written(tmp_path, 7).stat()
    os.utime(written(tmp_path, 9), ns=(before.st_atime_ns, before.st_mtime_ns))  # as recent as can be, and of the same size
    assert decoded.load(source, tmp_path).x.max() == 9


def test_other_code_reads_again(tmp_path, own_cache, monkeypatch) -> None:
    source = Npz(path=str(written(tmp_path)))
    decoded.load(source, tmp_path)
    monkeypatch.setattr(decoded, "_code", lambda: "later")
    decoded.load(source, tmp_path)
    assert len(list(own_cache.iterdir())) == 2


@pytest.mark.parametrize("name", ["pool.x.npy", "pool.y.npy", "pool.json", "sums.json"])
@pytest.mark.parametrize("how", ["flipped", "cut", "emptied", "gone"])
def test_a_damaged_one_is_read_again(tmp_path, own_cache, name, how) -> None:
    source = Npz(path=str(written(tmp_path)))
    whole = decoded.load(source, tmp_path)
    x = np.array(whole.x)
    path = next(own_cache.iterdir()) / name
    data = path.read_bytes()
    changed = {"flipped": data[:-1] + bytes([data[-1] ^ 1]), "cut": data[: len(data) // 2], "emptied": b""}
    path.unlink()
    if how in changed:
        path.write_bytes(changed[how])
    assert np.array_equal(decoded.load(source, tmp_path).x, x)
    assert (next(own_cache.iterdir()) / name).read_bytes() == data


def test_what_was_used_least_recently_makes_room(tmp_path, own_cache, monkeypatch) -> None:
    monkeypatch.setattr(decoded, "MOST", 30_000)
    places = []
    for value in range(3):
        folder = tmp_path / str(value)
        folder.mkdir()
        decoded.load(Npz(path=str(written(folder, value, samples=500))), folder)  # 8,000 bytes of images, 4,000 of labels
        places += [each for each in own_cache.iterdir() if each not in places]
        os.utime(places[-1], (value, value))
    assert [place.exists() for place in places] == [False, True, True]


def test_a_cache_that_cannot_be_written_is_no_reason_to_stop(tmp_path, own_cache) -> None:
    own_cache.parent.mkdir()
    own_cache.write_text("a file where the folder should be")
    assert len(decoded.load(Npz(path=str(written(tmp_path))), tmp_path)) == 24


def test_ones_own_data_have_no_second_copy(tmp_path, own_cache, monkeypatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(decoded, "LONG", 0.0)
    assert len(decoded.load(Npz(path=str(written(tmp_path))), tmp_path)) == 24
    assert not own_cache.exists()


def test_ones_own_source_is_always_read(tmp_path, own_cache) -> None:
    @spec
    class Own(Source):
        name: ClassVar[str] = "own"
        licence: ClassVar[str] = "CC0"

        def load(self, folder: Path) -> Pool:
            return Npz(path=str(folder / "own.npz")).load(folder)

    written(tmp_path)
    assert len(decoded.load(Own(), tmp_path)) == 24
    assert not own_cache.exists()


def test_workers_map_what_is_kept(tmp_path, own_cache) -> None:
    """One file, with one name in the cache and one in the run; laying it down again does not write into it."""
    source, folder = Npz(path=str(written(tmp_path))), tmp_path / "arrays"
    folder.mkdir()
    arrays.lay_down(decoded.load(source, tmp_path), folder, "first")
    kept = next(own_cache.iterdir()) / "pool.x.npy"
    before = kept.read_bytes()
    assert kept.stat().st_ino == (folder / "first.x.npy").stat().st_ino
    for _ in range(2):
        arrays.lay_down(decoded.load(source, tmp_path), folder, "pool")
        assert kept.stat().st_ino == (folder / "pool.x.npy").stat().st_ino
        assert kept.read_bytes() == before
    part = decoded.load(source, tmp_path)
    arrays.lay_down(dataclasses.replace(part, x=part.x[:5], y=part.y[:5], train=5), folder, "pool")
    assert kept.read_bytes() == before
    assert arrays.map_again(Pool, folder, "pool").x.shape == (5, 1, 4, 4)


def test_an_experiment_has_the_same_data_either_way(tmp_path, own_cache) -> None:
    plan = Experiment.load("digits-two-class").overridden({"data.source": {"name": "npz", "path": str(written(tmp_path))}})
    first, second = (plan.population(tmp_path).pool for _ in range(2))
    assert own_cache.exists()
    assert isinstance(second.x.base, np.memmap)
    assert same(first, second)
