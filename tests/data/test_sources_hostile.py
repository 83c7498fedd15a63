"""Data files made to do harm: refused in a sentence that names them, before they cost memory, and without running anything."""

from __future__ import annotations

import bz2
import gzip
import os
import pickle
import struct
import zipfile
from typing import Any

import numpy as np
import pytest
from PIL import Image

from coterie.data.sources import batches
from coterie.data.sources.blocks import read_npz
from coterie.data.sources.cifar import Cifar10, read_batch
from coterie.data.sources.idx import read_idx
from coterie.data.sources.images import read_images, read_list
from coterie.data.sources.svhn import Svhn
from coterie.data.sources.usps import read_libsvm
from coterie.errors import UserError

PROTOCOL = b"\x80\x02"
ARRAY = b"cnumpy\nndarray\n"
DOCTORED = {
    "pointers as objects": PROTOCOL + ARRAY + b"(K\x01\x85U\x01OU\x08AAAAAAAAtR.",
    "outside its buffer": PROTOCOL + ARRAY + b"(K\x01\x85U\x02u1U\x08AAAAAAAAJ\x18\xfc\xff\xfftR.",
    "object dtype": PROTOCOL + b"}(U\x04datacnumpy.core.multiarray\n_reconstruct\n(" + ARRAY + b"K\x00\x85U\x01btR(K\x01K\x01\x85"
    b"cnumpy\ndtype\n(U\x01OK\x00K\x01tR\x89U\x08AAAAAAAAtbu.",
    "a memo of 32 GB": PROTOCOL + b"K\x01r\xff\xff\xff\x7f.",
    "a string of 2 GB": PROTOCOL + b"T\xff\xff\xff\x7fabc.",
    "bytes of 2^62": b"\x80\x04\x8e" + struct.pack("<Q", 2**62) + b"abc.",
    "a frame of 2^62": b"\x80\x04\x95" + struct.pack("<Q", 2**62) + b"K\x01.",
    "an instance": b"(S'x'\nios\nsystem\n.",
    "a class by new": PROTOCOL + b"cbuiltins\nobject\n)\x81.",
    "an extension": PROTOCOL + b"\x82\x01.",
    "a persistent name": b"Pevil\n.",
    "an empty stack": PROTOCOL + b"R.",
    "a mark that is none": PROTOCOL + b"t.",
    "nothing": PROTOCOL + b".",
    "a list that holds itself": PROTOCOL + b"]q\x00h\x00a.",
    "a dictionary by list": PROTOCOL + b"}(]K\x01u.",
    "other text": PROTOCOL + b"c_codecs\nencode\n(X\x01\x00\x00\x00aX\x05\x00\x00\x00rot13tR.",
}  # fmt: skip


@pytest.mark.parametrize("name", DOCTORED)
def test_a_doctored_batch_is_refused_without_being_run(tmp_path, name) -> None:
    path = tmp_path / "data_batch_1"
    path.write_bytes(DOCTORED[name])
    with pytest.raises(UserError, match=r"data_batch_1 (is truncated or damaged|lacks)"):
        read_batch(path, "labels", 10)


def test_labels_that_explode_when_they_are_laid_out_are_refused(tmp_path) -> None:
    laughs: list[Any] = [1]
    for _ in range(30):
        laughs = [laughs] * 10
    path = tmp_path / "data_batch_1"
    path.write_bytes(pickle.dumps({"data": np.zeros((1, 3072), np.uint8), "labels": laughs}, protocol=2))
    with pytest.raises(UserError, match="labels that are not whole numbers"):
        read_batch(path, "labels", 10)


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_a_batch_is_read_as_pickle_would(protocol) -> None:
    held = {
        "data": np.arange(12, dtype=np.uint8).reshape(3, 4),
        "labels": [1, 200, 70_000, -5],
        "name": "x",
        b"raw": b"y",
        "none": (None, True),
    }
    for order in ("C", "F"):
        held["data"] = np.asarray(held["data"], order=order)
        found = batches.load(pickle.dumps(held, protocol=protocol))
        assert np.array_equal(found.pop("data"), held["data"])
        assert found == {"labels": [1, 200, 70_000, -5], "name": "x", "raw": b"y", "none": (None, True)}


def test_a_published_file_with_other_bytes_is_never_parsed(tmp_path, monkeypatch) -> None:
    def parse(*_: object) -> None:
        pytest.fail("it was parsed")

    monkeypatch.setattr("coterie.data.sources.cifar.read_batch", parse)
    monkeypatch.setattr("coterie.data.sources.svhn.read_mat", parse)
    for source in (Cifar10(part="never"), Svhn(part="never")):
        for file in source.files:
            for leaf in file.leaves:
                (tmp_path / leaf).parent.mkdir(exist_ok=True)
                (tmp_path / leaf).write_bytes(b"other bytes")
        with pytest.raises(UserError, match=f"has a wrong checksum: run `coterie data fetch {source.name}`"):
            source.load(tmp_path)


def test_a_picture_of_too_many_pixels_is_not_unpacked(tmp_path) -> None:
    path = tmp_path / "bomb.png"
    Image.new("1", (12_000, 12_000)).save(path)
    assert path.stat().st_size < 100_000
    with pytest.raises(UserError, match=r"bomb\.png does not decode as a image: it has 12000 x 12000 pixels"):
        read_images([path], 32)


def test_a_file_is_what_its_bytes_are_not_what_it_is_called(tmp_path) -> None:
    """Pillow hands PostScript to another program; only JPEG and PNG are wanted."""
    path = tmp_path / "a.png"
    path.write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n")
    with pytest.raises(UserError, match="cannot identify image file"):
        read_images([path], 32)


def test_a_pipe_among_the_pictures_does_not_hang(tmp_path) -> None:
    os.mkfifo(tmp_path / "a.png")
    with pytest.raises(UserError, match="it is not a file"):
        read_images([tmp_path / "a.png"], 32)


def test_a_list_names_only_files_beside_it(tmp_path) -> None:
    (tmp_path / "mnist_m_train_labels.txt").write_text("../../secret.png 1\n")
    with pytest.raises(UserError, match="which is not in the folder beside it"):
        read_list(tmp_path / "mnist_m_train_labels.txt")


def npy(shape: str, data: bytes) -> bytes:
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}}}".ljust(117).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


LIES = [("(1099511627776,)", "has the shape"), ("(-1,)", "has the shape"), ("('a',)", "shape is not valid"), ("(" * 90, "EOF")]


@pytest.mark.parametrize(("shape", "said"), LIES)
def test_an_npz_header_that_lies_costs_nothing(tmp_path, shape, said) -> None:
    path = tmp_path / "x.npz"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("x_train.npy", npy(shape, b"abc"))
    with pytest.raises(UserError, match=rf"x\.npz is truncated or damaged.*{said}"):
        read_npz(path)


def test_an_npz_that_unpacks_to_too_much_is_not_unpacked(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("coterie.data.sources.blocks.LARGEST", 10**6)
    np.savez_compressed(tmp_path / "x.npz", x_train=np.zeros((2000, 1, 32, 32), np.uint8), y_train=np.zeros(2000, int))
    assert (tmp_path / "x.npz").stat().st_size < 10_000
    with pytest.raises(UserError, match="more than the 1,000,000 bytes allowed"):
        read_npz(tmp_path / "x.npz")


def test_a_label_beyond_all_classes_is_refused(tmp_path) -> None:
    np.savez(tmp_path / "x.npz", x_train=np.zeros((1, 8, 8), np.uint8), y_train=np.array([10**9]))
    with pytest.raises(UserError, match=r"holds the label 1000000000, but labels are numbers of classes"):
        read_npz(tmp_path / "x.npz")


@pytest.mark.parametrize("dims", [(2**32 - 1,) * 3, (2**16, 2**16, 2**16), (0, 2**32 - 1, 2**32 - 1)])
def test_an_idx_header_that_lies_costs_nothing(tmp_path, dims) -> None:
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(struct.pack(">HBBIII", 0, 8, 3, *dims) + b"abc"))
    with pytest.raises(UserError, match=r"x\.gz is truncated or damaged"):
        read_idx(path)


def test_more_bytes_than_the_header_of_an_idx_promises_are_not_unpacked(tmp_path) -> None:
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(struct.pack(">HBBI", 0, 8, 1, 10) + bytes(10**7)))
    with pytest.raises(UserError, match="more than the 10 bytes allowed"):
        read_idx(path)


def test_text_that_unpacks_to_too_much_is_not_unpacked(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("coterie.data.sources.usps.LARGEST", 10**5)
    path = tmp_path / "usps.bz2"
    path.write_bytes(bz2.compress(b"1 1:0.5\n" * 10**5))
    with pytest.raises(UserError, match=r"usps\.bz2 is truncated or damaged: it holds more than the 100,000 bytes allowed"):
        read_libsvm(path)
