"""Record: named tensors plus scalars, immutable. The only format on the wire, in a client's memory and in a checkpoint.

Names are paths: `Record(model=net.state_dict(), examples=600)` holds `model/conv1.weight` and `examples`, and
`record["model"]` is the Record of everything under `model/`. Bytes are safetensors: nothing that arrives is ever executed.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias, TypeGuard, Union

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import Tensor

from coterie.errors import CoterieError, nearest

__all__ = ["EMPTY", "Record", "RecordError", "Scalar", "decode", "encode", "read", "write"]

Scalar: TypeAlias = bool | int | float | str
Entry: TypeAlias = Union[Tensor, Scalar, "Record", Mapping[str, "Entry"]]


class RecordError(CoterieError):
    """Bytes that are not a record."""


def _flatten(entries: Mapping[str, Entry], prefix: str = "") -> Iterator[tuple[str, Tensor | Scalar]]:
    for name, value in entries.items():
        if not isinstance(name, str) or not name:
            raise TypeError(f"a record's names are non-empty strings, not {name!r}")
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}/")
        elif isinstance(value, Tensor):
            yield prefix + name, value.detach()
        elif isinstance(value, bool | int | float | str):
            yield prefix + name, value
        else:
            raise TypeError(f"{prefix}{name} is a {type(value).__name__}; a record holds tensors, numbers, strings and other records")


def _first(name: str) -> str:
    """Up to the first slash or dot."""
    return name.partition("/")[0].partition(".")[0]


def _floating(value: object) -> TypeGuard[Tensor]:
    return isinstance(value, Tensor) and value.is_floating_point()


def _describe(value: Tensor | Scalar) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
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
        object.__setattr__(self, "_flat", dict(_flatten({**(entries or {}), **named})))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a Record is immutable; make a new one, e.g. record | Record(...)")

    def __getitem__(self, key: str) -> Tensor | Scalar | Record:
        if key in self._flat:
            return self._flat[key]
        below = {name[len(key) + 1 :]: value for name, value in self._flat.items() if name.startswith(key + "/")}
        if not below:
            raise KeyError(f"no '{key}' in this record; {nearest(key, self.groups)}")
        return Record(below)

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
        found = self.get(key, EMPTY)
        if not isinstance(found, Record):
            raise KeyError(f"'{key}' is one value, not a group of them")
        return found

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


def encode(record: Record) -> bytes:
    """The bytes that travel: safetensors, with the scalars as JSON in its header."""
    alone = {}
    seen: set[int] = set()
    for name, value in record.tensors.items():
        tensor = value.detach().cpu().contiguous()
        storage = tensor.untyped_storage()
        if storage.nbytes() != tensor.nbytes or storage.data_ptr() in seen:  # safetensors refuses views of shared storage
            tensor = tensor.clone()
        seen.add(tensor.untyped_storage().data_ptr())
        alone[name] = tensor
    return save(alone, metadata={"scalars": json.dumps(record.scalars, sort_keys=True)})


def decode(data: bytes) -> Record:
    """The record that `encode` made these bytes from.

    >>> decode(b"not a record")
    Traceback (most recent call last):
    ...
    coterie.record.RecordError: these bytes are not a record: Error while deserializing: header too large
    """
    try:
        length = int.from_bytes(data[:8], "little")
        tensors = load(data)
        header = json.loads(data[8 : 8 + length])
        return _assemble(tensors, header.get("__metadata__", {}))
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RecordError(f"these bytes are not a record: {error}") from None


def write(record: Record, path: Path) -> int:
    """Write atomically: a kill leaves the old file or the new one, never half of one. Returns the file's size."""
    data = encode(record)
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    partial.write_bytes(data)
    os.replace(partial, path)
    return len(data)


def read(path: Path) -> Record:
    """Read a file that `write` made; tensors are mapped from the file, private to the reader, and loaded when touched."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
            return _assemble(tensors, file.metadata() or {})
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise RecordError(f"{path.name} is not a record: {error}") from None


def _assemble(tensors: dict[str, Tensor], metadata: Mapping[str, str]) -> Record:
    scalars = json.loads(metadata["scalars"])
    return Record({**dict(sorted(tensors.items())), **scalars})
