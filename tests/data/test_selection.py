"""Selections: what must hold of all of them on any data, each against an independent account of it, and the sketch."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.cluster import KMeans
from threadpoolctl import threadpool_limits

from coterie.data.selection import SELECTIONS, Entropy, FacilityLocation, Full, Herding, KCentre, KMeansSelection, Random, Selection, sketch
from coterie.errors import UserError
from coterie.seeds import seed_of

ALL = [
    KMeansSelection(restarts=1),
    KMeansSelection(restarts=1, components=2),
    KMeansSelection(restarts=1, components=2, pca="class"),
    KMeansSelection(restarts=1, components=1, solver="exact"),
    KMeansSelection(restarts=1, batch=4),
    KMeansSelection(restarts=1, components=5),
    Full(),
    Random(),
    KCentre(components=2),
    Herding(),
    FacilityLocation(components=3),
    Entropy(),
    Entropy(by="gradient"),
    Entropy(prefer="low"),
]
NAMES = [str(each) for each in ALL]
CLASSES = 3


@st.composite
def samples(draw) -> tuple[np.ndarray, np.ndarray]:
    """Up to 14 samples of up to three classes; values from few or from many, so that equal samples and constant ones occur."""
    n = draw(st.integers(1, 14))
    values = st.sampled_from([0.0, 1.0]) if draw(st.booleans()) else st.floats(-100, 100, width=32)
    features = draw(arrays(np.float32, (n, draw(st.integers(CLASSES, 6))), elements=values))
    return features, draw(arrays(np.int64, n, elements=st.integers(0, draw(st.integers(0, CLASSES - 1)))))


def contents(features: np.ndarray, labels: np.ndarray, chosen: np.ndarray) -> Counter[tuple[bytes, int]]:
    return Counter((features[row].tobytes(), int(labels[row])) for row in chosen)


@pytest.mark.parametrize("selection", ALL, ids=NAMES)
@settings(max_examples=25, deadline=None)
@given(samples(), st.integers(1, 16), st.integers(0, 2**40), st.randoms(use_true_random=False))
def test_what_holds_of_every_selection(selection: Selection, data, budget, seed, random) -> None:
    """Distinct, sorted, as many of each class as the budget allows, all where it allows all, the same again, and whatever the order."""
    features, labels = data
    before = features.copy(), labels.copy()
    chosen = selection.select(features, labels, budget, seed)
    assert chosen.dtype == np.int64
    assert np.array_equal(chosen, np.unique(chosen))
    sizes = Counter(labels.tolist())
    allowed = sizes if isinstance(selection, Full) else {label: min(budget, size) for label, size in sizes.items()}
    assert Counter(labels[chosen].tolist()) == Counter(allowed)
    assert np.array_equal(chosen, selection.select(features, labels, budget, seed))
    assert np.array_equal(features, before[0])
    assert np.array_equal(labels, before[1])
    order = np.array(random.sample(range(len(labels)), len(labels)))
    moved = selection.select(features[order], labels[order], budget, seed)
    assert contents(features[order], labels[order], moved) == contents(features, labels, chosen)


@pytest.mark.parametrize("selection", ALL, ids=NAMES)
def test_permuting_samples_permutes_the_selection(selection: Selection) -> None:
    """Samples that all differ: the very same ones, not only equal ones."""
    rng = np.random.default_rng(0)
    features, labels = rng.normal(size=(60, 8)).astype(np.float32), rng.integers(0, CLASSES, 60)
    chosen = selection.select(features, labels, 4, seed=1)
    for turn in range(3):
        order = np.random.default_rng(turn).permutation(60)
        assert np.array_equal(np.sort(order[selection.select(features[order], labels[order], 4, seed=1)]), chosen)


@pytest.mark.parametrize("selection", ALL, ids=NAMES)
def test_large_constant_features(selection: Selection) -> None:
    """More samples and dimensions than components, and no variance: the first of equal samples by index."""
    chosen = selection.select(np.full((30, 10), 2.5, np.float32), np.repeat([0, 2], 15), 3, seed=0)
    assert len(chosen) == (30 if isinstance(selection, Full) else 6)
    if not isinstance(selection, Full | Random):
        assert chosen.tolist() == [0, 1, 2, 15, 16, 17]


@pytest.mark.parametrize("selection", ALL, ids=NAMES)
def test_no_samples(selection: Selection) -> None:
    assert selection.select(np.empty((0, 5), np.float32), np.empty(0, np.int64), 3, seed=0).tolist() == []


def clusters(seed: int = 0) -> np.ndarray:
    """Four clouds in twelve dimensions, far from each other."""
    rng = np.random.default_rng(seed)
    return (np.repeat(rng.normal(size=(4, 12)) * 10, 15, axis=0) + rng.normal(size=(60, 12))).astype(np.float32)


def by_content(features: np.ndarray) -> np.ndarray:
    return np.array(sorted(range(len(features)), key=lambda row: features[row].tobytes()))


def components(features: np.ndarray, count: int) -> np.ndarray:
    """PCA by numpy's SVD, where there are more dimensions than that."""
    if features.shape[1] <= count:
        return features
    centred = features.astype(np.float64) - features.mean(0, dtype=np.float64)
    left, values, _ = np.linalg.svd(centred, full_matrices=False)
    return left[:, :count] * values[:count]


def squared(centres: np.ndarray, points: np.ndarray) -> np.ndarray:
    return ((centres[:, None] - points[None]) ** 2).sum(2)


def nearest_within(centres: np.ndarray, points: np.ndarray) -> list[int]:
    """Shi & Radu, section 3.1, by hand: a cluster is what is nearer to its centre than to any other, and its nearest member is chosen."""
    distances = squared(centres, points)
    cluster = distances.argmin(0)
    return [min(np.flatnonzero(cluster == k).tolist(), key=lambda row: distances[k, row]) for k in range(len(centres))]


def ring() -> np.ndarray:
    """Samples around an empty middle, and thirty together that are nearer to it than any of those.

    Of its clusterings several are as good to the last digits: so it has no dimension too many, and nothing rounds before k-means does.
    """
    axes = np.eye(12)
    around = np.concatenate([axes[1:], -axes[1:]]) * np.linspace(3, 3.5, 22)[:, None]
    together = 2.5 * axes[:1] + 0.05 * np.random.default_rng(0).normal(size=(30, 12))
    return np.concatenate([around, together]).astype(np.float32)


@pytest.mark.parametrize(("features", "dimensions", "count"), [(clusters(), 5, 4), (ring(), 12, 2)])
def test_kmeans_takes_the_nearest_to_each_centre_within_its_cluster(features, dimensions, count) -> None:
    """Only the centres are scikit-learn's. Around an empty middle, the nearest of all samples is not a member."""
    order = by_content(features)
    points = components(features[order], dimensions)
    selection, elsewhere = KMeansSelection(components=dimensions, solver="exact"), 0
    for seed in range(6):
        with threadpool_limits(1):
            centres = KMeans(count, n_init=10, random_state=seed_of(seed, 0) % 2**32).fit(points).cluster_centers_
        expected = nearest_within(centres, points)
        elsewhere += squared(centres, points).argmin(1).tolist() != expected
        chosen = selection.select(features, np.zeros(len(features), np.int64), count, seed=seed)
        assert np.array_equal(chosen, np.sort(order[expected]))
    assert (elsewhere > 0) == (count == 2), "the ring tells the two readings apart"


@settings(max_examples=25, deadline=None)
@given(samples(), st.integers(1, 8), st.integers(0, 2**20))
def test_every_cluster_that_has_a_member_is_stood_for_by_one(data, budget, seed) -> None:
    points, _ = data
    if len(points) > budget:
        selection = KMeansSelection(restarts=1)
        _, cluster = selection.clusters(points, budget, seed)
        chosen = selection.near(points, budget, seed)
        assert len(set(chosen.tolist())) == budget
        assert set(cluster[chosen].tolist()) == set(cluster.tolist())


def test_kmeans_finds_the_clouds() -> None:
    features, labels = clusters(), np.zeros(60, np.int64)
    for selection in (KMeansSelection(), KMeansSelection(components=3), KMeansSelection(batch=20), KCentre(), FacilityLocation()):
        assert sorted(selection.select(features, labels, 4, seed=0) // 15) == [0, 1, 2, 3], selection


def test_the_scope_of_pca() -> None:
    """Two classes that vary in different directions, one much more: components of both together do not see the quiet one."""
    rng = np.random.default_rng(0)
    loud, quiet = np.zeros((40, 6), np.float32), np.zeros((40, 6), np.float32)
    loud[:, :2] = 100 * rng.normal(size=(40, 2))
    quiet[:, 2] = np.where(np.arange(40) < 20, -1, 1) + 0.01 * rng.normal(size=40)
    features, labels = np.concatenate([loud, quiet]), np.repeat([0, 1], 40)
    sides = {}
    for scope in ("client", "class"):
        chosen = KMeansSelection(components=2, pca=scope, solver="exact").select(features, labels, 2, seed=0)
        sides[scope] = sorted((chosen[chosen >= 40] - 40) // 20)
    assert sides["class"] == [0, 1]
    reduced = KMeansSelection(components=2, solver="exact").prepare(features, 0)
    assert np.ptp(reduced[40:], axis=0).max() < 1, "seen through the loud class's components"


def test_pca_is_left_out_of_few_dimensions_and_keeps_all_of_few_samples() -> None:
    features = clusters()
    selection = KMeansSelection(components=12)
    assert selection.prepare(features, 0) is features
    assert KMeansSelection(components=11).prepare(features, 0).shape == (60, 11)
    few = KMeansSelection(components=11).prepare(features[:6], 0)
    assert few.shape == (6, 5), "no more components than few samples have, and those keep every distance"
    away = [np.linalg.norm(each[:, None] - each[None], axis=2) for each in (features[:6], few)]
    np.testing.assert_allclose(away[1], away[0], rtol=1e-4, atol=1e-4)


def test_randomised_pca_is_as_good_as_exact() -> None:
    """Distances in the space of five components of a decaying spectrum agree to a percent."""
    rng = np.random.default_rng(1)
    features = (rng.normal(size=(200, 60)) * 0.8 ** np.arange(60)).astype(np.float32)
    exact, fast = (KMeansSelection(components=5, solver=solver).prepare(features, 3) for solver in ("exact", "randomised"))
    assert not np.array_equal(exact, fast)
    away = [np.linalg.norm(each[:, None] - each[None], axis=2) for each in (exact, fast)]
    assert abs(away[1] - away[0]).max() < 0.02 * away[0].max()


def test_k_centre_by_hand() -> None:
    """On a line: nearest to the mean (4), then the farthest (20), then the other end (0)."""
    line = np.array([[4], [0], [20], [1], [2]], np.float32)
    assert KCentre().select(line, np.zeros(5, np.int64), 1, 0).tolist() == [0]
    assert KCentre().select(line, np.zeros(5, np.int64), 2, 0).tolist() == [0, 2]
    assert KCentre().select(line, np.zeros(5, np.int64), 3, 0).tolist() == [0, 1, 2]


def test_herding_by_hand() -> None:
    """Mean 5: 4 is nearest; then 7, because (4 + 7) / 2 is nearer to 5 than any other pair with 4."""
    line = np.array([[0], [4], [7], [9]], np.float32)
    assert Herding().select(line, np.zeros(4, np.int64), 1, 0).tolist() == [1]
    assert Herding().select(line, np.zeros(4, np.int64), 2, 0).tolist() == [1, 2]


def test_facility_location_is_the_greedy_one() -> None:
    """Against all sets, one more sample at a time, by the sum of distances to the nearest chosen."""
    points = clusters(3)[::3].astype(np.float64)
    away = np.linalg.norm(points[:, None] - points[None], axis=2)
    chosen: list[int] = []
    for _ in range(5):
        costs = {row: away[:, [*chosen, row]].min(1).sum() for row in range(len(points)) if row not in chosen}
        chosen.append(min(costs, key=lambda row: costs[row]))
    found = FacilityLocation().select(points.astype(np.float32), np.zeros(len(points), np.int64), 5, 0)
    assert found.tolist() == sorted(chosen)


def test_entropy_and_gradient_of_given_logits() -> None:
    logits = np.log(np.array([[0.98, 0.01, 0.01], [0.4, 0.3, 0.3], [0.01, 0.98, 0.01], [0.34, 0.33, 0.33]], np.float32))
    labels = np.zeros(4, np.int64)
    assert Entropy().select(logits, labels, 2, 0).tolist() == [1, 3], "unsure"
    assert Entropy(prefer="low").select(logits, labels, 2, 0).tolist() == [0, 2], "sure, right or wrong"
    assert Entropy(by="gradient").select(logits, labels, 1, 0).tolist() == [2], "sure and wrong"
    assert Entropy(by="gradient", prefer="low").select(logits, labels, 1, 0).tolist() == [0], "sure and right"


THREADS = """
import numpy as np
from coterie.data.selection import SELECTIONS

rng = np.random.default_rng(0)
features = (rng.normal(size=(700, 400)) * 0.99 ** np.arange(400)).astype(np.float32)
labels = rng.integers(0, 2, 700)
for name in ("kmeans", "k-centre", "herding", "facility-location"):
    selection = SELECTIONS.resolve({"name": name, "components": 50})
    print(selection.select(features, labels, 20, 0).tolist())
"""


def test_threads_do_not_matter() -> None:
    """Whatever the machine offers to the libraries below."""

    def found(threads: str) -> str:
        many = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), threads)
        return subprocess.run(
            [sys.executable, "-c", THREADS], capture_output=True, text=True, check=True, env={**os.environ, **many}
        ).stdout

    assert found("1") == found("4")


def test_random_depends_on_the_seed() -> None:
    features, labels = clusters(), np.zeros(60, np.int64)
    found = {tuple(Random().select(features, labels, 5, seed).tolist()) for seed in range(8)}
    assert len(found) == 8


def test_the_sketch_keeps_distances() -> None:
    """Of every pair of 40 smooth rows, to 15% at a sixteenth of the width; the same seed gives the same sketch in any batch."""
    rng = np.random.default_rng(0)
    rows = np.cumsum(rng.normal(size=(40, 8192)), axis=1).astype(np.float32)
    small = sketch(rows, 512, seed=4)
    assert small.shape == (40, 512)
    assert small.dtype == np.float32
    assert np.array_equal(small[7:9], sketch(rows[7:9], 512, seed=4))
    assert not np.array_equal(small, sketch(rows, 512, seed=5))
    upper = np.triu_indices(40, 1)
    true, kept = (np.linalg.norm(each[upper[0]] - each[upper[1]], axis=1) for each in (rows, small))
    assert abs(kept / true - 1).max() < 0.15
    assert sketch(rows, 8192, seed=4) is rows


def test_the_registry() -> None:
    assert set(SELECTIONS) == {"kmeans", "full", "random", "k-centre", "herding", "facility-location", "entropy"}
    assert SELECTIONS.resolve({"name": "kmeans", "components": 50}).components == 50
    with pytest.raises(UserError, match="selection 'kmean' is unknown: did you mean 'kmeans'"):
        SELECTIONS.resolve("kmean")
