"""Four digit domains as in FCCL (Huang, Ye & Du, CVPR 2022), with MNIST-M in the place of SYN, which could not be had."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar, Literal

from coterie.data.compose import join, resize
from coterie.data.pool import Pool
from coterie.data.sources.base import Found, Source
from coterie.data.sources.idx import Mnist
from coterie.data.sources.images import MnistM
from coterie.data.sources.svhn import Svhn
from coterie.data.sources.usps import Usps
from coterie.settings import spec

__all__ = ["DigitDomains"]

SUBSTITUTE = "MNIST-M in place of SYN"


@spec
class DigitDomains(Source):
    """MNIST, USPS, SVHN and MNIST-M as one pool of 32x32 colour images."""

    name: ClassVar[str] = "digit-domains"
    licence: ClassVar[str] = "as mnist, usps, svhn, mnist-m"
    how: ClassVar[str] = "get mnist, usps, svhn and mnist-m"

    parts: tuple[Literal["svhn", "mnist-m"], ...] = ()
    """The domains of which the part is read, and not the complete set."""

    def found(self, folder: Path) -> Found | None:
        each = [source.found(folder) for source in self.sources()]
        there = [found for found in each if found is not None]
        if len(there) < len(each):
            return None
        train, test = (sum(found.samples[half] for found in there) for half in (0, 1))
        return Found(tuple(path for found in there for path in found.paths), (train, test), part=any(found.part for found in there))

    def as_it_lies(self, folder: Path) -> Source:
        parts: Any = [each.name for each in self.sources() if (found := each.as_it_lies(folder).found(folder)) and found.part]
        return DigitDomains(parts=tuple(parts))

    def reads(self, folder: Path) -> Iterable[Path]:
        self.there(folder)
        return [path for source in self.sources() for path in source.reads(folder)]

    def missing(self, folder: Path) -> Path:
        return next(source.missing(folder) for source in self.sources() if source.found(folder) is None)

    def load(self, folder: Path) -> Pool:
        self.there(folder)
        pool = join({source.name: resize(source.load(folder), 32, 3) for source in self.sources()})
        return dataclasses.replace(pool, note="; ".join(filter(None, (SUBSTITUTE, pool.note))))

    def sources(self) -> tuple[Source, ...]:
        """The domains, in FCCL's order."""
        return Mnist(), Usps(), Svhn(part="svhn" in self.parts), MnistM(part="mnist-m" in self.parts)
