"""CIFAR's python batches, read without unpickling them.

A pickle is a program for a stack machine, and Python's own machine calls whatever it names: to allow only numpy's names is not
enough, for `ndarray` itself can be called so that it reads memory that is none of its. This machine is given the few instructions
that these files use. It makes numbers, strings, lists, tuples, dictionaries and arrays of bytes, and calls nothing.
"""

from __future__ import annotations

import math
import pickletools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["load"]

PUSHES = {"BININT", "BININT1", "BININT2", "LONG1", "BINSTRING", "SHORT_BINSTRING"} | {
    f"{short}BIN{kind}" for short in ("", "SHORT_") for kind in ("BYTES", "UNICODE")
}
"""Instructions that push what they carry."""
NEW: Mapping[str, Callable[[], Any]] = {
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
}
TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
SKIPPED = {"PROTO", "FRAME"}


class Name(NamedTuple):
    """Something that a batch may name, and that is never called."""

    module: str
    name: str


class Damaged(ValueError):
    """Not a batch."""


ENCODE, NDARRAY, DTYPE = Name("_codecs", "encode"), Name("numpy", "ndarray"), Name("numpy", "dtype")
RECONSTRUCT = (Name("numpy.core.multiarray", "_reconstruct"), Name("numpy._core.multiarray", "_reconstruct"))
NAMES = {ENCODE, NDARRAY, DTYPE, *RECONSTRUCT}


@dataclass(eq=False)
class Array:
    """An array to be, and what it is built from."""

    parts: tuple[Any, ...] = ()

    def array(self) -> NDArray[np.uint8]:
        """The bytes in their shape."""
        _, shape, kind, fortran, raw = self.parts
        data = raw.encode("latin1") if isinstance(raw, str) else raw  # what Python 2 called a string
        if kind != "u1" or not isinstance(data, bytes) or not all(type(size) is int and size >= 0 for size in shape):
            raise Damaged("its array is not one of bytes")
        if math.prod(shape) != len(data):
            raise Damaged(f"its array has {len(data)} bytes, but the shape {shape}")
        return np.frombuffer(data, np.uint8).reshape(shape, order="F" if fortran else "C")


@dataclass
class Machine:
    """The stack, the marks on it, and what was put aside."""

    stack: list[Any] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    memo: dict[int, Any] = field(default_factory=dict)

    def step(self, name: str, argument: Any) -> None:
        """One instruction."""
        if name in PUSHES:
            self.stack.append(argument)
        elif name in NEW:
            self.stack.append(NEW[name]())
        elif name in TUPLES:
            self.stack.append(tuple(self.above(len(self.stack) - TUPLES[name])))
        elif name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self.memo[len(self.memo) if name == "MEMOIZE" else argument] = self.stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            self.stack.append(self.memo[argument])
        else:
            self.act(name, argument)

    def act(self, name: str, argument: Any) -> None:
        """The instructions that do something with what is there."""
        match name:
            case "MARK":
                self.marks.append(len(self.stack))
            case "TUPLE":
                self.stack.append(tuple(self.above(self.marks.pop())))
            case "APPEND" | "APPENDS":
                items = self.above(self.marks.pop() if name == "APPENDS" else len(self.stack) - 1)
                self.top(list).extend(items)
            case "SETITEM" | "SETITEMS":
                items = self.above(self.marks.pop() if name == "SETITEMS" else len(self.stack) - 2)
                self.top(dict).update(zip(map(_key, items[::2]), items[1::2], strict=True))
            case "GLOBAL" | "STACK_GLOBAL":
                words = argument.split(" ", 1) if name == "GLOBAL" else self.above(len(self.stack) - 2)
                self.stack.append(_named(*words))
            case "REDUCE":
                callee, arguments = self.above(len(self.stack) - 2)
                self.stack.append(_made(callee, arguments))
            case "BUILD":
                (parts,) = self.above(len(self.stack) - 1)
                if isinstance(self.stack[-1], Array):
                    self.stack[-1].parts = parts  # of a dtype there is nothing to build: bytes have no order
            case _:
                raise Damaged(f"it uses the instruction {name}, which no CIFAR batch needs")

    def above(self, height: int) -> list[Any]:
        """What lies above this height, taken off."""
        if not 0 <= height <= len(self.stack):
            raise Damaged("it takes more than there is")
        taken = self.stack[height:]
        del self.stack[height:]
        return taken

    def top(self, kind: type[Any]) -> Any:
        """The topmost value, which must be of this kind."""
        if type(self.stack[-1]) is not kind:
            raise Damaged(f"it fills a {type(self.stack[-1]).__name__}")
        return self.stack[-1]


def load(data: bytes) -> dict[str, Any]:
    """The dictionary in a batch: arrays of bytes, lists, strings and numbers by name.

    >>> import pickle
    >>> load(pickle.dumps({"data": np.zeros((1, 3), np.uint8), "labels": [7]}, protocol=2))
    {'data': array([[0, 0, 0]], dtype=uint8), 'labels': [7]}
    """
    machine = Machine()
    for instruction, argument, _ in pickletools.genops(data):
        if instruction.name == "STOP":
            break
        if instruction.name not in SKIPPED:
            machine.step(instruction.name, argument)
    return {name: value.array() if isinstance(value, Array) else value for name, value in machine.top(dict).items()}


def _key(key: Any) -> str:
    """A name in the dictionary; Python 2 wrote bytes."""
    if isinstance(key, bytes):
        return key.decode("latin1")
    if not isinstance(key, str):
        raise Damaged(f"it has {type(key).__name__} for a name")
    return key


def _named(module: Any, name: Any) -> Name:
    found = Name(module, name)
    if not (isinstance(module, str) and isinstance(name, str) and found in NAMES):
        raise Damaged(f"it asks for {module!s:.60}.{name!s:.60}, which no CIFAR batch needs")
    return found


def _made(callee: Any, arguments: Any) -> Any:
    """What the four allowed names stand for; nothing is called."""
    match callee, arguments:
        case _, (_, (0,), _) if callee in RECONSTRUCT and arguments[0] == NDARRAY:
            return Array()
        case Name(), ("u1" | b"u1", *_) if callee == DTYPE:
            return "u1"
        case Name(), (str() as text, "latin1") if callee == ENCODE:
            return text.encode("latin1")
    raise Damaged("it calls something in a way in which no CIFAR batch does")
