"""What a source is: a named data set that knows its files, their checksums and how to become a pool.

A source lists `candidates`, the sets of files that would each make it complete; the first that is all there is read.
Some sources may also be had as a part. Which of the two is read is for the experiment to say (`part = true`), never for what happens
to lie in the data folder; the pool's `note` then says that it is a part.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from coterie.data.pool import Pool
from coterie.data.sources.blocks import build, npz_counts, read_npz
from coterie.errors import UserError
from coterie.own import looked
from coterie.settings import Spec, spec

__all__ = ["File", "Found", "Parted", "Source", "matches"]


@dataclasses.dataclass(frozen=True)
class File:
    """One file to download."""

    path: str
    """Where it belongs, under the data folder."""
    checksum: str
    """`algorithm:hexadecimal`, as published."""
    urls: tuple[str, ...]
    """Tried in order until one gives the bytes that the checksum promises."""
    size: int = 0
    """In bytes; 0 where it is not known."""
    unpacks: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """For a tar archive: the members to keep, as paths under the data folder, each with its checksum. The archive itself goes."""

    @property
    def leaves(self) -> Mapping[str, str]:
        """What lies in the data folder afterwards: path -> checksum.

        >>> File("a.gz", "md5:0", ()).leaves, File("a.tar", "md5:0", (), unpacks={"a/b": "md5:1"}).leaves
        ({'a.gz': 'md5:0'}, {'a/b': 'md5:1'})
        """
        return self.unpacks or {self.path: self.checksum}


def matches(path: Path, checksum: str) -> bool:
    """Whether a file is there with this checksum.

    >>> matches(Path("nowhere"), "md5:0")
    False
    """
    algorithm, _, known = checksum.partition(":")
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest() == known.lower()


@dataclasses.dataclass(frozen=True)
class Found:
    """A source that is there, found without reading it."""

    paths: tuple[Path, ...]
    samples: tuple[int, int]
    """Training and test images."""
    part: bool = False

    @property
    def bytes(self) -> int:
        """Size on disk.

        >>> Found((), (1, 1)).bytes
        0
        """
        return sum(path.stat().st_size for path in self.paths)


class Source(Spec):
    """Base of every source: `load` gives a pool, the class variables tell `coterie data` about it.

    One's own implements `found` and `read`, so that the digest of the data can cover every file; where there is nothing but a `load`, all
    that it gives is read for the digest.
    """

    package: ClassVar[str] = ""
    """The installed package that the data ship in, if they do: its version stands for them."""
    licence: ClassVar[str] = "yours"
    homepage: ClassVar[str] = ""
    how: ClassVar[str] = ""
    """How to get it, where `coterie data fetch` cannot."""
    files: ClassVar[tuple[File, ...]] = ()
    samples: ClassVar[tuple[int, int]] = (0, 0)
    """Training and test images of the complete set."""
    classes: ClassVar[int] = 10
    mean: ClassVar[tuple[float, ...]] = (0.5,)
    std: ClassVar[tuple[float, ...]] = (0.5,)

    def load(self, folder: Path) -> Pool:
        """The pool, from the files under `folder`."""
        found = self.there(folder)
        pool = self.read(found)
        got = (pool.train, len(pool) - pool.train)
        if got != found.samples:
            where = found.paths[0].parent if found.paths else folder
            raise UserError(f"{where} holds {got[0]} + {got[1]} images, but {self.name} has {found.samples[0]} + {found.samples[1]}")
        return pool

    def read(self, found: Found) -> Pool:
        """The pool, from files known to be there."""
        raise NotImplementedError

    def there(self, folder: Path) -> Found:
        """What is found under `folder`; where that is not what was asked for, a sentence that says what to do."""
        found = self.found(folder)
        if found is None:
            where = ", ".join(map(str, looked(own, folder) if (own := getattr(self, "path", None)) else [folder]))
            raise UserError(f"{self.lacking(folder)}: {self.name} was looked for in {where}; {self.advice()}{self._other(folder)}")
        return found

    def _other(self, folder: Path) -> str:
        """What to write for what is there in place of what was asked for."""
        other = self.as_it_lies(folder)
        found = other.found(folder)
        what = "a part" if found and found.part else "the complete set"
        return f"; {what} is there, for that write source = {_inline(other)}" if found else ""

    def as_it_lies(self, folder: Path) -> Source:
        """This source with the settings that fit what lies under `folder`: the complete set where it is there, else the part."""
        return self

    def reads(self, folder: Path) -> Iterable[Path]:
        """Every file that `load` opens; the digest of the data is of their bytes."""
        return self.there(folder).paths

    def found(self, folder: Path) -> Found | None:
        """What there is of it under `folder`, without reading it; None when it is not complete."""
        complete = next((paths for paths in self.candidates(folder) if all(path.is_file() for path in paths)), None)
        return None if complete is None else Found(complete, self.samples)

    def candidates(self, folder: Path) -> list[tuple[Path, ...]]:
        """The sets of files that would each make it complete, best first."""
        return [tuple(folder / path for file in self.files for path in file.leaves)]

    def lacking(self, folder: Path) -> str:
        """What is wrong where it is not found, as the beginning of a sentence."""
        return f"{self.missing(folder)} is missing"

    def missing(self, folder: Path) -> Path:
        """The first file that is not there, of the candidate that has begun to be."""
        candidates = self.candidates(folder)
        begun = next((paths for paths in candidates if any(path.is_file() for path in paths)), candidates[0])
        return next(path for path in begun if not path.is_file())

    def check(self, paths: Sequence[Path]) -> None:
        """Compare those of these files whose checksums are published with them."""
        known = {leaf: checksum for file in self.files for leaf, checksum in file.leaves.items()}
        for path in paths:
            checksum = known.get("/".join(path.parts[-2:]))
            if checksum is not None and not matches(path, checksum):
                raise UserError(f"{path} has a wrong checksum: run `coterie data fetch {self.name}`")

    @classmethod
    def advice(cls) -> str:
        """How to get it, in half a sentence."""
        return " ".join(filter(None, (f"run `coterie data fetch {cls.name}`" if cls.files else "", cls.how)))

    def about(self) -> dict[str, Any]:
        """The fields of the pool that the class knows."""
        return {"classes": self.classes, "mean": self.mean, "std": self.std}


@spec
class Parted(Source):
    """A source of which a part may lie in the data folder as one `.npz`."""

    part_file: ClassVar[str] = ""
    part: bool = False
    """Whether the part is read, and not the complete set."""

    def found(self, folder: Path) -> Found | None:
        if not self.part:
            return super().found(folder)
        path = folder / self.part_file
        return Found((path,), npz_counts(path), part=True) if path.is_file() else None

    def as_it_lies(self, folder: Path) -> Source:
        complete, part = (dataclasses.replace(self, part=part) for part in (False, True))
        return complete if complete.found(folder) or not part.found(folder) else part

    def missing(self, folder: Path) -> Path:
        return folder / self.part_file if self.part else super().missing(folder)

    def read(self, found: Found) -> Pool:
        if not found.part:
            return self.complete(found.paths)
        train, test = read_npz(found.paths[0], self.classes)
        (a, b), (c, d) = found.samples, self.samples
        note = f"a part of {self.name}: {a:,} of {c:,} training and {b:,} of {d:,} test images"
        return build([train], [test], note=note, **self.about())

    def complete(self, paths: tuple[Path, ...]) -> Pool:
        """The pool of the complete set."""
        raise NotImplementedError


def _inline(source: Source) -> str:
    """A source as one writes it in an experiment."""
    changed = {f.name: getattr(source, f.name) for f in dataclasses.fields(source) if getattr(source, f.name) != f.default}  # type: ignore[arg-type]
    return "{ " + ", ".join(f"{key} = {json.dumps(value)}" for key, value in {"name": source.name, **changed}.items()) + " }"
