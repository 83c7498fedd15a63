"""The formats of which no real file is at hand, and every way in which a file can be wrong: small files made here."""

from __future__ import annotations

import bz2
import dataclasses
import gzip
import os
import pickle
import struct
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from coterie.data.folder import data_folder
from coterie.data.pool import Pool
from coterie.data.sources import SOURCES
from coterie.data.sources.cifar import Cifar10, Cifar100
from coterie.data.sources.domains import DigitDomains
from coterie.data.sources.huggingface import HuggingFace
from coterie.data.sources.idx import FashionMnist, Mnist
from coterie.data.sources.images import Folder, MnistM, OfficeHome
from coterie.data.sources.npz import Npz
from coterie.data.sources.svhn import Svhn
from coterie.data.sources.usps import Usps
from coterie.errors import UserError

RNG = np.random.default_rng(0)


def some(n: int, *shape: int) -> np.ndarray[Any, Any]:
    return RNG.integers(0, 256, (n, *shape), dtype=np.uint8)


class TinyMnist(Mnist):
    name = Mnist.name
    samples = (6, 2)


class TinyFashion(FashionMnist):
    name = FashionMnist.name
    samples = (6, 2)
    system = Path("/nowhere")


class TinyUsps(Usps):
    name = Usps.name
    samples = (3, 1)


class Unpublished:
    """Files made here have no published checksum."""

    def check(self, paths: Sequence[Path]) -> None:
        pass


class TinyCifar10(Unpublished, Cifar10):
    name = Cifar10.name
    samples = (10, 2)


class TinyCifar100(Unpublished, Cifar100):
    name = Cifar100.name
    samples = (4, 2)


class TinySvhn(Unpublished, Svhn):
    name = Svhn.name
    samples = (5, 2)


class TinyMnistM(MnistM):
    name = MnistM.name
    samples = (3, 1)


# idx


def write_idx(path: Path, values: np.ndarray[Any, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape) + values.tobytes()))


def write_four(folder: Path) -> dict[str, np.ndarray[Any, Any]]:
    arrays = {"train-images-idx3": some(6, 28, 28), "t10k-images-idx3": some(2, 28, 28)}
    arrays |= {"train-labels-idx1": np.arange(6, dtype=np.uint8), "t10k-labels-idx1": np.array([9, 0], np.uint8)}
    for name, values in arrays.items():
        write_idx(folder / f"{name}-ubyte.gz", values)
    return arrays


def test_fashion(tmp_path: Path) -> None:
    arrays = write_four(tmp_path / "fashion-mnist")
    pool = TinyFashion().load(tmp_path)
    assert np.array_equal(pool.x[:6, 0], arrays["train-images-idx3"])
    assert np.array_equal(pool.x[6:, 0], arrays["t10k-images-idx3"])
    assert pool.y.tolist() == [0, 1, 2, 3, 4, 5, 9, 0]
    assert (pool.train, pool.mean) == (6, (0.2860,))


def test_fashion_from_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_four(tmp_path / "share")
    monkeypatch.setattr(TinyFashion, "system", tmp_path / "share")
    assert len(TinyFashion().load(tmp_path / "empty")) == 8


def test_mnist_without_writers(tmp_path: Path) -> None:
    write_four(tmp_path / "mnist")
    assert TinyMnist().load(tmp_path).writer is None


def test_mnist_with_writers_of_something_else(tmp_path: Path) -> None:
    write_four(tmp_path / "mnist")
    np.savez(tmp_path / "mnist/writers.npz", writer_train=np.arange(5), writer_test=np.arange(2))
    with pytest.raises(UserError, match=r"writers\.npz names the writers of 5 \+ 2 digits"):
        TinyMnist().load(tmp_path)


def test_missing(tmp_path: Path) -> None:
    write_four(tmp_path / "mnist")
    (tmp_path / "mnist/t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(UserError, match=r"t10k-labels-idx1-ubyte\.gz is missing: mnist was looked for in .*`coterie data fetch mnist`"):
        TinyMnist().load(tmp_path)


@pytest.mark.parametrize("name", sorted(set(SOURCES) - {"digits", "digit-styles", "folder", "npz", "csv", "huggingface", "participants"}))
def test_everything_missing(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FashionMnist, "system", tmp_path / "none")
    with pytest.raises(UserError, match=r"is missing: .* was looked for in .*; (run `coterie data fetch|get)"):
        SOURCES.resolve(name).load(tmp_path)


def damage_idx(folder: Path, how: str) -> None:
    path = folder / "mnist/train-images-idx3-ubyte.gz"
    whole = path.read_bytes()
    plain = gzip.decompress(whole)
    path.write_bytes(
        {
            "cut": whole[: len(whole) // 2],
            "short": gzip.compress(plain[:-10]),
            "header": gzip.compress(plain[:3]),
            "not gzip": b"hello",
            "kind": gzip.compress(b"\0\0\x0d" + plain[3:]),
            "flat": gzip.compress(struct.pack(">HBBI", 0, 8, 1, 6) + bytes(6)),
        }[how]
    )


@pytest.mark.parametrize("how", ["cut", "short", "header", "not gzip", "kind", "flat"])
def test_idx_damaged(how: str, tmp_path: Path) -> None:
    write_four(tmp_path / "mnist")
    damage_idx(tmp_path, how)
    with pytest.raises(UserError, match=r"train-images-idx3-ubyte\.gz (is|has)"):
        TinyMnist().load(tmp_path)


def test_idx_label_range(tmp_path: Path) -> None:
    write_four(tmp_path / "mnist")
    write_idx(tmp_path / "mnist/t10k-labels-idx1-ubyte.gz", np.array([3, 10], np.uint8))
    with pytest.raises(UserError, match=r"t10k-labels-idx1-ubyte\.gz holds the label 10, but labels must be 0\.\.9"):
        TinyMnist().load(tmp_path)


def test_another_number_of_images(tmp_path: Path) -> None:
    write_four(tmp_path / "mnist")
    with pytest.raises(UserError, match=r"mnist holds 6 \+ 2 images, but mnist has 60000 \+ 10000"):
        Mnist().load(tmp_path)


def test_labels_and_images_disagree(tmp_path: Path) -> None:
    write_four(tmp_path / "mnist")
    write_idx(tmp_path / "mnist/train-labels-idx1-ubyte.gz", np.zeros(5, np.uint8))
    with pytest.raises(UserError, match=r"train-labels-idx1-ubyte\.gz holds 6 images but 5 labels"):
        TinyMnist().load(tmp_path)


# usps


def write_usps(folder: Path, lines: list[str]) -> None:
    (folder / "usps").mkdir()
    (folder / "usps/usps.bz2").write_bytes(bz2.compress("".join(lines).encode()))
    (folder / "usps/usps.t.bz2").write_bytes(bz2.compress(line(1, 0.0).encode()))


def line(label: int, value: float) -> str:
    return " ".join([str(label), *(f"{i}:{value:.6f}" for i in range(1, 257))]) + " \n"


def test_usps(tmp_path: Path) -> None:
    write_usps(tmp_path, [line(10, -1.0), line(1, 1.0), "3 1:1.0 256:-1.0\n"])
    pool = TinyUsps().load(tmp_path)
    assert pool.y.tolist() == [9, 0, 2, 0]
    assert (pool.x[0].max(), pool.x[1].min()) == (0, 255)
    # LIBSVM leaves out zeros: the middle grey
    assert pool.x[2].reshape(-1).tolist() == [255, *[128] * 254, 0]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([line(11, 0.0)], "holds the label 11, but labels must be 1..10"),
        ([line(0, 0.0)], "holds the label 0, but"),
        ([line(1, 1.5)], r"holds pixels outside \[-1, 1\]"),
        (["1 257:0.5\n"], "truncated or damaged"),
        (["1 1:abc\n"], "truncated or damaged"),
    ],
)
def test_usps_wrong(lines: list[str], said: str, tmp_path: Path) -> None:
    write_usps(tmp_path, lines)
    with pytest.raises(UserError, match=f"usps.bz2 (is )?{said}"):
        TinyUsps().load(tmp_path)


def test_usps_cut(tmp_path: Path) -> None:
    write_usps(tmp_path, [line(1, RNG.uniform(-1, 1)) for _ in range(3)])
    path = tmp_path / "usps/usps.bz2"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match=r"usps\.bz2 is truncated or damaged"):
        TinyUsps().load(tmp_path)


# cifar


def write_binary(folder: Path) -> tuple[np.ndarray[Any, Any], list[int]]:
    root = folder / "cifar-10-batches-bin"
    root.mkdir()
    x, y = some(12, 3, 32, 32), [*range(10), 3, 4]
    for b, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        (root / f"{name}.bin").write_bytes(b"".join(bytes([y[i]]) + x[i].tobytes() for i in (2 * b, 2 * b + 1)))
    return x, y


def python2_batch(x: np.ndarray[Any, Any], labels: dict[str, list[int]]) -> bytes:
    """A batch as Python 2 and numpy 1 wrote it, opcode by opcode: protocol 2, byte strings, numpy.core.multiarray."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value

    def number(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    def pair(a: bytes, b: bytes) -> bytes:
        return a + b + b"\x86"

    kind = b"cnumpy\ndtype\n" + b"(" + text(b"u1") + b"K\x00K\x01t" + b"R" + b"(K\x03" + text(b"|") + b"NNN" + number(-1) * 2 + b"K\x00tb"
    empty = b"cnumpy.core.multiarray\n_reconstruct\n" + b"(cnumpy\nndarray\n" + b"K\x00\x85" + text(b"b") + b"tR"
    raw = b"T" + struct.pack("<i", x.size) + x.tobytes()
    array = empty + b"(K\x01" + pair(number(len(x)), number(x.size // len(x))) + kind + b"\x89" + raw + b"tb"
    lists = b"".join(text(key.encode()) + b"](" + b"".join(number(v) for v in values) + b"e" for key, values in labels.items())
    return b"\x80\x02}(" + text(b"data") + array + lists + b"u."


def write_python(
    folder: Path, batch: Callable[[np.ndarray[Any, Any], dict[str, list[int]]], bytes]
) -> tuple[np.ndarray[Any, Any], list[int]]:
    root = folder / "cifar-10-batches-py"
    root.mkdir()
    x, y = some(12, 3, 32, 32), [*range(10), 3, 4]
    for b, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        rows = slice(2 * b, 2 * b + 2)
        (root / name).write_bytes(batch(x[rows].reshape(2, -1), {"labels": y[rows]}))
    return x, y


def python3_batch(x: np.ndarray[Any, Any], labels: dict[str, list[int]]) -> bytes:
    return pickle.dumps({b"data": x} | {key.encode(): values for key, values in labels.items()}, protocol=2)


def same(pool: Pool, x: np.ndarray[Any, Any], y: list[int], train: int) -> None:
    assert np.array_equal(pool.x, x)
    assert (pool.y.tolist(), pool.train, pool.note) == (y, train, "")


def test_cifar10_binary(tmp_path: Path) -> None:
    x, y = write_binary(tmp_path)
    same(TinyCifar10().load(tmp_path), x, y, 10)


@pytest.mark.parametrize("batch", [python2_batch, python3_batch])
def test_cifar10_python(batch: Any, tmp_path: Path) -> None:
    x, y = write_python(tmp_path, batch)
    same(TinyCifar10().load(tmp_path), x, y, 10)


def test_cifar100(tmp_path: Path) -> None:
    (tmp_path / "cifar-100-python").mkdir()
    x, fine = some(6, 3, 32, 32), [99, 0, 50, 7, 8, 9]
    for name, rows in (("train", slice(4)), ("test", slice(4, 6))):
        labels = {"coarse_labels": [0] * len(fine[rows]), "fine_labels": fine[rows]}
        (tmp_path / "cifar-100-python" / name).write_bytes(python2_batch(x[rows].reshape(-1, 3072), labels))
    pool = TinyCifar100().load(tmp_path)
    same(pool, x, fine, 4)
    assert pool.classes == 100


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("pwned",)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (pickle.dumps({"data": Evil()}), r"damaged: it asks for (posix|nt)\.mkdir, which no CIFAR batch needs"),
        (b"\x80\x02cbuiltins\neval\nU\x011\x85R.", r"damaged: it asks for builtins\.eval"),
        (python2_batch(some(2, 3072), {"labels": [0, 10]}), r"holds the label 10, but labels must be 0\.\.9"),
        (python2_batch(some(2, 3072), {"labels": [0, 1]})[:-500], "truncated or damaged"),
        (python2_batch(some(2, 3072), {"names": [0, 1]}), "lacks data or labels"),
        (b"", "truncated or damaged"),
        (pickle.dumps([1, 2]), "truncated or damaged"),
    ],
)
def test_cifar_python_wrong(content: bytes, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_python(tmp_path, python2_batch)
    (tmp_path / "cifar-10-batches-py/data_batch_3").write_bytes(content)
    with pytest.raises(UserError, match=f"data_batch_3 .*{said}"):
        TinyCifar10().load(tmp_path)
    assert not (tmp_path / "pwned").exists()


def test_cifar_binary_wrong(tmp_path: Path) -> None:
    write_binary(tmp_path)
    path = tmp_path / "cifar-10-batches-bin/data_batch_2.bin"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(UserError, match=r"data_batch_2\.bin is truncated or damaged"):
        TinyCifar10().load(tmp_path)
    path.write_bytes(whole[:3073])
    with pytest.raises(UserError, match=r"cifar-10-batches-bin holds 9 \+ 2 images"):
        TinyCifar10().load(tmp_path)
    path.write_bytes(b"\x0a" + whole[1:])
    with pytest.raises(UserError, match=r"data_batch_2\.bin holds the label 10"):
        TinyCifar10().load(tmp_path)


def test_the_data_folder_never_decides_how_much_of_a_source_is_read(tmp_path: Path) -> None:
    """A part beside nothing is no reason to read it: the same settings give the same images, or an error."""
    np.savez(tmp_path / "cifar10-10k.npz", x_train=some(3, 32, 32, 3), y_train=np.arange(3, dtype=np.uint8))
    with pytest.raises(UserError, match="part = true"):
        TinyCifar10().load(tmp_path)
    assert TinyCifar10().found(tmp_path) is None
    assert TinyCifar10().as_it_lies(tmp_path) == TinyCifar10(part=True)


def test_the_data_folder_never_decides_which_domains_are_parts(tmp_path: Path) -> None:
    write_four(tmp_path / "mnist")
    for name in ("usps.bz2", "usps.t.bz2"):
        (tmp_path / "usps").mkdir(exist_ok=True)
        (tmp_path / "usps" / name).write_bytes(b"")
    for name in ("svhn-6k.npz", "mnistm-4k.npz"):
        np.savez(tmp_path / name, x_train=some(3, 32, 32, 3), y_train=np.arange(3, dtype=np.uint8))
    said = r'train_32x32\.mat is missing: .* source = { name = "digit-domains", parts = \["svhn", "mnist-m"\] }'
    with pytest.raises(UserError, match=said):
        DigitDomains().load(tmp_path)


def test_part_and_complete(tmp_path: Path) -> None:
    np.savez(tmp_path / "cifar10-10k.npz", x_train=some(3, 32, 32, 3), y_train=np.arange(3, dtype=np.uint8))
    part = TinyCifar10(part=True).load(tmp_path)
    assert (len(part), part.train) == (3, 3)
    assert part.note == "a part of cifar10: 3 of 10 training and 0 of 2 test images"
    said = r"data_batch_1\.bin is missing: cifar10 was looked for .*; a part is there, .* source = { name = \"cifar10\", part = true }"
    with pytest.raises(UserError, match=said):
        TinyCifar10().load(tmp_path)
    write_binary(tmp_path)
    assert len(TinyCifar10().load(tmp_path)) == 12
    assert len(TinyCifar10(part=True).load(tmp_path)) == 3
    (tmp_path / "cifar10-10k.npz").unlink()
    said = r"cifar10-10k\.npz is missing: .*; the complete set is there, for that write source = { name = \"cifar10\" }"
    with pytest.raises(UserError, match=said):
        TinyCifar10(part=True).load(tmp_path)


# svhn


def write_mat(path: Path, x: np.ndarray[Any, Any], y: list[int]) -> None:
    path.parent.mkdir(exist_ok=True)
    savemat(path, {"X": x.transpose(2, 3, 1, 0), "y": np.array(y, np.uint8)[:, None]}, do_compression=True)


def test_svhn(tmp_path: Path) -> None:
    x = some(7, 3, 32, 32)
    write_mat(tmp_path / "svhn/train_32x32.mat", x[:5], [10, 1, 9, 5, 10])
    write_mat(tmp_path / "svhn/test_32x32.mat", x[5:], [2, 10])
    same(TinySvhn().load(tmp_path), x, [0, 1, 9, 5, 0, 2, 0], 5)
    train = tmp_path / "svhn/train_32x32.mat"
    train.write_bytes(train.read_bytes()[:3000])
    with pytest.raises(UserError, match=r"train_32x32\.mat is truncated or damaged"):
        TinySvhn().load(tmp_path)
    write_mat(train, x[:5], [0, 1, 2, 3, 4])
    with pytest.raises(UserError, match=r"train_32x32\.mat holds the label 0, but labels must be 1\.\.10"):
        TinySvhn().load(tmp_path)
    savemat(train, {"X": x})
    with pytest.raises(UserError, match=r"train_32x32\.mat lacks X or y"):
        TinySvhn().load(tmp_path)


# images


def save_image(path: Path, pixels: np.ndarray[Any, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, quality=95)


def write_tree(root: Path, per_class: int = 10, domains: tuple[str, ...] = ("Art", "Clipart", "Product", "Real World")) -> None:
    for domain in domains:
        for kind in ("Alarm_Clock", "Bed"):
            for i in range(per_class):
                save_image(root / domain / kind / f"{i:05}.jpg", some(20 + i, 24, 3))


def test_office_home(tmp_path: Path) -> None:
    write_tree(tmp_path / "office-home")
    (tmp_path / "office-home/imagelist.txt").write_text("not a domain")
    said = r"office-home holds 80 images and office-home has 15,588: .* source = { name = \"office-home\", size = 16, part = true }"
    with pytest.raises(UserError, match=said):
        OfficeHome(size=16).load(tmp_path)
    pool = OfficeHome(size=16, part=True).load(tmp_path)
    assert (len(pool), pool.train, pool.shape, pool.classes) == (80, 64, (3, 16, 16), 2)
    assert pool.domains == ("Art", "Clipart", "Product", "Real World")
    assert pool.note == "a part of office-home: 80 of 15,588 images"
    assert pool.domain is not None
    for half in (slice(64), slice(64, 80)):
        assert np.bincount(2 * pool.domain[half] + pool.y[half]).tolist() == [(half.stop - (half.start or 0)) // 8] * 8
    # every image once, as Pillow makes it
    expected = sorted(thumbnail(path, 16) for path in (tmp_path / "office-home").glob("*/*/*.jpg"))
    assert sorted(row.tobytes() for row in pool.x) == expected


def thumbnail(path: Path, size: int) -> bytes:
    with Image.open(path) as image:
        return np.asarray(image.resize((size, size), Image.Resampling.BILINEAR)).transpose(2, 0, 1).tobytes()


def test_folder_split_is_seeded(tmp_path: Path) -> None:
    write_tree(tmp_path / "mine")
    one, again, other = (Folder(path="mine", size=8, seed=seed).load(tmp_path) for seed in (1, 1, 2))
    assert np.array_equal(one.x, again.x)
    assert not np.array_equal(one.x, other.x)
    before = {row.tobytes() for row in one.x[one.train :]}
    write_tree(tmp_path / "mine", domains=("New",))
    after = Folder(path="mine", size=8, seed=1).load(tmp_path)
    assert before <= {row.tobytes() for row in after.x[after.train :]}


def test_folder_split_is_clean(tmp_path: Path) -> None:
    """Images that occur under several names stay in training; a class of one image too."""
    write_tree(tmp_path / "mine", per_class=1)
    image = some(8, 8, 3)
    for i in range(6):
        save_image(tmp_path / f"mine/Art/Bed/copy{i}.png", image)
    pool = Folder(path=str(tmp_path / "mine"), size=8, test=0.9).load(Path("/elsewhere"))
    train, test = ({row.tobytes() for row in part} for part in (pool.x[: pool.train], pool.x[pool.train :]))
    assert not train & test
    assert pool.domain is not None
    cells = {(int(d), int(c)) for d, c in zip(pool.domain[: pool.train], pool.y[: pool.train], strict=True)}
    assert cells == {(d, c) for d in range(4) for c in range(2)}


def test_folder_modes(tmp_path: Path) -> None:
    """Grey, palette and transparent images all become colour."""
    for i, mode in enumerate(["L", "P", "RGBA", "RGB"]):
        path = tmp_path / f"mine/a/b/{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((4, 4, 3), 102, np.uint8)).convert(mode).save(path)
    assert np.all(Folder(path="mine", size=4).load(tmp_path).x == 102)


def spoil(root: Path, how: str) -> str:
    bed = root / "Art/Bed"
    if how == "empty":
        for path in bed.iterdir():
            path.unlink()
        return "Art/Bed is empty"
    if how == "missing":
        for path in bed.iterdir():
            path.unlink()
        bed.rmdir()
        return "Art/Bed is missing: every domain must have every class"
    if how == "text":
        (bed / "00000.jpg").write_text("no image")
    else:
        whole = (bed / "00000.jpg").read_bytes()
        (bed / "00000.jpg").write_bytes(whole[: len(whole) // 2])
    return "Art/Bed/00000.jpg does not decode as an image"


@pytest.mark.parametrize("how", ["empty", "missing", "text", "cut"])
def test_folder_wrong(how: str, tmp_path: Path) -> None:
    write_tree(tmp_path / "mine", per_class=2)
    said = spoil(tmp_path / "mine", how)
    with pytest.raises(UserError, match=said):
        Folder(path="mine").load(tmp_path)


def test_folder_of_nothing(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    with pytest.raises(UserError, match="mine holds no folders"):
        Folder(path="mine").load(tmp_path)
    (tmp_path / "mine/Art").mkdir()
    with pytest.raises(UserError, match="Art holds no class folders"):
        Folder(path="mine").load(tmp_path)
    with pytest.raises(UserError, match="yours is missing"):
        Folder(path="yours").load(tmp_path)


def test_folder_settings() -> None:
    with pytest.raises(UserError, match=r"source.path is missing"):
        SOURCES.resolve("folder")
    with pytest.raises(UserError, match=r"source.size = 0"):
        SOURCES.resolve({"name": "pacs", "size": 0})
    with pytest.raises(UserError, match=r"source.test = 1"):
        SOURCES.resolve({"name": "pacs", "test": 1.0})


def test_mnist_m_as_published(tmp_path: Path) -> None:
    x = some(4, 32, 32, 3)
    for part, rows in (("train", range(3)), ("test", range(3, 4))):
        for i in rows:
            save_image(tmp_path / f"mnist_m/mnist_m_{part}/{i:08}.png", x[i])
        labels = tmp_path / f"mnist_m/mnist_m_{part}_labels.txt"
        labels.write_text("".join(f"{i:08}.png {9 - i}\n" for i in reversed(rows)))
    pool = TinyMnistM().load(tmp_path)
    same(pool, x[[2, 1, 0, 3]].transpose(0, 3, 1, 2), [7, 8, 9, 6], 3)
    labels.write_text("00000003.png\n")
    with pytest.raises(UserError, match=r"mnist_m_test_labels\.txt is truncated or damaged"):
        TinyMnistM().load(tmp_path)


# npz


@pytest.mark.parametrize("shape", [(9, 7), (9, 7, 3), (3, 9, 7), (9, 7, 1)])
def test_npz(shape: tuple[int, ...], tmp_path: Path) -> None:
    x = some(5, *shape)
    np.savez(tmp_path / "mine.npz", x_train=x[:3], y_train=[0, 1, 6], x_test=x[3:], y_test=[2, 2])
    pool = Npz(path="mine.npz").load(tmp_path)
    channels = 3 if 3 in shape else 1
    assert (pool.shape, pool.train, pool.classes, pool.y.tolist()) == ((channels, 9, 7), 3, 7, [0, 1, 6, 2, 2])
    assert pool.x.sum() == x.sum()
    last = x[4] if shape == (3, 9, 7) else x[4].reshape(9, 7, channels).transpose(2, 0, 1)
    assert np.array_equal(pool.x[4], last)


GOOD = {"x_train": some(3, 8, 8), "y_train": np.arange(3), "x_test": some(1, 8, 8), "y_test": np.zeros(1, int)}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"x_test": None, "y_test": None}, "lacks x_test, y_test; it must hold x_train, y_train, x_test, y_test"),
        ({"y_train": None}, "lacks y_train"),
        ({"x_train": GOOD["x_train"] / 255}, "but test images of shape"),
        ({"x_train": GOOD["x_train"].reshape(3, 64)}, "but test images of shape"),
        ({"y_train": np.arange(2)}, "holds 3 images but 2 labels"),
        ({"y_train": np.array([0, -1, 1])}, "holds the label -1"),
        ({"y_train": np.eye(3)}, "holds y_train as float64"),
        ({"x_test": some(1, 9, 9)}, "but test images of shape"),
        ({"x_train": np.array([None, {}, []], dtype=object)}, "truncated or damaged"),
    ],
)
def test_npz_wrong(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    arrays = {key: value for key, value in (GOOD | change).items() if value is not None}
    np.savez(tmp_path / "mine.npz", **arrays)
    with pytest.raises(UserError, match=rf"mine\.npz .*{said}"):
        Npz(path="mine.npz").load(tmp_path)


def test_npz_cut(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    np.savez(path, **GOOD)  # type: ignore[arg-type]
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UserError, match=r"mine\.npz is truncated or damaged"):
        Npz(path="mine.npz").load(tmp_path)
    with pytest.raises(UserError, match=r"yours\.npz is missing: npz was looked for in"):
        Npz(path="yours.npz").load(tmp_path)


# hugging face


@dataclasses.dataclass
class Split:
    """As much of a `datasets.Dataset` as the source reads."""

    columns: dict[str, list[Any]]

    @property
    def column_names(self) -> list[str]:
        return list(self.columns)

    def __getitem__(self, column: str) -> list[Any]:
        return self.columns[column]


def stand_in(monkeypatch: pytest.MonkeyPatch, held: Any) -> None:
    module = ModuleType("datasets")
    module.load_from_disk = lambda path: held  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)


def some_images(n: int, size: int = 6) -> tuple[list[Any], np.ndarray[Any, Any]]:
    x = some(n, size, size, 3)
    return [Image.fromarray(row) for row in x], x


def test_huggingface(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, x = some_images(3)
    splits = {"train": Split({"img": images[:2], "label": [0, 4]}), "test": Split({"img": images[2:], "label": [1]})}
    stand_in(monkeypatch, splits)
    pool = HuggingFace(path=str(tmp_path), image="img").load(tmp_path)
    same(pool, x.transpose(0, 3, 1, 2), [0, 4, 1], 2)
    assert pool.classes == 5
    assert HuggingFace(path=str(tmp_path), image="img", size=4).load(tmp_path).shape == (3, 4, 4)
    stand_in(monkeypatch, splits["train"])
    assert HuggingFace(path=str(tmp_path), image="img").load(tmp_path).train == 2


def test_huggingface_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = HuggingFace(path=str(tmp_path))
    images, _ = some_images(2)
    stand_in(monkeypatch, Split({"images": images, "label": [0, 1]}))
    with pytest.raises(UserError, match="has no column 'image': did you mean 'images'"):
        source.load(tmp_path)
    stand_in(monkeypatch, Split({"image": [*images, *some_images(1, 7)[0]], "label": [0, 1, 1]}))
    with pytest.raises(UserError, match="holds images of 2 shapes"):
        source.load(tmp_path)
    stand_in(monkeypatch, {"validation": None})
    with pytest.raises(UserError, match="has no split 'train'"):
        source.load(tmp_path)
    with pytest.raises(UserError, match="nowhere is missing"):
        HuggingFace(path="nowhere").load(tmp_path)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r"pip install coterie\[huggingface\]"):
        source.load(tmp_path)


# the folder


def test_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    assert data_folder() == tmp_path
    assert data_folder(Path("other")) == Path("other")
    monkeypatch.delenv("COTERIE_DATA")
    assert data_folder().name == "coterie"
