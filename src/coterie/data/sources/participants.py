"""Data that nobody but the participants of a deployment has: here are only names of classes, a size, and how many samples each registered.

`coterie deploy server` fills in who registered with how many. A run on it can be read, checked and resumed anywhere; only
participants, each from a folder of its own, can train.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from coterie.data.pool import Pool
from coterie.data.sources.base import Found, Source
from coterie.data.sources.images import images, read_images
from coterie.errors import UserError
from coterie.settings import Count, ShareBelowOne, spec

__all__ = ["Participants"]


@spec
class Participants(Source):
    """What real participants hold in folders of their own, `class/*.png` or .jpg; for `coterie deploy`.

    >>> pool = Participants(labels=("cat", "dog"), names=("north", "south"), held=(30, 20), channels=1, size=8).load(Path())
    >>> len(pool), pool.shape, pool.domains
    (50, (1, 8, 8), ('north', 'south'))
    """

    name: ClassVar[str] = "participants"
    how: ClassVar[str] = 'name the classes: labels = ["cat", "dog"]; participants have class/*.png in folders of their own'

    labels: tuple[str, ...]
    """The names of every participant's class folders, in the order of their numbers."""
    size: Count = 32
    """Height and width to which every image is resampled."""
    channels: Literal[1, 3] = 3
    """1 for grey, 3 for colour."""
    test: ShareBelowOne = 0.2
    """The share of every class that a participant keeps for testing."""
    names: tuple[str, ...] = ()
    """Who takes part; filled in by `coterie deploy server`."""
    held: tuple[Count, ...] = ()
    """With how many training samples each has registered."""

    def found(self, folder: Path) -> Found | None:
        return Found((), (sum(self.held), 0))

    def load(self, folder: Path) -> Pool:
        """Rows without pictures: as many as were registered."""
        rows, (c, h) = sum(self.held), (self.channels, self.size)
        domain = np.repeat(np.arange(len(self.names)), self.held)
        x = np.zeros((rows, c, h, h), np.uint8)  # pages that nobody touches take no memory
        note = "of participants' data only the numbers of samples are known, not their classes"
        return Pool(x, np.zeros(rows, np.int64), rows, len(self.labels), domain=domain, domains=self.names, note=note)

    def own(self, folder: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.bool_]]:
        """A participant's own images, their labels, and which are for testing."""
        strays = sorted(each.name for each in folder.iterdir() if each.is_dir() and each.name not in self.labels)
        if strays:
            raise UserError(f"--data {folder}: '{strays[0]}' is no class of this experiment; expected {', '.join(self.labels)}")
        paths = [(path, label) for label, name in enumerate(self.labels) if (folder / name).is_dir() for path in images(folder / name)]
        if not paths:
            raise UserError(f"--data {folder}: no images; expected folders called {', '.join(self.labels)} with .png or .jpg in them")
        colours = read_images([path for path, _ in paths], self.size)
        x = colours if self.channels == 3 else np.rint(colours.mean(1, keepdims=True)).astype(np.uint8)
        y = np.array([label for _, label in paths], dtype=np.int64)
        return x, y, self._test(y)

    def _test(self, y: NDArray[np.int64]) -> NDArray[np.bool_]:
        chosen = np.zeros(len(y), bool)
        for label, name in enumerate(self.labels):
            rows = np.random.default_rng(zlib.crc32(name.encode())).permutation(np.flatnonzero(y == label))
            chosen[rows[: min(round(len(rows) * self.test), len(rows) - 1)]] = True
        return chosen
