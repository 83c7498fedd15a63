"""Figures of results and of partitions share one style, and the same figure gives the same bytes."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.colors import to_hex

from coterie.data.drawing import draw_partition
from coterie.data.partitions import IID
from coterie.data.pool import Pool
from coterie.style import FORMATS, blank, colour, line_of, save_figure, styled


def test_the_same_figure_gives_the_same_bytes_in_every_format(tmp_path) -> None:
    written = []
    for name in ("one", "two"):
        with styled():
            figure, axes = blank()
            axes.plot([0, 1], [0, 1], **line_of(0, 2))
            (tmp_path / name).mkdir()
            written.append([path.read_bytes() for path in save_figure(figure, tmp_path / name, "figure")])
    assert len(written[0]) == len(FORMATS)
    assert written[0] == written[1]


def test_a_partition_has_the_colours_of_results() -> None:
    pool = Pool(np.zeros((40, 1, 2, 2), np.uint8), np.arange(40) % 4, train=30, classes=4)
    bars = draw_partition(pool, IID(clients=3).partition(pool, 0)).axes[0].patches
    assert {to_hex(bar.get_facecolor()) for bar in bars} == {colour(0).lower()}


@pytest.mark.parametrize("index", range(8))
def test_no_two_arms_look_alike(index) -> None:
    looks = [(line_of(each, 10)["color"], line_of(each, 10)["marker"]) for each in range(8)]
    assert looks.count(looks[index]) == 1
