"""Files that are whole or not there: after a kill, on a full disk, and in the order in which the disk is told."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from coterie import durable


def test_a_file_is_synced_before_it_is_renamed_and_its_folder_after(tmp_path, monkeypatch) -> None:
    """What a power cut leaves is decided by this order alone."""
    told: list[tuple[str, str]] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (told.append(("sync", Path(f"/proc/self/fd/{handle}").readlink().name)), fsync(handle)))
    monkeypatch.setattr(os, "replace", lambda a, b: (told.append(("rename", Path(b).name)), replace(a, b)))
    durable.write(tmp_path / "x", b"1")
    partial = f".x.{os.getpid()}.part"
    assert told == [("sync", partial), ("rename", "x"), ("sync", tmp_path.name)]
    told.clear()
    durable.write(tmp_path / "x", b"2", keep=tmp_path / "old")
    assert told == [("sync", partial), ("rename", "old"), ("rename", "x"), ("sync", tmp_path.name)]
    told.clear()
    durable.write(tmp_path / "x", b"3", sync=False)
    assert told == [("rename", "x")]
    assert ((tmp_path / "x").read_bytes(), (tmp_path / "old").read_bytes()) == (b"3", b"1")


def test_what_cannot_be_written_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch) -> None:
    durable.write(tmp_path / "x", "old")

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*/x'"):
        durable.write(tmp_path / "x", "new", keep=tmp_path / "kept")
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    assert (tmp_path / "x").read_text() == "old"


def test_new_folders_are_known_to_the_folders_above_them(tmp_path, monkeypatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(durable, "sync_folder", synced.append)
    durable.make_folder(tmp_path / "a" / "b")
    durable.make_folder(tmp_path / "a" / "b")
    assert synced == [tmp_path, tmp_path / "a"]


def test_an_error_names_the_file_that_was_asked_for(tmp_path) -> None:
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "nowhere" / "x", tmp_path / "folder"):
        with pytest.raises(OSError, match=r"No such file|Is a directory") as caught:
            durable.write(path, "new")
        assert caught.value.filename == str(path)
    assert os.listdir(tmp_path) == ["folder"]
