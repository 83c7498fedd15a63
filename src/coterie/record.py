"""Record: named tensors plus scalars, immutable. The only format on the wire, in a client's memory and in a checkpoint.

Names are paths: `Record(model=net.state_dict(), examples=600)` holds `model/conv1.weight` and `examples`, and
`record["model"]` is the Record of everything under `model/`. Bytes are safetensors: nothing that arrives is ever executed.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import mmap
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias, TypeGuard, Union

import torch
from torch import Tensor

from coterie import durable
from coterie.awaited import Awaited
from coterie.errors import nearest
from coterie.wire import CODES, NONE, Buffer, Copy, Limits, RecordError, pack, packed_bytes, unpack

__all__ = ["EMPTY", "NO_LIMITS", "Limits", "Record", "RecordError", "Scalar", "decode", "encode", "framed_bytes", "read", "write"]

Scalar: TypeAlias = bool | int | float | str
Entry: TypeAlias = Union[Tensor, Scalar, "Record", Mapping[str, "Entry"]]

PART = r"[^/\x00-\x1f\x7f\ud800-\udfff]+"
PATH = re.compile(f"{PART}(?:/{PART})*")
"""A name: printable parts between slashes; half a character (a lone surrogate) has no bytes to travel in."""
LIMITS = Limits()
NO_LIMITS = NONE


def _flatten(entries: Mapping[str, Entry], prefix: str = "") -> Iterator[tuple[str, Tensor | Scalar]]:
    for name, value in entries.items():
        if not isinstance(name, str) or not name:
            raise TypeError(f"a record's names are non-empty strings, not {name!r}")
        if isinstance(value, Record) and _is_path(prefix + name):  # what it holds was checked when it was made
            yield from ((f"{prefix}{name}/{path}", held) for path, held in value._flat.items())
        elif isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}/")
        elif isinstance(value, Tensor | bool | int | float | str):
            yield prefix + name, _checked(prefix + name, value)
        else:
            raise TypeError(f"{prefix}{name} is a {type(value).__name__}; a record holds tensors, numbers, strings and other records")


def _first(name: str) -> str:
    """Up to the first slash or dot."""
    return name.partition("/")[0].partition(".")[0]


def _floating(value: object) -> TypeGuard[Tensor]:
    return isinstance(value, Tensor) and value.is_floating_point()


def _checked(path: str, value: Tensor | Scalar) -> Tensor | Scalar:
    """The value, if it can travel under this name: what cannot is found where it is made, not where it arrives."""
    if not _is_path(path):
        raise TypeError(f"{path!r:.80} is not a name: expected printable parts between slashes")
    if isinstance(value, Awaited):
        return value
    if isinstance(value, Tensor):
        if value.layout is not torch.strided or value.dtype not in CODES or value.is_meta or value.is_nested:
            kind = f"{'meta ' if value.is_meta else ''}{str(value.layout).removeprefix('torch.')} {str(value.dtype).removeprefix('torch.')}"
            raise TypeError(f"{path} is a {kind} tensor; a record holds dense ones of {', '.join(map(_plain, CODES))}")
        return value.detach()
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise TypeError(f"{path} = {value!r:.80} holds half a character") from None
    elif isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise TypeError(f"{path} is a whole number of {value.bit_length()} bits; a record holds up to 64")
    return value


@functools.lru_cache(4096)  # networks have the same names in every round
def _is_path(name: str) -> bool:
    return PATH.fullmatch(name) is not None


def _plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _check_groups(flat: Mapping[str, object]) -> None:
    """No name is both a value and a group of values: one would hide the other."""
    for path in flat:
        end = path.rfind("/")
        while end > 0:
            if path[:end] in flat:
                raise TypeError(f"{path[:end]} is a value, so there cannot also be {path}")
            end = path.rfind("/", 0, end)


def _describe(value: Tensor | Scalar) -> str:
    if isinstance(value, Tensor):
        return f"{_plain(value.dtype)}{list(value.shape)}"
    return repr(value)


class Record(Mapping[str, "Tensor | Scalar | Record"]):
    """Named tensors plus scalars.

    >>> record = Record(model={"weight": torch.ones(2, 3)}, examples=600)
    >>> list(record), record["examples"], record.payload_bytes
    (['model/weight', 'examples'], 600, 24)
    >>> record["model"]
    Record(weight=float32[2, 3])
    >>> decode(encode(record)) == record
    True
    """

    __slots__ = ("_flat",)
    _flat: dict[str, Tensor | Scalar]

    def __init__(self, entries: Mapping[str, Entry] | None = None, /, **named: Entry) -> None:
        flat = dict(_flatten({**(entries or {}), **named}))
        _check_groups(flat)
        object.__setattr__(self, "_flat", flat)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a Record is immutable; make a new one, e.g. record | Record(...)")

    def __getitem__(self, key: str) -> Tensor | Scalar | Record:
        if key in self._flat:
            return self._flat[key]
        below = self._below(key)
        if not below:
            raise KeyError(f"no '{key}' in this record; {nearest(key, self.groups)}")
        return below

    def _below(self, key: str) -> Record:
        """What lies under `key`: what was checked when this record was made need not be again."""
        found = object.__new__(Record)
        flat = {name[len(key) + 1 :]: value for name, value in self._flat.items() if name.startswith(key + "/")}
        object.__setattr__(found, "_flat", flat)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._flat)

    def __len__(self) -> int:
        return len(self._flat)

    def __contains__(self, key: object) -> bool:
        return key in self._flat or any(name.startswith(f"{key}/") for name in self._flat)

    def __or__(self, other: Record) -> Record:
        return Record({**self._flat, **other._flat})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Record) and self.digest() == other.digest()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = [f"{name}={_describe(value)}" for name, value in self._flat.items()]
        return f"Record({', '.join(shown[:6] + ['...'] * (len(shown) > 6))})"

    @property
    def groups(self) -> tuple[str, ...]:
        """The first part of every path, once each."""
        return tuple(dict.fromkeys(name.split("/", 1)[0] for name in self._flat))

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors by path: what `load_state_dict` takes."""
        return {name: value for name, value in self._flat.items() if isinstance(value, Tensor)}

    @property
    def scalars(self) -> dict[str, Scalar]:
        """The scalars by path."""
        return {name: value for name, value in self._flat.items() if not isinstance(value, Tensor)}

    @property
    def payload_bytes(self) -> int:
        """What the tensors weigh, by dtype and size; `len(encode(record))` adds the framing."""
        return sum(value.numel() * value.element_size() for value in self.tensors.values())

    def select(self, *parts: str) -> Record:
        """Only what belongs to some parts of a network or to some groups: the names whose first piece is one of them.

        >>> model = Record({"body.weight": torch.ones(1), "head.weight": torch.ones(1), "head.bias": torch.ones(1)})
        >>> list(model.select("head"))
        ['head.weight', 'head.bias']
        """
        return Record({name: value for name, value in self._flat.items() if _first(name) in parts})

    def drop(self, *parts: str) -> Record:
        """What `select` would leave out.

        >>> list(Record({"body.weight": torch.ones(1), "head.bias": torch.ones(1)}).drop("head"))
        ['body.weight']
        >>> list(Record(model={"w": torch.ones(1)}, moments={"w": torch.ones(1)}).drop("moments"))
        ['model/w']
        """
        return Record({name: value for name, value in self._flat.items() if _first(name) not in parts})

    def under(self, part: str) -> Record:
        """One network out of several: the names that begin with `part.`, without that beginning.

        >>> list(Record({"private.weight": torch.ones(1), "meme.weight": torch.ones(1)}).under("meme"))
        ['weight']
        """
        return Record({name[len(part) + 1 :]: value for name, value in self._flat.items() if name.startswith(f"{part}.")})

    def prefixed(self, part: str) -> Record:
        """The same under names that begin with `part.`: what `under` takes apart again.

        >>> list(Record(weight=torch.ones(1)).prefixed("meme"))
        ['meme.weight']
        """
        return Record({f"{part}.{name}": value for name, value in self._flat.items()})

    def map(self, function: Callable[[Tensor], Tensor]) -> Record:
        """Every floating tensor through a function; integers (a counter of batches) and scalars stay.

        >>> Record(w=torch.ones(1), n=torch.tensor(3)).map(lambda value: 2 * value).tensors
        {'w': tensor([2.]), 'n': tensor(3)}
        """
        return Record({name: function(value) if _floating(value) else value for name, value in self._flat.items()})

    def combine(self, other: Record, function: Callable[[Tensor, Tensor], Tensor]) -> Record:
        """Every floating tensor with the one of the same name in `other`; integers and scalars stay as they are here.

        >>> Record(w=torch.ones(1)).combine(Record(w=torch.ones(1), more=torch.ones(1)), lambda a, b: a - b).tensors
        {'w': tensor([0.])}
        """
        theirs = other.tensors
        return Record({n: function(value, theirs[n]) if _floating(value) else value for n, value in self._flat.items()})

    def group(self, key: str) -> Record:
        """What lies under `key`: like `record[key]`, but always a Record, empty where there is nothing."""
        if key in self._flat:
            raise KeyError(f"'{key}' is one value, not a group of them")
        return self._below(key)

    def settled(self, weights: Mapping[str, Tensor]) -> Record:
        """The same, with the weights that it was waiting for.

        >>> from coterie.awaited import awaited
        >>> Record(model={"w": awaited(None, "0.weight")}, examples=600).settled({"0.weight": torch.ones(2)})
        Record(model/w=float32[2], examples=600)
        """
        return Record({name: weights[value.weight_of] if isinstance(value, Awaited) else value for name, value in self._flat.items()})

    def number(self, key: str) -> float:
        """The scalar `key` as a number."""
        found = self[key]
        if not isinstance(found, int | float):
            raise KeyError(f"'{key}' is not a number but {found!r}")
        return found

    def digest(self) -> str:
        """SHA-256 over names, dtypes, shapes, tensor bits and scalars, in the order of names."""
        sha = hashlib.sha256()
        for name in sorted(self._flat):
            value = self._flat[name]
            sha.update(f"{name}\0{_describe(value)}\0".encode())
            if isinstance(value, Tensor):
                sha.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return sha.hexdigest()

    def fault(self) -> str | None:
        """The first value that is not finite, or None."""
        for name, value in self._flat.items():
            if isinstance(value, Tensor):
                if value.is_floating_point() and not bool(torch.isfinite(value).all()):
                    return f"{name} is not finite"
            elif isinstance(value, float) and not math.isfinite(value):
                return f"{name} = {value} is not finite"
        return None


EMPTY = Record()
"""The record of nothing."""


def encode(record: Record, take: Callable[[int], Buffer] = bytearray) -> Buffer:
    """The bytes that travel: safetensors, with the scalars as JSON in its header; `take` gives the memory for so many."""
    pieces = pack(record.tensors, {"scalars": _scalars(record)})
    data, at = take(sum(map(len, pieces))), 0
    with memoryview(data) as room:
        for piece in pieces:
            room[at : at + len(piece)] = piece
            at += len(piece)
    return data


def framed_bytes(tensors: Mapping[str, Tensor], scalars: Mapping[str, Scalar]) -> int:
    """The length of what `encode` makes of a record of these.

    >>> framed_bytes({"w": torch.ones(3)}, {"examples": 600}) == len(encode(Record(w=torch.ones(3), examples=600)))
    True
    """
    return packed_bytes(tensors, {"scalars": json.dumps(scalars, sort_keys=True)})


def decode(data: Buffer, limits: Limits = LIMITS, *, copy: Copy | None = None) -> Record:
    """The record that `encode` made these bytes from; whatever else they are is a `RecordError`.

    What is not bytes is handed over: unless `copy` says otherwise, a tensor that is most of it stays where it is.

    >>> decode(b"not a record")
    Traceback (most recent call last):
    ...
    coterie.wire.RecordError: these bytes are not a record: its header has 7309940746704154478 bytes, the whole has 12
    """
    try:
        return _assemble(*unpack(data, limits, copy=copy or ("all" if isinstance(data, bytes) else "small")), limits)
    except RecordError as error:
        raise RecordError(f"these bytes are not a record: {error}") from None


def write(record: Record, path: Path, about: str = "", *, sync: bool = True, keep: Path | None = None) -> int:
    """Write a file that stays: whole or not at all, and sealed with a checksum. Returns its size.

    `about` says what it is (a checkpoint, the memory of which client): `read` tells one file from another by it. The file that it
    replaces goes to `keep`, if that is given.
    """
    metadata = {"about": about, "scalars": _scalars(record)}
    return durable.write(path, *pack(record.tensors, metadata, seal=True), sync=sync, keep=keep)


def read(path: Path, about: str | None = None) -> Record:
    """Read a file of `write` or one of `encode`'s bytes; a damaged one, or one that is about something else, is a `RecordError`.

    Tensors are mapped from the file, private to the reader; those of an unsealed file are loaded when they are touched.
    """
    with path.open("rb") as file:
        try:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            tensors, metadata = unpack(memoryview(mapped), copy="none")
            record = _assemble(tensors, metadata)
        except ValueError:  # mmap's word for an empty file
            raise RecordError(f"{path} is damaged: it is empty") from None
        except RecordError as error:
            raise RecordError(f"{path} is damaged: {error}") from None
    if about is not None and metadata.get("about") != about:
        raise RecordError(f"{path} is damaged or not where it belongs: it says {metadata.get('about')!r:.80}, expected {about!r}")
    return record


def _scalars(record: Record) -> str:
    return json.dumps(record.scalars, sort_keys=True)


def _assemble(tensors: Mapping[str, Tensor], metadata: Mapping[str, str], limits: Limits = NONE) -> Record:
    """A record of what was unpacked, in the order of names, scalars last; scalars are as little to be trusted as the rest."""
    try:
        scalars = json.loads(metadata["scalars"])
        if not isinstance(scalars, dict) or any(isinstance(value, dict) for value in scalars.values()):
            raise RecordError("its scalars are not names and values")
        if len(tensors) + len(scalars) > limits.entries or any(len(name) > limits.name for name in scalars):
            raise RecordError(f"it has more than {limits.entries:,} entries, or a name of more than {limits.name} characters")
        if not tensors.keys().isdisjoint(scalars):
            raise RecordError("it has a name twice")
        return Record({**dict(sorted(tensors.items())), **scalars})
    except (ValueError, TypeError, RecursionError) as error:
        raise RecordError(f"its names or scalars are none: {error}") from None
