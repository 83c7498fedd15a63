"""Four domains made of scikit-learn's digits, which load at once: as they are, inverted, turned by a quarter, and noisy."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import ClassVar

import numpy as np
from pydantic.dataclasses import dataclass

from coterie.data.compose import join
from coterie.data.pool import Pool
from coterie.data.sources import Source
from coterie.data.sources.digits import Digits
from coterie.named import STRICT

NAMES = ("plain", "inverted", "turned", "noisy")


@dataclass(frozen=True, config=STRICT)
class FourDigits(Source):
    """The same pictures in four styles."""

    name: ClassVar[str] = "four-digits"

    def load(self, folder: Path) -> Pool:
        pool = Digits().load(folder)
        noise = np.random.default_rng(0).integers(0, 128, pool.x.shape).astype(np.uint8)
        styles = (pool.x, 255 - pool.x, np.rot90(pool.x, axes=(2, 3)), np.maximum(pool.x, noise))
        return join({name: dataclasses.replace(pool, x=np.ascontiguousarray(x)) for name, x in zip(NAMES, styles, strict=True)})
