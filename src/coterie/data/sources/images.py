"""Images in folders: `domain/class/*.jpg`, the layout of Office-Home and PACS, and MNIST-M's list of images.

A tree of domains has no official test set, so one is drawn: from every class of every domain, by a seed, each class
keeping at least one image for training. An image that occurs twice in the tree (some do, under two names) is never
drawn, so no training image is in the test set. Images become squares of `size` by bilinear resampling, without cropping.
"""

from __future__ import annotations

import dataclasses
import warnings
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from coterie.data.pool import Pool, Rows
from coterie.data.sources.base import Found, Parted, Source
from coterie.data.sources.blocks import Block, block, build, reading
from coterie.errors import UserError
from coterie.own import file_at
from coterie.settings import Count, ShareBelowOne, Whole, spec

__all__ = ["Folder", "MnistM", "OfficeHome", "Pacs", "read_images"]

SUFFIXES = (".jpg", ".jpeg", ".png")
FORMATS = ("JPEG", "PNG")
"""Whatever a file is called: for some formats Pillow starts other programs."""
PIXELS = 50_000_000
"""Of one image: a small file can unpack to any number of them."""


def read_images(paths: Sequence[Path], size: int) -> NDArray[np.uint8]:
    """Images as colour squares, N x 3 x size x size."""
    x = np.empty((len(paths), 3, size, size), np.uint8)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Image size .* exceeds limit")  # Pillow's, which only warns; ours refuses
        for row, path in zip(x, paths, strict=True):
            try:
                row[:] = _square(path, size)
            except Exception as error:  # a damaged image makes Pillow raise OSError, SyntaxError, struct.error and others
                raise UserError(f"{path} does not decode as an image: {error}") from None
    return x


def _square(path: Path, size: int) -> NDArray[np.uint8]:
    from PIL import Image  # here, because few runs need it

    if not path.is_file():  # a pipe would keep us waiting for ever
        raise ValueError("it is not a file")
    with Image.open(path, formats=FORMATS) as image:
        if image.width * image.height > PIXELS:
            raise ValueError(f"it has {image.width} x {image.height} pixels, more than the {PIXELS:,} allowed")
        return np.asarray(image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR)).transpose(2, 0, 1)


@dataclasses.dataclass(frozen=True)
class Tree:
    """A walk through `domain/class/image`, sorted at every level."""

    domains: tuple[str, ...]
    classes: tuple[str, ...]
    paths: tuple[Path, ...]
    domain: Rows
    label: Rows


def walk(root: Path) -> Tree:
    """The tree below `root`; every domain must have every class, and every class an image."""
    domains = below(root)
    if not domains:
        raise UserError(f"{root} holds no folders; it must hold domain/class/*.jpg")
    classes = sorted({kind.name for domain in domains for kind in below(domain)})
    if not classes:
        raise UserError(f"{domains[0]} holds no class folders; {root} must hold domain/class/*.jpg")
    rows = [(path, d, c) for d, domain in enumerate(domains) for c, name in enumerate(classes) for path in images(domain / name)]
    names = tuple(domain.name for domain in domains)
    numbers = [np.array(column, dtype=np.int64) for column in ([d for _, d, _ in rows], [c for _, _, c in rows])]
    return Tree(names, tuple(classes), tuple(path for path, _, _ in rows), *numbers)


def below(folder: Path) -> list[Path]:
    """The folders in a folder, sorted, without hidden ones."""
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith((".", "__")))


def images(folder: Path) -> list[Path]:
    """The images of one class, sorted; none is an error."""
    if not folder.is_dir():
        raise UserError(f"{folder} is missing: every domain must have every class")
    found = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and not path.name.startswith("."))
    if not found:
        raise UserError(f"{folder} is empty: a class needs at least one .jpg or .png")
    return found


def draw_test(tree: Tree, x: NDArray[np.uint8], fraction: float, seed: int) -> NDArray[np.bool_]:
    """Which images are for testing: of every class in every domain the same share, never one that occurs twice."""
    marks = [row.tobytes() for row in x]
    times = Counter(marks)
    single = np.array([times[mark] == 1 for mark in marks])
    test = np.zeros(len(x), bool)
    for d, domain in enumerate(tree.domains):
        for c, name in enumerate(tree.classes):
            rows = np.flatnonzero((tree.domain == d) & (tree.label == c))
            # named, not numbered: a further domain leaves the others' split as it was
            rng = np.random.default_rng([seed, zlib.crc32(f"{domain}/{name}".encode())])
            drawable = rng.permutation(rows)
            drawable = drawable[single[drawable]]
            test[drawable[: min(round(len(rows) * fraction), len(rows) - 1)]] = True
    return test


@spec
class Folder(Source):
    """Any tree `domain/class/*.jpg` (or .png); a relative `path` is under the data folder, beside the experiment file, or here."""

    name: ClassVar[str] = "folder"
    how: ClassVar[str] = 'say where: path = "a/folder", with domain/class/*.jpg below'
    mean: ClassVar[tuple[float, ...]] = (0.485, 0.456, 0.406)
    std: ClassVar[tuple[float, ...]] = (0.229, 0.224, 0.225)

    path: str
    """The folder with `domain/class/*.jpg` (or .png) below."""
    size: Count = 32
    """Height and width to which every image is resampled."""
    test: ShareBelowOne = 0.2
    """Share of every class in every domain that is kept for testing."""
    seed: Whole = 0
    """Decides the split."""

    def found(self, folder: Path) -> Found | None:
        root = file_at(self.path, folder)
        if not root.is_dir():
            return None
        paths = tuple(sorted(path for path in root.glob("*/*/*") if path.suffix.lower() in SUFFIXES))
        return Found(paths, (len(paths), 0))

    def missing(self, folder: Path) -> Path:
        return file_at(self.path, folder)

    def load(self, folder: Path) -> Pool:
        self.there(folder)
        tree = walk(self.missing(folder))
        x = read_images(tree.paths, self.size)
        test = draw_test(tree, x, self.test, self.seed)
        order = np.concatenate([np.flatnonzero(~test), np.flatnonzero(test)])
        return Pool(
            x[order],
            tree.label[order],
            train=int(np.count_nonzero(~test)),
            classes=len(tree.classes),
            mean=self.mean,
            std=self.std,
            domain=tree.domain[order],
            domains=tree.domains,
            note=self.note(len(x)),
        )

    def note(self, held: int) -> str:
        """What to tell of a pool of so many images."""
        return ""


@spec
class PublishedTree(Folder):
    """A tree that was published with a number of images, of which some may be there."""

    part: bool = False
    """Whether fewer images than were published will do."""

    def found(self, folder: Path) -> Found | None:
        found = super().found(folder)
        if found is None or self._is_part(found) != self.part:
            return None
        return dataclasses.replace(found, part=self.part)

    def as_it_lies(self, folder: Path) -> Source:
        found = super().found(folder)
        return self if found is None else dataclasses.replace(self, part=self._is_part(found))

    def lacking(self, folder: Path) -> str:
        found = super().found(folder)
        if found is None:
            return super().lacking(folder)
        return f"{self.missing(folder)} holds {len(found.paths):,} images and {self.name} has {sum(self.samples):,}"

    def note(self, held: int) -> str:
        """That it is a part, where it is."""
        return f"a part of {self.name}: {held:,} of {sum(self.samples):,} images" if self.part else ""

    def _is_part(self, found: Found) -> bool:
        return len(found.paths) < sum(self.samples)


@spec
class Pacs(PublishedTree):
    """PACS (Li et al., 2017): photos, art paintings, cartoons and sketches of seven classes."""

    name: ClassVar[str] = "pacs"
    licence: ClassVar[str] = "none stated; research use"
    homepage: ClassVar[str] = "https://domaingeneralization.github.io/"
    how: ClassVar[str] = "get it from https://domaingeneralization.github.io/ and put its four domain folders in pacs/"
    samples: ClassVar[tuple[int, int]] = (9_991, 0)

    path: str = "pacs"

    def note(self, held: int) -> str:
        """Also that it stands where the papers have Office-Home, which has the same layout."""
        return "; ".join(filter(None, ("PACS in place of Office-Home", super().note(held))))


@spec
class OfficeHome(PublishedTree):
    """Office-Home (Venkateswara et al., 2017): art, clip art, product and real-world images of 65 classes."""

    name: ClassVar[str] = "office-home"
    licence: ClassVar[str] = "fair use notice; non-commercial research"
    homepage: ClassVar[str] = "https://www.hemanthdv.org/officeHomeDataset.html"
    how: ClassVar[str] = "get it from https://www.hemanthdv.org/officeHomeDataset.html and put its four domain folders in office-home/"
    samples: ClassVar[tuple[int, int]] = (15_588, 0)

    path: str = "office-home"


@spec
class MnistM(Parted):
    """MNIST-M (Ganin et al., 2016) as published, in `mnist_m/`, or the part `mnistm-4k.npz`."""

    name: ClassVar[str] = "mnist-m"
    licence: ClassVar[str] = "none stated; made of MNIST and BSDS500 photographs"
    homepage: ClassVar[str] = "http://yaroslav.ganin.net/"
    how: ClassVar[str] = "get mnist_m.tar.gz from http://yaroslav.ganin.net/ and unpack it in the data folder"
    part_file: ClassVar[str] = "mnistm-4k.npz"
    samples: ClassVar[tuple[int, int]] = (59_001, 9_001)
    mean: ClassVar[tuple[float, ...]] = (0.5, 0.5, 0.5)
    std: ClassVar[tuple[float, ...]] = (0.5, 0.5, 0.5)

    def candidates(self, folder: Path) -> list[tuple[Path, ...]]:
        return [tuple(folder / "mnist_m" / f"mnist_m_{part}_labels.txt" for part in ("train", "test"))]

    def complete(self, paths: tuple[Path, ...]) -> Pool:
        train, test = map(read_list, paths)
        return build([train], [test], **self.about())

    def reads(self, folder: Path) -> Iterable[Path]:
        found = self.there(folder)
        lists = () if found.part else found.paths
        return [*found.paths, *(path for each in lists for path in sorted(images_of(each).iterdir()))]


def read_list(path: Path) -> Block:
    """Images named in a text file, one `name label` a line, in the folder beside it that it is named after."""
    with reading(path):
        lines = [line.split() for line in path.read_text().splitlines() if line.strip()]
        names, labels = [name for name, _ in lines], np.array([int(label) for _, label in lines])
    elsewhere = next((name for name in names if Path(name).name != name), None)
    if elsewhere is not None:
        raise UserError(f"{path} names {elsewhere!r:.80}, which is not in the folder beside it")
    return block(read_images([images_of(path) / name for name in names], 32), labels, 10, path)


def images_of(path: Path) -> Path:
    """The folder that a text file is about."""
    return path.with_name(path.name.removesuffix("_labels.txt"))
