"""Pools made of pools, against plain Python and Pillow."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from coterie.data.compose import even, join, limit, resize, take, without_labels
from coterie.data.pool import Pool
from coterie.errors import UserError


def make(n: int = 20, train: int = 15, channels: int = 1, side: int = 6, classes: int = 3, seed: int = 0) -> Pool:
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 256, (n, channels, side, side), dtype=np.uint8)
    return Pool(x, rng.integers(0, classes, n), train=train, classes=classes, mean=(0.4,) * channels, std=(0.3,) * channels)


def test_join() -> None:
    pools = {"a": make(20, 15), "b": make(7, 2, seed=1), "c": make(3, 3, seed=2)}
    both = join(pools)
    a, b, c = pools.values()
    assert both.train == 20
    assert np.array_equal(both.x, np.concatenate([a.x[:15], b.x[:2], c.x, a.x[15:], b.x[2:]]))
    assert both.y.tolist() == [*a.y[:15], *b.y[:2], *c.y, *a.y[15:], *b.y[2:]]
    assert both.domain is not None
    assert both.domain.tolist() == [0] * 15 + [1] * 2 + [2] * 3 + [0] * 5 + [1] * 5
    assert (both.domains, both.mean, both.writer, both.note) == (("a", "b", "c"), (0.4,), None, "")


def test_join_writers_and_notes() -> None:
    a = dataclasses.replace(make(4, 2), writer=np.array([0, 3, -1, 1]), note="a part")
    b = dataclasses.replace(make(3, 2), mean=(0.1,))
    c = dataclasses.replace(make(2, 1), writer=np.array([0, 1]), note="another")
    both = join({"a": a, "b": b, "c": c})
    assert both.writer is not None
    assert both.writer.tolist() == [0, 3, -1, -1, 4, -1, 1, -1, 5]
    assert (both.mean, both.note) == ((0.5,), "a part; another")


def test_join_wrong() -> None:
    with pytest.raises(UserError, match="missing"):
        join({})
    with pytest.raises(UserError, match="domain 'b' has 4 classes of 6x6x1 samples, but 'a' has 3 of 6x6x1"):
        join({"a": make(), "b": make(classes=4)})
    with pytest.raises(UserError, match="domain 'b' has 3 classes of 8x8x1"):
        join({"a": make(), "b": make(side=8)})
    with pytest.raises(UserError, match="domain 'b' is itself made of domains"):
        join({"a": make(), "b": join({"c": make()})})


@pytest.mark.parametrize(("side", "size"), [(16, 32), (28, 32), (32, 32), (9, 5), (1, 4)])
@pytest.mark.parametrize(("held", "channels"), [(1, 1), (1, 3), (3, 3), (3, 1)])
def test_resize_is_pillows(side: int, size: int, held: int, channels: int) -> None:
    pool = make(6, 4, held, side)
    out = resize(pool, size, channels)
    assert out.x.shape == (6, channels, size, size)
    assert out.x.flags.c_contiguous
    assert (len(out.mean), len(out.std), out.train) == (channels, channels, 4)
    for was, became in zip(pool.x, out.x, strict=True):
        image = Image.fromarray(was[0] if held == 1 else was.transpose(1, 2, 0))
        if held == 3 and channels == 1:
            image = image.convert("L")
        one = np.asarray(image.resize((size, size), Image.Resampling.BILINEAR))
        expected = np.stack([one] * channels) if one.ndim == 2 else one.transpose(2, 0, 1)
        assert np.array_equal(became, expected)


def test_resize_leaves_its_input() -> None:
    pool = make()
    before = pool.x.copy()
    resize(pool, 32, 3)
    assert np.array_equal(pool.x, before)
    with pytest.raises(UserError, match="channels = 2"):
        resize(pool, 32, 2)


@given(st.integers(0, 60), st.integers(0, 20), st.integers(0, 5))
def test_limit_laws(train: int, test: int, seed: int) -> None:
    pool = make(80, 60, classes=4)
    few = limit(pool, train, test, seed)
    assert (few.train, len(few)) == (train, train + test)
    again = limit(pool, train, test, seed)
    assert np.array_equal(few.x, again.x)
    rows = Counter(row.tobytes() for row in few.x)
    assert all(count == 1 for count in rows.values())
    for half, kept in ((slice(60), few.y[:train]), (slice(60, 80), few.y[train:])):
        held, got = (np.bincount(y, minlength=4) for y in (pool.y[half], kept))
        # no class is more than one short of another unless it is used up
        assert all(got[c] >= got.max() - 1 or got[c] == held[c] for c in range(4))


def test_limit_balances_domains_and_keeps_all() -> None:
    both = join({"a": make(200, 150), "b": make(60, 50, seed=1)})
    few = limit(both, train=30)
    assert few.domain is not None
    assert np.bincount(few.domain[:30]).tolist() == [15, 15]
    assert len(few) - few.train == len(both) - both.train
    assert not np.array_equal(limit(both, 30, seed=1).x, few.x)
    with pytest.raises(UserError, match=r"data\.train = 500: there are 200 rows to draw from"):
        limit(both, train=500)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=8), st.data())
def test_even(counts: list[int], data: st.DataObject) -> None:
    total = data.draw(st.integers(0, sum(counts)))
    shares = even(np.array(counts), total, np.arange(len(counts)))
    assert shares.sum() == total
    assert all(0 <= share <= count for share, count in zip(shares, counts, strict=True))


def test_take_and_without_labels() -> None:
    pool = dataclasses.replace(make(), writer=np.arange(20))
    some = take(pool, np.array([3, 1, 17]))
    assert some.train == 2
    assert some.writer is not None
    assert some.writer.tolist() == [3, 1, 17]
    with pytest.raises(UserError, match="rows of the test set come before"):
        take(pool, np.array([17, 3]))
    public = without_labels(pool)
    assert set(public.y.tolist()) == {-1}
    assert public.x is pool.x
    assert limit(public, train=5).train == 5
