"""The 8x8 digits inside scikit-learn: nothing to fetch, which makes them the embedded default.

They are the test set of UCI's "Optical Recognition of Handwritten Digits" (Alpaydin and Kaynak, 1998).
"""

from __future__ import annotations

import dataclasses
from importlib.metadata import distribution
from pathlib import Path
from typing import ClassVar

import numpy as np

from coterie.data.compose import join
from coterie.data.pool import Pool
from coterie.data.sources.base import Found, Source
from coterie.data.sources.blocks import block, build
from coterie.settings import spec

__all__ = ["DigitStyles", "Digits"]


@spec
class Digits(Source):
    """1,797 digits; the fifth, tenth, fifteenth... image of each class is in the test set, in the order of scikit-learn.

    >>> pool = Digits().load(Path())
    >>> len(pool), pool.train, pool.shape, int(pool.x.max())
    (1797, 1442, (1, 8, 8), 255)
    """

    name: ClassVar[str] = "digits"
    licence: ClassVar[str] = "CC BY 4.0 (UCI)"
    homepage: ClassVar[str] = "https://archive.ics.uci.edu/dataset/80"
    how: ClassVar[str] = "it ships inside scikit-learn"
    package: ClassVar[str] = "scikit-learn"
    samples: ClassVar[tuple[int, int]] = (1442, 355)
    mean: ClassVar[tuple[float, ...]] = (0.3053,)
    std: ClassVar[tuple[float, ...]] = (0.3760,)

    def found(self, folder: Path) -> Found:
        return Found((), self.samples)

    def read(self, found: Found) -> Pool:
        table = np.loadtxt(_file(), delimiter=",", dtype=np.int64)
        values, y = table[:, :-1], table[:, -1]
        x = np.rint(values * 255 / 16).astype(np.uint8).reshape(-1, 1, 8, 8)
        nth = np.zeros(len(y), np.int64)
        for label in range(10):
            nth[y == label] = np.arange(np.count_nonzero(y == label))
        test = nth % 5 == 4
        train, held = (block(x[rows], y[rows], 10, Path("scikit-learn's digits")) for rows in (~test, test))
        return build([train], [held], **self.about())


def _file() -> Path:
    """Where scikit-learn has them. Its `load_digits` would import all of it first, which takes longer than the demo's first run."""
    return Path(str(distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")))


@spec
class DigitStyles(Source):
    """The 8x8 digits in four styles that stand for domains: as they are, inverted, turned by a quarter, and noisy.

    >>> DigitStyles().load(Path()).domains
    ('plain', 'inverted', 'turned', 'noisy')
    """

    name: ClassVar[str] = "digit-styles"
    licence: ClassVar[str] = Digits.licence
    homepage: ClassVar[str] = Digits.homepage
    how: ClassVar[str] = Digits.how
    package: ClassVar[str] = Digits.package
    samples: ClassVar[tuple[int, int]] = (4 * 1442, 4 * 355)

    def found(self, folder: Path) -> Found:
        return Found((), self.samples)

    def read(self, found: Found) -> Pool:
        pool = Digits().load(Path())
        noise = np.random.default_rng(0).integers(0, 128, pool.x.shape).astype(np.uint8)
        styles = {
            "plain": pool.x,
            "inverted": 255 - pool.x,
            "turned": np.ascontiguousarray(np.rot90(pool.x, axes=(2, 3))),
            "noisy": np.maximum(pool.x, noise),
        }
        note = "four styles of the same digits, made by us"
        return dataclasses.replace(join({name: dataclasses.replace(pool, x=x) for name, x in styles.items()}), note=note)
