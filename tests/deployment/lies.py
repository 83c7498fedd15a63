"""What a participant can send in the place of an answer, when it is not our program that sends it."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable

from coterie.framing import Letter

Lie = Callable[[Letter, Letter], Letter]
"""Given the honest answer and the one of the round before, what is sent."""


def record(header: dict[str, object], data: bytes = b"") -> bytes:
    """The bytes of a record that says this of itself, and is aligned as one should be."""
    text = json.dumps({"__metadata__": {"scalars": "{}"}, **header}).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data


def tensor(*shape: int, end: int) -> dict[str, object]:
    return {"dtype": "F32", "shape": shape, "data_offsets": [0, end]}


def ending(value: float) -> Lie:
    """The last weight is another one."""
    return lambda answer, before: Letter(answer.fields, answer.body[:-4] + struct.pack("<f", value))


def body(data: bytes) -> Lie:
    return lambda answer, before: Letter(answer.fields, data)


def saying(**fields: object) -> Lie:
    return lambda answer, before: Letter({**answer.fields, **fields}, answer.body)


LIES: dict[str, Lie] = {
    "no fields": lambda answer, before: Letter({}, answer.body),
    "a part": lambda answer, before: Letter(answer.fields, answer.body[:-9]),
    "nothing": body(b""),
    "what is not a number": ending(float("nan")),
    "what is infinite": ending(float("inf")),
    "a weight of 1e30": ending(1e30),
    "a header that lies about its length": lambda answer, before: Letter(answer.fields, (2**60).to_bytes(8, "little") + answer.body[8:]),
    "a tensor of a terabyte that is not there": body(record({"model/w": tensor(2**38, end=2**40)})),
    "a shape that its bytes do not have": body(record({"model/w": tensor(10**9, end=4)}, bytes(4))),
    "a name that leads out of a folder": body(record({"../../x": tensor(1, end=4)}, bytes(4))),
    "five million scalars": body(record({"__metadata__": {"scalars": "[" + "0," * 5_000_000 + "0]"}})),
    "a hundred megabytes": lambda answer, before: Letter(answer.fields, os.urandom(100 * 2**20)),
    "a hundred megabytes of nothing": body(bytes(100 * 2**20)),  # Flower sends a piece once that is there twenty times
    "a memory that leads out of a folder": saying(kept="../../x", digest="0" * 64),
    "a digest that is none": saying(digest="../../x"),
    "logs without end": saying(logs={"x": "y" * 20_000_000}),
    "a forged score": saying(observations=[{"protocol": "global", "scores": {}, "domain": None}]),
    "an error that would end everybody's run": saying(error="hihi", trace="", fatal=True),
    "a loss of more digits than a number has": saying(work=[{"purpose": "train", "steps": 1, "samples": 1, "loss": 10**400}]),
    "seconds that are none": saying(seconds=float("nan")),
    "an answer of the round before": lambda answer, before: before,
}
