"""A table in a CSV file: numbers and categories in columns, one of which is the label; or a column of text.

Numbers are standardised by the training rows, what is missing becomes their mean; a category becomes a column of zeros and ones for each
of its values. A text becomes the ids of its words, made by a checksum, so that there is no vocabulary to keep.
"""

from __future__ import annotations

import csv
import math
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from coterie.data.pool import Pool, Rows
from coterie.data.sources.base import Found, Source
from coterie.data.sources.blocks import reading
from coterie.errors import UserError, nearest
from coterie.own import file_at
from coterie.settings import Count, ProperShare, Whole, spec

__all__ = ["Csv"]

CATEGORIES = 100
"""Values that a category may have; what has more is a name or a text, and says nothing of other rows."""
CLASSES = 1000
"""Values that a label may have."""
WORD = re.compile(r"\w+")
IDS = 2**31 - 2


@spec
class Csv(Source):
    """A table of your own in a CSV file whose first line names the columns; for the models `tabular` and, with `text`, `text`."""

    name: ClassVar[str] = "csv"
    how: ClassVar[str] = 'say where: path = "a/file.csv", and which column is the label: label = "species"'

    path: str
    """A relative path is under the data folder, beside the experiment file, or under the current folder."""
    label: str
    """The column that is to be predicted: its values are the classes."""
    text: str | None = None
    """A column of text: its words are the samples, and the other columns are left out."""
    length: Count = 64
    """Of a text, at most so many words."""
    ignore: tuple[str, ...] = ()
    """Columns that are left out, such as names of rows."""
    test: ProperShare = 0.2
    """The share of the rows, drawn by `seed`, that is the test set."""
    seed: Whole = 0
    """What draws the test set."""

    def candidates(self, folder: Path) -> list[tuple[Path, ...]]:
        return [(file_at(self.path, folder),)]

    def found(self, folder: Path) -> Found | None:
        (paths,) = self.candidates(folder)
        return Found(paths, self._sizes(len(_read(paths[0])[1]))) if paths[0].is_file() else None

    def read(self, found: Found) -> Pool:
        columns, rows = _read(found.paths[0])
        for name in filter(None, (self.label, self.text, *self.ignore)):
            if name not in columns:
                raise UserError(f"{found.paths[0]} has no column '{name}': {nearest(name, columns)}")
        order = np.random.default_rng(self.seed).permutation(len(rows))
        table = {name: [rows[row][at] for row in order] for at, name in enumerate(columns)}
        train = found.samples[0]
        y, names = _classes(table.pop(self.label), self.label, found.paths[0])
        about = f"classes of {self.label}: {', '.join(names[:20])}{', ...' if len(names) > 20 else ''}"
        if self.text is not None:
            x = _tokens(table[self.text], self.length)
            return Pool(x, y, train, len(names), mean=(0.0,), std=(1.0,), labels=tuple(names), note=about)
        kept = {name: values for name, values in table.items() if name not in self.ignore}
        parts = [_numbers(values, train) if _is_numbers(values) else _categories(values, name) for name, values in kept.items()]
        columns = [entry for name, values in kept.items() for entry in _entries(name, values)]
        x = np.concatenate([*parts, np.empty((len(rows), 0), np.float32)], axis=1)
        if not x.shape[1]:
            raise UserError(f"{found.paths[0]} has no column beside the label '{self.label}' to learn from")
        mean, std = x[:train].mean(0, dtype=np.float64), x[:train].std(0, dtype=np.float64)
        scale = tuple(np.where(std > 0, std, 1.0).tolist())
        return Pool(x, y, train, len(names), tuple(mean.tolist()), scale, columns=tuple(columns), labels=tuple(names), note=about)

    def _sizes(self, rows: int) -> tuple[int, int]:
        held = min(max(1, round(self.test * rows)), rows - 1)
        return rows - held, held


def _read(path: Path) -> tuple[list[str], list[list[str]]]:
    """The names of the columns, and the rows."""
    with reading(path), path.open(newline="", encoding="utf-8-sig") as file:
        lines = [line for line in csv.reader(file) if line]
    if len(lines) < 3:
        raise UserError(f"{path} has {max(0, len(lines) - 1)} rows, expected a line of names and at least two rows")
    columns = [name.strip() for name in lines[0]]
    for number, line in enumerate(lines[1:], 2):
        if len(line) != len(columns):
            raise UserError(f"{path}, row {number}: {len(line)} values for {len(columns)} columns")
    return columns, lines[1:]


def _number(value: str) -> float | None:
    try:
        return float(value)
    except ValueError:
        return None


def _is_numbers(values: Sequence[str]) -> bool:
    """Whether a column is of numbers, some of which may be missing.

    >>> _is_numbers(["1", "", "2.5"]), _is_numbers(["1", "red"]), _is_numbers(["", ""])
    (True, False, False)
    """
    said = [value for value in values if value.strip()]
    return bool(said) and all((number := _number(value)) is not None and math.isfinite(number) for value in said)


def _numbers(values: Sequence[str], train: int) -> NDArray[np.float32]:
    """A column; what is missing is the mean of the training rows."""
    x = np.array([_number(value) if value.strip() else np.nan for value in values], np.float64)
    known = x[:train][~np.isnan(x[:train])]
    return np.where(np.isnan(x), known.mean() if len(known) else 0.0, x).astype(np.float32)[:, None]


def _entries(name: str, values: Sequence[str]) -> list[str]:
    """What a column's entries of a sample are called.

    >>> _entries("age", ["7", "8"]), _entries("city", ["Oslo", "Bern", "Oslo"])
    (['age'], ['city=Bern', 'city=Oslo'])
    """
    return [name] if _is_numbers(values) else [f"{name}={value}" for value in sorted(set(values))]


def _categories(values: Sequence[str], name: str) -> NDArray[np.float32]:
    """A column of zeros and ones for each value."""
    known = sorted(set(values))
    if len(known) > CATEGORIES:
        raise UserError(f"column '{name}' has {len(known):,} different values that are no numbers: ignore = ['{name}'], or text = '{name}'")
    ones: NDArray[np.bool_] = np.array(values)[:, None] == np.array(known)
    return ones.astype(np.float32)


def _classes(values: Sequence[str], name: str, path: Path) -> tuple[Rows, list[str]]:
    """Labels as numbers, and the classes' names in their order."""
    if lacking := sum(not value.strip() for value in values):
        raise UserError(f"{path}: {lacking:,} rows have no label in column '{name}'")
    known = sorted(set(values), key=lambda value: (_number(value) if _is_numbers(values) else 0.0, value))
    numbers = _is_numbers(values) and any(not float(value).is_integer() for value in known)
    if len(known) > CLASSES or (numbers and len(known) > 20):
        raise UserError(f"{path}: label '{name}' has {len(known):,} different values; regression is not supported, expected classes")
    at = {value: number for number, value in enumerate(known)}
    return np.array([at[value] for value in values], np.int64), known


def _tokens(texts: Sequence[str], length: int) -> NDArray[np.int32]:
    """Words as ids, and zeros after them.

    >>> _tokens(["One fish", "two fish, red fish"], 4).shape
    (2, 4)
    """
    x = np.zeros((len(texts), length), np.int32)
    for row, text in zip(x, texts, strict=True):
        ids = [1 + zlib.crc32(word.encode()) % IDS for word in WORD.findall(text.lower())[:length]]
        row[: len(ids)] = ids
    return x
