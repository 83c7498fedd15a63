"""Which few samples stand for many: pure functions (features, labels, budget, seed) -> indices, chosen class by class.

Every selection takes min(budget, size) samples of each class. Samples are first put into an order that only their contents decide, so
that permuting them permutes the selection; equally good ones are taken in that order, and of equal ones the first by index. What needs
scikit-learn runs on one thread, because how a sum is split over threads changes its bits, and imports it when used: it takes seconds.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from coterie.seeds import seed_of
from coterie.settings import Count, Registry, Spec, field_of, spec

__all__ = [
    "SELECTIONS",
    "Entropy",
    "FacilityLocation",
    "Full",
    "Geometric",
    "Herding",
    "KCentre",
    "KMeansSelection",
    "Random",
    "Selected",
    "Selection",
    "sketch",
]

Floats: TypeAlias = NDArray[np.float32]
Indices: TypeAlias = NDArray[np.int64]
POWER = 2
"""Power iterations of the randomised PCA: see benchmarks/selection.py for what they are worth."""
CHUNK_MB = 16
"""How much of a table of distances is in RAM at once."""


@functools.cache
def _pools() -> ThreadpoolController:
    """The thread pools of this process, scikit-learn's too; looking for them takes longer than a small selection."""
    import sklearn.cluster  # noqa: F401 (brings its own)

    return ThreadpoolController()


@spec
class Selection(Spec):
    """One way to choose; subclasses say how to `pick` within a class.

    >>> features, labels = np.eye(4, dtype=np.float32), np.array([0, 0, 0, 1])
    >>> Herding().select(features, labels, budget=3, seed=0).tolist()
    [0, 1, 2, 3]
    """

    sees: ClassVar[Literal["maps", "logits", "nothing"]] = "maps"
    """What its features are: a sample's (projected) maps, what the whole network says of it, or an empty row."""

    def select(self, features: Floats, labels: Indices, budget: int, seed: int) -> Indices:
        """The positions of the chosen samples, sorted.

        Args:
            features: a row for each sample.
            labels: the class of each.
            budget: how many of a class at most.
            seed: decides what is drawn at random, if anything is.
        """
        order = np.array(sorted(range(len(features)), key=lambda row: features[row].tobytes()), dtype=np.int64)
        chosen = [order[rows] for rows in self._classes(features[order], labels[order], budget, seed)]
        return np.sort(np.concatenate(chosen)) if chosen else np.empty(0, np.int64)

    def _classes(self, features: Floats, labels: Indices, budget: int, seed: int) -> Iterator[Indices]:
        """What is chosen of each class."""
        seen = self.prepare(features, seed)
        for label in np.unique(labels).tolist():
            rows = np.flatnonzero(labels == label)
            yield rows[self.pick(seen[rows], label, budget, seed_of(seed, label))] if len(rows) > budget else rows

    def prepare(self, features: Floats, seed: int) -> Floats:
        """What is done to the features of all classes together."""
        return features

    def pick(self, features: Floats, label: int, budget: int, seed: int) -> Indices:
        """`budget` positions among the rows of one class, which has more than that."""
        raise NotImplementedError


@spec
class Full(Selection):
    """Everything, whatever the budget."""

    name: ClassVar[str] = "full"
    sees: ClassVar[Literal["maps", "logits", "nothing"]] = "nothing"

    def pick(self, features: Floats, label: int, budget: int, seed: int) -> Indices:
        return np.arange(len(features))


@spec
class Random(Selection):
    """Drawn without looking."""

    name: ClassVar[str] = "random"
    sees: ClassVar[Literal["maps", "logits", "nothing"]] = "nothing"

    def pick(self, features: Floats, label: int, budget: int, seed: int) -> Indices:
        return np.random.default_rng(seed).permutation(len(features))[:budget]


@spec
class Geometric(Selection):
    """By distance in the space of the first principal components."""

    components: Count = 200
    pca: Literal["client", "class"] = "client"
    """Whether the components are those of all a client's samples (the order of the paper's text) or of each class."""
    solver: Literal["randomised", "exact"] = "randomised"

    def select(self, features: Floats, labels: Indices, budget: int, seed: int) -> Indices:
        with _pools().limit(limits=1):
            return super().select(features, labels, budget, seed)

    def prepare(self, features: Floats, seed: int) -> Floats:
        return self.reduce(features, seed) if self.pca == "client" else features

    def pick(self, features: Floats, label: int, budget: int, seed: int) -> Indices:
        return self.near(self.reduce(features, seed) if self.pca == "class" else features, budget, seed)

    def reduce(self, features: Floats, seed: int) -> Floats:
        """The principal components, fewer than samples; where features have no more dimensions than that, they stay as they are."""
        from sklearn.decomposition import PCA

        kept = min(self.components, len(features) - 1)
        if features.shape[1] <= self.components or kept < 1:
            return features
        how: dict[str, Any] = {"svd_solver": "full"}
        if self.solver == "randomised":
            how = {"svd_solver": "randomized", "iterated_power": POWER, "random_state": seed % 2**32}
        with np.errstate(invalid="ignore"):  # constant features have no variance to explain a share of
            reduced: Floats = PCA(kept, **how).fit_transform(features)
        new = np.append(True, (features[1:] != features[:-1]).any(1))  # equal samples, neighbours here, are not told apart by rounding
        alike: Floats = reduced[np.flatnonzero(new)[np.cumsum(new) - 1]]
        return alike

    def near(self, points: Floats, budget: int, seed: int) -> Indices:
        """`budget` of more points."""
        raise NotImplementedError


@spec
class KMeansSelection(Geometric):
    """Shi & Radu's: k-means with as many clusters as the budget, and within each cluster the real sample nearest to its centre."""

    name: ClassVar[str] = "kmeans"
    restarts: Count = 10
    batch: Count | None = None
    """Samples in a mini-batch; None for Lloyd's algorithm on all, which is as fast up to a few thousand samples."""

    def clusters(self, points: Floats, count: int, seed: int) -> tuple[Floats, Indices]:
        """Where k-means ends: the centres, and the cluster of each point."""
        from sklearn.cluster import KMeans, MiniBatchKMeans
        from sklearn.exceptions import ConvergenceWarning

        how = {"n_clusters": count, "n_init": self.restarts, "random_state": seed % 2**32}
        means = KMeans(**how) if self.batch is None else MiniBatchKMeans(batch_size=self.batch, **how)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # where samples repeat, so may centres
            means.fit(points)
        return means.cluster_centers_, means.labels_

    def near(self, points: Floats, budget: int, seed: int) -> Indices:
        from sklearn.metrics import pairwise_distances

        centres, cluster = self.clusters(points, budget, seed)
        distance = pairwise_distances(centres, points)
        members = cluster == np.arange(budget)[:, None]
        chosen = [int(np.where(own, row, np.inf).argmin()) for row, own in zip(distance, members, strict=True) if own.any()]
        for row in distance[~members.any(1)]:  # a cluster that nobody is in, as where samples repeat, takes what is nearest and left
            row[chosen] = np.inf
            chosen.append(int(row.argmin()))
        return np.array(chosen)


@spec
class KCentre(Geometric):
    """Farthest first (Gonzalez 1985): from the sample nearest to the mean on, always the one that is farthest from all chosen."""

    name: ClassVar[str] = "k-centre"

    def near(self, points: Floats, budget: int, seed: int) -> Indices:
        chosen = [int(_from(points, points.mean(0)).argmin())]
        distance = np.full(len(points), np.inf, points.dtype)
        while len(chosen) < budget:
            distance = np.minimum(distance, _from(points, points[chosen[-1]]))
            distance[chosen] = -1
            chosen.append(int(distance.argmax()))
        return np.array(chosen)


@spec
class Herding(Geometric):
    """Greedily, so that the mean of the chosen stays as near as can be to the mean of all (Welling 2009)."""

    name: ClassVar[str] = "herding"

    def near(self, points: Floats, budget: int, seed: int) -> Indices:
        mean, total, free = points.mean(0), np.zeros_like(points[0]), np.ones(len(points), bool)
        chosen: list[int] = []
        while len(chosen) < budget:
            away = _from((total + points) / (len(chosen) + 1), mean)
            chosen.append(int(np.where(free, away, np.inf).argmin()))
            free[chosen[-1]] = False
            total = total + points[chosen[-1]]
        return np.array(chosen)


@spec
class FacilityLocation(Geometric):
    """Greedily, so that the distances of all samples to their nearest chosen one sum to as little as can be: a submodular gain."""

    name: ClassVar[str] = "facility-location"

    def near(self, points: Floats, budget: int, seed: int) -> Indices:
        far = 2 * float(_from(points, points.mean(0)).max())  # no two samples are farther apart
        nearest, chosen = np.full(len(points), far), list[int]()
        while len(chosen) < budget:
            gains = np.concatenate(list(_gains(points, nearest)))
            gains[chosen] = -1
            chosen.append(int(gains.argmax()))
            nearest = np.minimum(nearest, _from(points, points[chosen[-1]]))
        return np.array(chosen)


def _gains(points: Floats, nearest: NDArray[np.float64]) -> Iterator[NDArray[np.float64]]:
    """By how much each sample, were it chosen, would bring all others nearer to a chosen one."""
    from sklearn.metrics import pairwise_distances_chunked

    def gain(distances: Floats, start: int) -> NDArray[np.float64]:
        gained: NDArray[np.float64] = np.maximum(nearest - distances, 0).sum(1)
        return gained

    yield from pairwise_distances_chunked(points, reduce_func=gain, working_memory=CHUNK_MB)


def _from(points: Floats, place: Floats) -> NDArray[Any]:
    """The distance of every point from one place."""
    found: NDArray[Any] = np.linalg.norm(points - place, axis=1)
    return found


@spec
class Entropy(Selection):
    """Those of which the network is least sure: by the entropy of what it says, or by the length of its gradient (Paul et al. 2021)."""

    name: ClassVar[str] = "entropy"
    sees: ClassVar[Literal["maps", "logits", "nothing"]] = "logits"
    by: Literal["entropy", "gradient"] = "entropy"
    """`gradient`: the norm of the cross-entropy's gradient in the logits, softmax minus label."""
    prefer: Literal["high", "low"] = "high"

    def pick(self, features: Floats, label: int, budget: int, seed: int) -> Indices:
        values = features.astype(np.float64)
        logs = values - np.logaddexp.reduce(values, axis=1, keepdims=True)
        if self.by == "entropy":
            value = -(np.exp(logs) * logs).sum(1)
        else:
            value = np.linalg.norm(np.exp(logs) - np.eye(features.shape[1])[label], axis=1)
        return np.argsort(-value if self.prefer == "high" else value, kind="stable")[:budget]


SELECTIONS: Registry[Selection] = Registry(
    "selection", Selection, [KMeansSelection, Full, Random, KCentre, Herding, FacilityLocation, Entropy]
)
Selected = Annotated[Selection, field_of(SELECTIONS, "method.selection")]
"""The type of a method's `selection` field."""


def sketch(rows: Floats, width: int, seed: int) -> Floats:
    """Rows in `width` dimensions with their distances about kept, in time n log n and no matrix: a fast Johnson-Lindenstrauss transform.

    Signs drawn at random, a cosine transform, and a random choice of its coefficients (after Ailon & Chazelle 2006). Rows that are no
    wider stay as they are.

    >>> rows = np.random.default_rng(0).normal(size=(2, 4096)).astype(np.float32)
    >>> ratio = np.linalg.norm(np.diff(sketch(rows, 1024, seed=0), axis=0)) / np.linalg.norm(np.diff(rows, axis=0))
    >>> bool(0.9 < ratio < 1.1)
    True
    """
    if rows.shape[1] <= width:
        return rows
    import scipy.fft  # here, because few runs need it

    rng = np.random.default_rng(seed)
    signs = rng.choice(np.array([-1, 1], rows.dtype), rows.shape[1])
    kept = np.sort(rng.permutation(rows.shape[1])[:width])
    mixed: Floats = scipy.fft.dct(rows * signs, norm="ortho", axis=1)[:, kept]
    return mixed * np.asarray((rows.shape[1] / width) ** 0.5, rows.dtype)
