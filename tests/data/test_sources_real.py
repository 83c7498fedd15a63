"""Every source that lies in the real data folder, against reads of the same files by other means."""

from __future__ import annotations

import bz2
import gzip
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from coterie.data.fetch import listing, verify
from coterie.data.pool import Pool
from coterie.data.sources import SOURCES


@cache
def loaded(name: str, folder: Path) -> Pool:
    source = SOURCES.resolve(name).as_it_lies(folder)
    if source.found(folder) is None:
        pytest.skip(f"{name} is not in {folder}: {source.advice()}")
    return source.load(folder)


def sound(pool: Pool) -> None:
    assert pool.x.dtype == np.uint8
    assert pool.x.flags.c_contiguous
    assert pool.y.dtype == np.int64
    assert len(pool.x) == len(pool.y)
    assert pool.y.min() == 0
    assert pool.y.max() == pool.classes - 1
    assert len(pool.mean) == len(pool.std) == pool.shape[0]


@pytest.mark.parametrize("name", ["digits", "mnist", "fashion-mnist", "usps", "cifar10", "cifar100", "svhn", "mnist-m", "pacs"])
def test_sound(name: str, data_folder: Path) -> None:
    sound(loaded(name, data_folder))


def test_digits(data_folder: Path) -> None:
    pool = loaded("digits", data_folder)
    images, labels = load_digits(return_X_y=True)
    # the fifth, tenth, ... of each class, counted in plain Python
    seen = [0] * 10
    test = []
    for i, label in enumerate(labels):
        seen[label] += 1
        if seen[label] % 5 == 0:
            test.append(i)
    order = [*(i for i in range(1797) if i not in set(test)), *test]
    assert pool.train == 1797 - len(test)
    assert pool.y.tolist() == labels[order].tolist()
    assert pool.x.reshape(1797, 64).tolist() == [[int(v * 255 / 16 + 0.5) for v in images[i]] for i in order]
    assert pool.mean[0] == pytest.approx(images.mean() / 16, abs=1e-4)
    assert pool.std[0] == pytest.approx(images.std() / 16, abs=1e-4)


def idx_by_hand(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes())


def test_mnist(data_folder: Path) -> None:
    pool = loaded("mnist", data_folder)
    assert (len(pool), pool.train, pool.shape) == (70_000, 60_000, (1, 28, 28))
    for first, half in ((0, "train"), (60_000, "t10k")):
        images = idx_by_hand(data_folder / f"mnist/{half}-images-idx3-ubyte.gz")
        labels = idx_by_hand(data_folder / f"mnist/{half}-labels-idx1-ubyte.gz")
        for i in (0, 1, 4_321, 9_999):
            assert pool.x[first + i].tobytes() == images[16 + 784 * i : 16 + 784 * (i + 1)]
            assert pool.y[first + i] == labels[8 + i]
    assert pool.y[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert np.bincount(pool.y[:60_000]).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert pool.x[:60_000].mean() / 255 == pytest.approx(pool.mean[0], abs=1e-4)


def test_mnist_writers(data_folder: Path) -> None:
    pool = loaded("mnist", data_folder)
    if pool.writer is None:
        pytest.skip(f"mnist/writers.npz is not in {data_folder}")
    with np.load(data_folder / "mnist/writers.npz") as arrays:
        assert pool.writer.tolist() == [*arrays["writer_train"].tolist(), *arrays["writer_test"].tolist()]
    people = set(pool.writer[:60_000].tolist()), set(pool.writer[60_000:].tolist())
    assert (len(people[0]), len(people[1]), people[0] & people[1]) == (539, 297, set())


def test_usps(data_folder: Path) -> None:
    pool = loaded("usps", data_folder)
    assert (len(pool), pool.train, pool.shape) == (9_298, 7_291, (1, 16, 16))
    for first, name in ((0, "usps.bz2"), (7_291, "usps.t.bz2")):
        lines = bz2.decompress((data_folder / "usps" / name).read_bytes()).decode().splitlines()
        for i in (0, 1, 1_000, 2_006):
            label, *pixels = lines[i].split()
            values = [float(pixel.split(":")[1]) for pixel in pixels]
            assert pool.y[first + i] == int(label) - 1
            assert pool.x[first + i].reshape(-1).tolist() == [round((value + 1) / 2 * 255) for value in values]
    assert pool.x[: pool.train].mean() / 255 == pytest.approx(pool.mean[0], abs=2e-3)


PARTS = {
    "cifar10": ("cifar10-10k.npz", 10_000, 4_000),
    "cifar100": ("cifar100-5k.npz", 5_000, 0),
    "svhn": ("svhn-6k.npz", 6_000, 3_000),
    "mnist-m": ("mnistm-4k.npz", 4_000, 2_000),
}


@pytest.mark.parametrize("name", PARTS)
def test_part(name: str, data_folder: Path) -> None:
    file, train, test = PARTS[name]
    if not (data_folder / file).is_file():
        pytest.skip(f"{file} is not in {data_folder}")
    pool = SOURCES.resolve({"name": name, "part": True}).load(data_folder)
    assert (pool.train, len(pool) - pool.train, pool.shape) == (train, test, (3, 32, 32))
    assert pool.note.startswith(f"a part of {name}: {train:,} of ")
    with np.load(data_folder / file) as arrays:
        for first, half, count in ((0, "train", train), (train, "test", test)):
            if count:
                x, y = arrays[f"x_{half}"], arrays[f"y_{half}"]
                assert pool.y[first : first + count].tolist() == y.tolist()
                for i, row, column, channel in ((0, 0, 0, 0), (7, 3, 30, 2), (count - 1, 31, 1, 1)):
                    assert pool.x[first + i, channel, row, column] == x[i, row, column, channel]
                assert pool.x[first : first + count].sum(dtype=np.int64) == x.sum(dtype=np.int64)


def test_pacs(data_folder: Path) -> None:
    if not (data_folder / "pacs").is_dir():
        pytest.skip(f"pacs is not in {data_folder}")
    pool = SOURCES.resolve({"name": "pacs", "size": 64, "part": True}).load(data_folder)
    folders = sorted(path for path in (data_folder / "pacs").glob("*/*") if path.is_dir())
    files = [path for folder in folders for path in sorted(folder.glob("*.jpg"))]
    assert len(pool) == len(files)
    assert pool.domains == ("art_painting", "cartoon", "photo", "sketch")
    assert pool.domain is not None
    cells = [(d, c, part) for d in range(4) for c in range(7) for part in (True, False)]
    where = np.arange(len(pool)) < pool.train
    counts = [int(np.count_nonzero((pool.domain == d) & (pool.y == c) & (where == part))) for d, c, part in cells]
    assert sum(counts) == len(files)
    assert all(counts)
    # each image of the pool is one of its own class folder, by decoded pixels, each as often as on disk
    for d, domain in enumerate(pool.domains):
        for c, kind in enumerate(sorted(path.name for path in (data_folder / "pacs" / domain).iterdir())):
            on_disk = sorted(image(path) for path in (data_folder / "pacs" / domain / kind).glob("*.jpg"))
            rows = pool.x[(pool.domain == d) & (pool.y == c)]
            assert sorted(row.transpose(1, 2, 0).tobytes() for row in rows) == on_disk
    assert not {row.tobytes() for row in pool.x[: pool.train]} & {row.tobytes() for row in pool.x[pool.train :]}


def image(path: Path) -> bytes:
    with Image.open(path) as image:
        assert image.size == (64, 64)
        return image.convert("RGB").tobytes()


def test_digit_domains(data_folder: Path) -> None:
    pool = loaded("digit-domains", data_folder)
    assert pool.shape == (3, 32, 32)
    assert pool.domains == ("mnist", "usps", "svhn", "mnist-m")
    assert pool.note.startswith("MNIST-M in place of SYN")
    assert pool.domain is not None
    parts = [loaded(name, data_folder) for name in pool.domains]
    assert np.bincount(pool.domain).tolist() == [len(part) for part in parts]
    assert np.bincount(pool.domain[: pool.train]).tolist() == [part.train for part in parts]
    svhn = pool.x[: pool.train][pool.domain[: pool.train] == 2]
    assert np.array_equal(svhn[:50], parts[2].x[:50])
    first = Image.fromarray(parts[0].x[0, 0]).resize((32, 32), Image.Resampling.BILINEAR)
    assert np.array_equal(pool.x[0], np.stack([np.asarray(first)] * 3))


def test_verify_and_listing(data_folder: Path) -> None:
    rows = {row.name: row for row in listing(data_folder)}
    assert list(rows) == list(SOURCES)
    assert rows["folder"].state == rows["npz"].state == rows["huggingface"].state == "yours"
    if rows["usps"].state == "there":
        assert rows["usps"].samples == (7_291, 2_007)
        assert rows["usps"].bytes == sum(path.stat().st_size for path in (data_folder / "usps").glob("*.bz2"))
    if rows["mnist"].state == "there":
        assert len(verify(SOURCES.resolve("mnist"), data_folder)) == 70_000
    for name, (file, train, test) in PARTS.items():
        if rows[name].state == "part":
            assert rows[name].samples == (train, test)
            assert rows[name].bytes == (data_folder / file).stat().st_size
    assert all(row.licence and row.how for row in rows.values())
