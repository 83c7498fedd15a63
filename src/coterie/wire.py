"""The bytes of a record: safetensors, read as if an enemy had written them.

The format, as safetensors defines it: eight bytes with the length of a JSON header, the header (name -> dtype, shape, place of the
data), then the data without holes or overlaps. What may be in it is checked before a tensor is made: how long it is, how many
entries it has, what they are called, of which kind and shape they are. Nothing that arrives is ever executed.

A file that stays (a checkpoint, a client's memory) is sealed: the first thing in its header is the SHA-256 of all other bytes.
Our own reader and writer rather than the library's, because both need the header anyway: one to check it, one to seal it.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from coterie.errors import CoterieError

__all__ = ["DTYPES", "Buffer", "Limits", "RecordError", "pack", "packed_bytes", "unpack"]

Buffer: TypeAlias = bytes | bytearray | memoryview
Form: TypeAlias = tuple[str, torch.dtype, torch.Size]
"""A tensor's name, dtype and shape."""
Copy: TypeAlias = Literal["all", "small", "none"]
"""Which tensors get bytes of their own: with "small", those of at most half of all bytes, so that whoever keeps one tensor never keeps more
than twice as much alive."""

DTYPES: Mapping[str, torch.dtype] = {
    "I64": torch.int64,
    "F64": torch.float64,
    "F32": torch.float32,
    "I32": torch.int32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""What a tensor may be of, in the order in which safetensors lays tensors out: widest first, so that all are aligned."""
CODES = {dtype: code for code, dtype in DTYPES.items()}
RANK = {dtype: rank for rank, dtype in enumerate(CODES)}

OPENING = b'{"__metadata__":{"sha256":"'
SEAL = slice(8 + len(OPENING), 8 + len(OPENING) + 64)
"""Where a sealed file has its checksum."""


REMEMBERED = 64 * 2**10
"""Bytes of a header, at most, that is remembered, or whose meaning is."""
FEW = 500
"""Tensors, at most, of a record whose header is remembered."""


class RecordError(CoterieError):
    """Bytes that are not a record, or no longer the one that was written."""


@dataclass(frozen=True)
class Limits:
    """How large a record from outside may be; all is checked before anything is made of it.

    >>> Limits(entries=100).entries
    100
    """

    bytes: int = 4 * 2**30
    header: int = 4 * 2**20
    entries: int = 10_000
    """Tensors and scalars together."""
    name: int = 500
    """Characters of a name."""
    dimensions: int = 16


NONE = Limits(2**63, 2**63, 2**63, 2**63, 64)
"""For what this machine itself has written."""


def pack(tensors: Mapping[str, Tensor], metadata: Mapping[str, str], *, seal: bool = False) -> list[Buffer]:
    """The pieces of the bytes, in order; a sealed one has its checksum first in the metadata.

    >>> pieces = pack({"x": torch.ones(2)}, {"scalars": "{}"})
    >>> unpack(b"".join(pieces))[0]["x"]
    tensor([1., 1.])
    """
    order, opening = _opening(tensors, metadata, seal)
    head, bodies = bytearray(opening), [_bytes_of(tensors[name]) for name in order]
    if seal:
        head[SEAL] = _checksum([head, *bodies])
    return [head, *bodies]


def packed_bytes(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> int:
    """How many bytes `pack` makes of it.

    >>> packed_bytes({"x": torch.ones(2)}, {}) == len(b"".join(pack({"x": torch.ones(2)}, {})))
    True
    """
    return len(_opening(tensors, metadata, False)[1]) + sum(value.nbytes for value in tensors.values())


def _opening(tensors: Mapping[str, Tensor], metadata: Mapping[str, str], seal: bool) -> tuple[tuple[str, ...], bytes]:
    """The names in the order of their data, and all that comes before those."""
    forms = tuple((name, value.dtype, value.shape) for name, value in tensors.items())
    known = len(forms) <= FEW and sum(map(len, metadata.values())) <= REMEMBERED
    return (_known_head if known else _head)(forms, tuple(metadata.items()), seal)


def _head(forms: tuple[Form, ...], metadata: tuple[tuple[str, str], ...], seal: bool) -> tuple[tuple[str, ...], bytes]:
    """The names of some tensors in the order of their data, and all that comes before those."""
    header: dict[str, Any] = {"__metadata__": {**({"sha256": "0" * 64} if seal else {}), **dict(metadata)}}
    order, end = sorted(forms, key=lambda form: (RANK[form[1]], form[0])), 0
    for name, dtype, shape in order:
        begin, end = end, end + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": CODES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return tuple(name for name, _, _ in order), len(text).to_bytes(8, "little") + text


_known_head = functools.lru_cache(64)(_head)
"""Clients answer in the same form, round after round."""


def unpack(data: Buffer, limits: Limits = NONE, *, copy: Copy = "all") -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors by name, and the metadata. Tensors that are not copied lie in `data`, which must be writable.

    >>> unpack(b"12345678{}")
    Traceback (most recent call last):
    ...
    coterie.wire.RecordError: its header has 4050765991979987505 bytes, the whole has 10
    """
    whole = memoryview(data).cast("B")
    if len(whole) > limits.bytes:
        raise RecordError(f"it has {len(whole):,} bytes, more than the {limits.bytes:,} allowed")
    start = 8 + _header_length(whole, limits)
    if whole[8 : 8 + len(OPENING)] == OPENING:
        _check_seal(whole)
    layout = _known_layout if start <= REMEMBERED else _layout
    entries, metadata = layout(whole[8:start].tobytes(), len(whole) - start, limits)
    share = {"all": 1.0, "small": 0.5, "none": 0.0}[copy]
    return {name: _tensor(name, whole[start:], *entry, share) for name, entry in entries.items()}, dict(metadata)


Entry: TypeAlias = tuple[torch.dtype, list[int], int, int]
"""Dtype, shape, and where its bytes begin and end."""


def _layout(header: bytes, length: int, limits: Limits) -> tuple[Mapping[str, Entry], Mapping[str, str]]:
    """What a header says of so many bytes of data, if all of it can be so."""
    parsed = _parsed(header)
    metadata = _metadata(parsed.pop("__metadata__", None), header.startswith(OPENING))
    if len(parsed) > limits.entries:
        raise RecordError(f"it has {len(parsed):,} tensors, more than the {limits.entries:,} entries allowed")
    entries = {name: _entry(name, entry, limits) for name, entry in parsed.items()}
    _check_places(entries.values(), length)
    return entries, metadata


_known_layout = functools.lru_cache(64)(_layout)
"""Clients that were asked the same answer in the same form, round after round."""


def _bytes_of(tensor: Tensor) -> memoryview:
    if not tensor.numel():
        return memoryview(b"")
    flat = tensor.reshape(-1)  # numpy has no more than 64 dimensions
    if flat.dtype is torch.bfloat16:  # nor this
        flat = flat.view(torch.int16)
    return np.ascontiguousarray(flat.numpy(force=True)).data.cast("B")


def _checksum(pieces: Iterable[Buffer]) -> bytes:
    """Of all bytes but the checksum's own, which are in the first piece."""
    first, *rest = pieces
    sha = hashlib.sha256(memoryview(first)[: SEAL.start])
    sha.update(memoryview(first)[SEAL.stop :])
    for piece in rest:
        sha.update(piece)
    return sha.hexdigest().encode()


def _check_seal(whole: memoryview) -> None:
    if _checksum([whole]) != whole[SEAL].tobytes():
        raise RecordError("its bytes are not those that were written (the checksum differs)")


def _header_length(whole: memoryview, limits: Limits) -> int:
    length = int.from_bytes(whole[:8], "little")
    if len(whole) < 8 or length > len(whole) - 8:
        raise RecordError(f"its header has {length} bytes, the whole has {len(whole)}")
    if length > limits.header:
        raise RecordError(f"its header has {length:,} bytes, more than the {limits.header:,} allowed")
    if length % 8:
        raise RecordError("its data are not aligned")
    return length


def _parsed(text: bytes) -> dict[str, Any]:
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"its header is not JSON: {error}") from None
    if not isinstance(header, dict):
        raise RecordError("its header is not a JSON object")
    return header


def _metadata(found: object, sealed: bool) -> dict[str, str]:
    """Only what we write ourselves: so a flipped bit cannot turn a sealed file into one that needs no seal."""
    known = {"sha256", "about", "scalars"} if sealed else {"scalars"}
    if not isinstance(found, dict) or set(found) != known or not all(isinstance(value, str) for value in found.values()):
        raise RecordError("it has no scalars, or more in its header than a record has")
    return found


def _entry(name: str, entry: Any, limits: Limits) -> Entry:
    if len(name) > limits.name:
        raise RecordError(f"a name has {len(name):,} characters, more than the {limits.name} allowed")
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise RecordError(f"{name} has no dtype, shape and place")
    shape, place, code = entry["shape"], entry["data_offsets"], entry["dtype"]
    dtype = DTYPES.get(code) if isinstance(code, str) else None
    if dtype is None:
        raise RecordError(f"{name} is of {code!r:.40}, not of {', '.join(DTYPES)}")
    if not (_sizes(shape) and _sizes(place) and len(place) == 2):
        raise RecordError(f"{name} has a shape or place that is none")
    if len(shape) > limits.dimensions:
        raise RecordError(f"{name} has {len(shape)} dimensions, more than the {limits.dimensions} allowed")
    if math.prod(shape) * dtype.itemsize != place[1] - place[0] or math.prod(max(size, 1) for size in shape) >= 2**48:
        raise RecordError(f"{name} has another size than its shape")
    return dtype, shape, place[0], place[1]


def _sizes(values: object) -> bool:
    """Whether these are whole numbers that can be sizes."""
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 2**48 for value in values)


def _check_places(entries: Iterable[Entry], length: int) -> None:
    """The data follow each other without a hole, an overlap or a rest, each aligned to its dtype."""
    at = 0
    for dtype, _, begin, end in sorted(entries, key=lambda entry: entry[2:]):
        if begin != at or begin % dtype.itemsize:
            raise RecordError("its data have holes, overlap or are not aligned")
        at = end
    if at != length:
        raise RecordError(f"it has {length:,} bytes of data where its header promises {at:,}")


def _tensor(name: str, data: memoryview, dtype: torch.dtype, shape: list[int], begin: int, end: int, share: float) -> Tensor:
    """A tensor that is a copy of its bytes where it has at most this share of all of them, else one that lies in them."""
    if begin == end:
        return torch.empty(shape, dtype=dtype)
    piece = bytearray(data[begin:end]) if end - begin <= share * len(data) else data[begin:end]
    if dtype is torch.bool and int(torch.frombuffer(piece, dtype=torch.uint8).max()) > 1:
        raise RecordError(f"{name} is of BOOL but holds other bytes than 0 and 1")
    return torch.frombuffer(piece, dtype=dtype).reshape(shape)
