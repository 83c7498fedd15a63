"""Images of partitions: what they count, that they fit, and what they are written as."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from coterie.data.drawing import count, draw_partition, save
from coterie.data.partitions import IID, Dirichlet, Domains, Partitioner, Quantity
from coterie.data.pool import Pool
from coterie.errors import UserError


def pool_of(train: int, classes: int = 10) -> Pool:
    n = train + 100
    x = np.broadcast_to(np.zeros((1, 1, 2, 2), np.uint8), (n, 1, 2, 2))
    return Pool(x, np.random.default_rng(0).integers(0, classes, n), train, classes, domain=np.arange(n) % 3, domains=("a", "b", "c"))


def test_counts_include_validation_rows() -> None:
    pool = pool_of(1000)
    partition = Dirichlet(clients=7, validation=0.3)
    table = count(pool, partition.partition(pool, 0))
    assert table.shape == (7, 10)
    assert table.sum(axis=0).tolist() == np.bincount(pool.y[:1000]).tolist()
    assert (table == count(pool, Dirichlet(clients=7).partition(pool, 0))).all()


@pytest.mark.parametrize(
    ("partition", "classes", "labels"),
    [
        (IID(clients=1), 1, {"samples", "class"}),
        (IID(clients=2), 10, {"samples", "class"}),
        (Dirichlet(clients=10), 100, {"samples", "class"}),
        (Quantity(clients=40, spread=3.0), 10, {"samples (log)", "class"}),
        (Domains(), 10, {"samples", "class"}),
        (Domains(clients=60), 10, {"clients", "class"}),
        (IID(clients=100), 10, {"clients", "class"}),
        (Dirichlet(clients=500, alpha=0.1), 10, {"clients", "class"}),
        (Quantity(clients=3000, spread=2.0), 2, {"clients", "class"}),
    ],
)
def test_any_partition_is_drawn_on_a_page(partition: Partitioner, classes: int, labels: set[str], tmp_path: Path) -> None:
    pool = pool_of(6000, classes)
    figure = draw_partition(pool, partition.partition(pool, 0), "a title")
    assert {axes.get_ylabel() for axes in figure.axes} - {"share of the client's samples"} == labels
    assert figure.get_suptitle() == "a title"
    assert figure.get_figwidth() <= 7.2
    with Image.open(save(figure, tmp_path / "image.png")) as image:
        assert np.asarray(image.convert("L")).std() > 5


def test_the_largest_bubble_is_the_largest_count() -> None:
    pool = pool_of(1000)
    partition = Dirichlet(clients=6, alpha=0.3).partition(pool, 0)
    table = count(pool, partition)
    bubbles = draw_partition(pool, partition, "").axes[1].collections[0]
    client, kind = bubbles.get_offsets()[np.argmax(bubbles.get_sizes())]
    assert table[int(client), int(kind)] == table.max()
    assert len(bubbles.get_sizes()) == np.count_nonzero(table)


def test_domains_have_a_colour_and_a_name_each() -> None:
    pool = pool_of(300)
    figure = draw_partition(pool, Domains().partition(pool, 0), "")
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b", "c"]
    assert len({bar.get_facecolor() for bar in figure.axes[0].patches}) == 3


@pytest.mark.parametrize(("form", "magic"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_saved_images_repeat_to_the_byte(form: str, magic: bytes, tmp_path: Path) -> None:
    pool = pool_of(300)
    partition = IID(clients=4).partition(pool, 0)
    first, second = (save(draw_partition(pool, partition, "iid"), tmp_path / "new folder" / f"{name}.{form}").read_bytes() for name in "ab")
    assert first.startswith(magic)
    assert first == second


def test_other_formats_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"\.pdf, \.png or \.svg"):
        save(Figure(), tmp_path / "image.gif")


def test_pyplot_stays_out() -> None:
    code = "import sys, coterie.data.drawing; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
