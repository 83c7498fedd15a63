"""USPS: handwritten digits from envelopes (Hull, 1994), as LIBSVM's text files.

A line is a label 1..10, for the digits 0..9, and 256 pixels in [-1, 1]. They become 0..255 by rounding (torchvision
cuts off instead, so its values are up to one grey level darker).
"""

from __future__ import annotations

import bz2
import io
from pathlib import Path
from typing import ClassVar

import numpy as np

from coterie.data.pool import Pool
from coterie.data.sources.base import File, Found, Source
from coterie.data.sources.blocks import Block, block, build, read_all, reading
from coterie.errors import UserError
from coterie.settings import spec

__all__ = ["Usps"]

LARGEST = 2**26
"""Bytes of text; the larger file has 26 million."""
ROOT = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass/"


def read_libsvm(path: Path) -> Block:
    """Images of 16x16 and labels 0..9."""
    from sklearn.datasets import load_svmlight_file  # here, because it takes seconds

    with reading(path), bz2.open(path) as stream:
        text = io.BytesIO(read_all(stream, LARGEST))
        sparse, labels = load_svmlight_file(text, n_features=256, zero_based=False)
        values = sparse.toarray()
    if np.abs(values).max(initial=0) > 1:
        raise UserError(f"{path} holds pixels outside [-1, 1]")
    x = np.rint((values + 1) * 127.5).astype(np.uint8).reshape(-1, 1, 16, 16)
    outside = labels[~np.isin(labels, np.arange(1, 11))]
    if len(outside):
        raise UserError(f"{path} holds the label {outside[0]:g}, but labels must be 1..10")
    return block(x, labels - 1, 10, path)


@spec
class Usps(Source):
    """USPS, 7,291 + 2,007 digits of 16x16."""

    name: ClassVar[str] = "usps"
    licence: ClassVar[str] = "none stated; research use"
    homepage: ClassVar[str] = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass.html#usps"
    samples: ClassVar[tuple[int, int]] = (7_291, 2_007)
    mean: ClassVar[tuple[float, ...]] = (0.2469,)
    std: ClassVar[tuple[float, ...]] = (0.2989,)
    files: ClassVar[tuple[File, ...]] = (
        File("usps/usps.bz2", "md5:ec16c51db3855ca6c91edd34d0e9b197", (ROOT + "usps.bz2",), 6_579_383),
        File("usps/usps.t.bz2", "md5:8ea070ee2aca1ac39742fdd1ef5ed118", (ROOT + "usps.t.bz2",), 1_831_726),
    )

    def read(self, found: Found) -> Pool:
        train, test = map(read_libsvm, found.paths)
        return build([train], [test], **self.about())
