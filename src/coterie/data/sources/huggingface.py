"""A Hugging Face dataset saved to disk (`dataset.save_to_disk(...)`): an extra, imported only when it is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from coterie.data.pool import Pool
from coterie.data.sources.base import Found, Source
from coterie.data.sources.blocks import Block, block, build, channels_first, reading
from coterie.errors import UserError, nearest
from coterie.settings import Whole, spec

__all__ = ["HuggingFace"]


@spec
class HuggingFace(Source):
    """The splits `train` and `test` of a saved dataset, with images in one column and whole-number labels in another."""

    name: ClassVar[str] = "huggingface"
    how: ClassVar[str] = 'say where: path = "a/folder" made by save_to_disk; needs `pip install coterie[huggingface]`'

    path: str
    """A relative path is under the data folder."""
    image: str = "image"
    """The column that holds the images."""
    label: str = "label"
    """The column that holds the labels."""
    size: Whole = 0
    """Height and width to which every image is resampled; 0 leaves them as they are, and then all must be alike."""

    def found(self, folder: Path) -> Found | None:
        root = folder / Path(self.path).expanduser()
        if not root.is_dir():
            return None
        return Found(tuple(sorted(path for path in root.rglob("*") if path.is_file())), self.samples)

    def missing(self, folder: Path) -> Path:
        return folder / Path(self.path).expanduser()

    def load(self, folder: Path) -> Pool:
        self.there(folder)
        root = self.missing(folder)
        splits = load_splits(root)
        train = self.half(splits["train"], root)
        test = self.half(splits["test"], root) if "test" in splits else Block(train.x[:0], train.y[:0])
        if train.x.shape[1:] != test.x.shape[1:]:
            raise UserError(f"{root} holds training images of shape {train.x.shape[1:]} but test images of shape {test.x.shape[1:]}")
        half = (0.5,) * train.x.shape[1]
        return build([train], [test], classes=1 + int(max(train.y.max(initial=0), test.y.max(initial=0))), mean=half, std=half)

    def half(self, split: Any, root: Path) -> Block:
        """One split, checked."""
        for column in (self.image, self.label):
            if column not in split.column_names:
                raise UserError(f"{root} has no column '{column}': {nearest(column, split.column_names)}")
        with reading(root):
            pixels = [self.pixels(image) for image in split[self.image]]
            shapes = sorted({p.shape for p in pixels})
            if len(shapes) != 1:
                raise UserError(f"{root} holds images of {len(shapes)} shapes, such as {shapes[:2]}; set size to resample them")
            labels = np.asarray(split[self.label])
        return block(channels_first(np.stack(pixels)), labels, 1 + int(labels.max()), root)

    def pixels(self, image: Any) -> Any:
        """One image as uint8, H x W or H x W x 3; palettes and transparency become plain colour."""
        plain = image if image.mode in ("L", "RGB") else image.convert("RGB")
        return np.asarray(plain.resize((self.size, self.size), 2) if self.size else plain)  # 2 is Pillow's BILINEAR


def load_splits(root: Path) -> Any:
    """A mapping of splits; a dataset saved without splits is all for training."""
    try:
        import datasets
    except ImportError:
        raise UserError(f"{root} needs the package datasets: run `pip install coterie[huggingface]`") from None
    with reading(root):
        held = datasets.load_from_disk(str(root))
    splits = held if isinstance(held, dict) else {"train": held}
    if "train" not in splits:
        raise UserError(f"{root} has no split 'train': valid: {', '.join(sorted(splits))}")
    return splits
