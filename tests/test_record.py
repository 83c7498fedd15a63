"""Records: what goes in comes out, bytes are counted right, nothing that arrives can do harm."""

from __future__ import annotations

import contextlib
import json
import struct
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from coterie.record import EMPTY, Limits, Record, RecordError, decode, encode, read, write

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool]
names = st.text(alphabet="abcdefgh._0", min_size=1, max_size=6)
tensors = st.builds(
    lambda dtype, shape: (
        torch.zeros(shape, dtype=dtype) + torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype).logical_not().to(dtype)
    ),
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 4), max_size=3),
)
scalars = st.one_of(st.booleans(), st.integers(-(2**53), 2**53), st.floats(allow_nan=False), st.text(max_size=5))
records = st.dictionaries(
    names, st.one_of(tensors, scalars, st.dictionaries(names, st.one_of(tensors, scalars), max_size=3)), max_size=5
).map(Record)


@given(records)
@settings(max_examples=60, deadline=None)
def test_a_record_survives_its_bytes(record: Record) -> None:
    assert decode(encode(record)) == record
    assert encode(decode(encode(record))) == encode(record)


@given(records)
@settings(max_examples=40, deadline=None)
def test_payload_is_what_the_tensors_weigh_and_framing_comes_on_top(record: Record) -> None:
    weight = {
        torch.float64: 8,
        torch.int64: 8,
        torch.float32: 4,
        torch.int32: 4,
        torch.float16: 2,
        torch.bfloat16: 2,
        torch.uint8: 1,
        torch.bool: 1,
    }
    expected = sum(weight[tensor.dtype] * tensor.numel() for tensor in record.tensors.values())
    assert record.payload_bytes == expected
    header = struct.unpack("<Q", encode(record)[:8])[0]
    assert len(encode(record)) == 8 + header + expected


@given(st.binary(max_size=300))
@settings(max_examples=100, deadline=None)
def test_noise_is_refused(noise: bytes) -> None:
    with pytest.raises(RecordError):
        decode(noise)


@given(st.integers(0, 400), st.integers(0, 255))
@settings(max_examples=100, deadline=None)
def test_a_damaged_record_is_refused_or_is_still_a_record(position: int, value: int) -> None:
    data = bytearray(encode(Record(model={"w": torch.arange(20.0)}, examples=3)))
    data[position % len(data)] = value
    with contextlib.suppress(RecordError):
        assert isinstance(decode(bytes(data)), Record)


def test_a_truncated_record_is_refused() -> None:
    data = encode(Record(model={"w": torch.arange(20.0)}, examples=3))
    for length in range(len(data)):
        with pytest.raises(RecordError):
            decode(data[:length])


def test_safetensors_without_our_scalars_are_refused() -> None:
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    with pytest.raises(RecordError):
        decode(struct.pack("<Q", len(header)) + header + bytes(4))


def test_records_do_not_change() -> None:
    record = Record(model={"w": torch.ones(2)})
    with pytest.raises(AttributeError, match="immutable"):
        record.other = 1
    with pytest.raises(TypeError):
        record["x"] = 1  # type: ignore[index]
    assert (record | Record(extra=1)) != record
    assert "extra" not in record


def test_paths() -> None:
    record = Record(model={"conv/weight": torch.ones(1)}, examples=3)
    assert list(record) == ["model/conv/weight", "examples"]
    assert record["model"]["conv"]["weight"].item() == 1
    assert record.groups == ("model", "examples")
    assert record.group("nothing") == EMPTY
    with pytest.raises(KeyError, match="did you mean 'model'"):
        record["modle"]
    with pytest.raises(KeyError, match="one value"):
        record.group("examples")
    with pytest.raises(TypeError, match="a record holds"):
        Record(model=[1, 2])  # type: ignore[arg-type]


def test_tied_and_sliced_tensors_travel_whole() -> None:
    base = torch.arange(6.0)
    record = Record(a=base, b=base, c=base[2:4], d=base.reshape(2, 3).t())
    back = decode(encode(record))
    assert back == record
    assert back.payload_bytes == record.payload_bytes == 4 * (6 + 6 + 2 + 6)


def test_bits_decide_equality() -> None:
    assert Record(x=torch.zeros(1)) != Record(x=torch.zeros(1, dtype=torch.float64))
    assert Record(x=torch.zeros(1, 2)) != Record(x=torch.zeros(2, 1))
    assert Record(x=torch.tensor([0.0])) != Record(x=torch.tensor([-0.0]))
    assert Record(x=1) != Record(x=1.0)
    assert Record(a=1, b=2) == Record(b=2, a=1)


def test_faults_are_named() -> None:
    assert Record(x=torch.ones(2), n=3).fault() is None
    assert Record(m={"x": torch.tensor([1.0, float("inf")])}).fault() == "m/x is not finite"
    assert Record(loss=float("nan")).fault() == "loss = nan is not finite"


def test_files_are_private_to_their_readers(tmp_path) -> None:
    path = tmp_path / "x.safetensors"
    size = write(Record(x=torch.ones(3), n=1), path)
    assert path.stat().st_size == size
    first = read(path)
    first.tensors["x"].add_(1)
    assert read(path) == Record(x=torch.ones(3), n=1)
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(RecordError, match=r"x\.safetensors"):
        read(path)
    assert [each.name for each in tmp_path.iterdir()] == ["x.safetensors"]


@given(records)
@settings(max_examples=40, deadline=None)
def test_the_bytes_are_those_of_the_safetensors_library(record: Record) -> None:
    alone = {name: tensor.clone() for name, tensor in record.tensors.items()}
    assert encode(record) == save(alone, {"scalars": json.dumps(record.scalars, sort_keys=True)})


def quantised() -> torch.Tensor:
    with warnings.catch_warnings():  # torch is about to give them up
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (torch.eye(3).to_sparse(), "is a sparse_coo float32 tensor"),
        (torch.empty(3, device="meta"), "is a meta strided float32 tensor"),
        (quantised(), "is a strided qint8 tensor"),
        (torch.ones(3, dtype=torch.complex64), "is a strided complex64 tensor"),
        (torch.ones(3).to(torch.float8_e4m3fn), "is a strided float8_e4m3fn tensor"),
        ("half \ud800 a character", "holds half a character"),
        (10**5000, "a whole number of 16610 bits; a record holds up to 64"),
        (None, "is a NoneType"),
    ],
    ids=["sparse", "meta", "quantised", "complex", "float8", "surrogate", "digits", "none"],
)
def test_what_cannot_travel_is_refused_where_it_is_made(value, said) -> None:
    with pytest.raises(TypeError, match=f"reply/x.* {said}"):
        Record(reply={"x": value})


@pytest.mark.parametrize("name", ["/x", "x/", "a//b", "\ud800", "a\nb", "\x00", "\x7f", "x" * 50 + "\x1b[31m"], ids=repr)
def test_names_are_printable_parts_between_slashes(name) -> None:
    with pytest.raises(TypeError, match="is not a name: expected printable parts between slashes"):
        Record({name: 1})


def test_a_name_is_not_both_a_value_and_a_group() -> None:
    with pytest.raises(TypeError, match="model is a value, so there cannot also be model/w"):
        Record({"model": 1, "model/w": torch.ones(1)})
    with pytest.raises(TypeError, match="model is a value"):
        Record(model=1) | Record(model={"w": 1})


def framed(header: object, data: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype: str = "F32", shape: object = (1,), place: object = (0, 4)) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": place}


NOTHING = {"scalars": "{}"}


@pytest.mark.parametrize(
    ("header", "data"),
    [
        ({"__metadata__": {"scalars": "[" * 1000 + "]" * 1000}}, b""),
        ({"__metadata__": {"scalars": '{"n":' + "9" * 5000 + "}"}}, b""),
        ({"__metadata__": {"scalars": '{"n":' + "9" * 40 + "}"}}, b""),
        ({"__metadata__": {"scalars": '{"a":{"b":1}}'}}, b""),
        ({"__metadata__": {"scalars": '{"a":null}'}}, b""),
        ({"__metadata__": {"scalars": '{"x":1}'}, "x": entry()}, bytes(4)),
        ({"__metadata__": {"scalars": "{}", "more": "x"}, "x": entry()}, bytes(4)),
        ({"__metadata__": NOTHING, "x": entry(shape=[0, 2**62, 2**62], place=[0, 0])}, b""),
        ({"__metadata__": NOTHING, "x": entry(shape=[1] * 65)}, bytes(4)),
        ({"__metadata__": NOTHING, "x": entry(shape=[True])}, bytes(4)),
        ({"__metadata__": NOTHING, "x": entry(shape=[-1, -1])}, bytes(4)),
        ({"__metadata__": NOTHING, "x": entry("F8_E4M3", [4])}, bytes(4)),
        ({"__metadata__": NOTHING, "x": entry("C64", [1], [0, 8])}, bytes(8)),
        ({"__metadata__": NOTHING, "x": entry("BOOL", [4])}, b"\x00\x01\x02\x00"),
        ({"__metadata__": NOTHING, "x": entry(), "y": entry()}, bytes(4)),
        ({"__metadata__": NOTHING, "x": entry(), "y": entry(place=[8, 12])}, bytes(12)),
        ({"__metadata__": NOTHING, "x": entry("U8", [1], [0, 1]), "y": entry(place=[1, 5])}, bytes(5)),
        ({"__metadata__": NOTHING, "x": entry()}, bytes(5)),
        ({"__metadata__": NOTHING, "/x": entry()}, bytes(4)),
        ({"__metadata__": NOTHING, "\ud800": entry()}, bytes(4)),
        ({"__metadata__": NOTHING, "x": entry(), "x/y": entry(place=[4, 8])}, bytes(8)),
        ({"__metadata__": NOTHING, "x": 3}, b""),
        ([], b""),
    ],
)
def test_headers_that_lie_are_refused(header, data) -> None:
    with pytest.raises(RecordError, match="these bytes are not a record"):
        decode(framed(header, data))


def test_limits_hold_before_anything_is_made_of_the_bytes() -> None:
    data = encode(Record(model={"w": torch.ones(2, 2, 2), "b": torch.ones(3)}, examples=3))
    assert decode(data, Limits(entries=3, dimensions=3, name=8, bytes=len(data)))
    for limits in (Limits(entries=2), Limits(dimensions=2), Limits(name=7), Limits(bytes=len(data) - 1), Limits(header=64)):
        with pytest.raises(RecordError, match=r"allowed|more than"):
            decode(data, limits)
    many = encode(Record({f"group{number}/x": torch.ones(1) for number in range(20_000)}))
    with pytest.raises(RecordError, match="20,000 tensors, more than the 10,000 entries allowed"):
        decode(many)
    assert len(decode(many, Limits(entries=20_000))) == 20_000


def test_one_flipped_bit_anywhere_in_a_file_is_noticed(tmp_path) -> None:
    path = tmp_path / "x.safetensors"
    record = Record(model={"w": torch.arange(5.0), "mask": torch.tensor([True])}, examples=3, name="é")
    write(record, path, "a test")
    sound = path.read_bytes()
    assert read(path, "a test") == record
    for bit in range(8 * len(sound)):
        damaged = bytearray(sound)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with pytest.raises(RecordError, match=r"x\.safetensors is damaged"):
            read(path)


def test_a_file_that_is_about_something_else_is_noticed(tmp_path) -> None:
    path = tmp_path / "x.safetensors"
    write(Record(n=1), path, "client 3")
    with pytest.raises(RecordError, match=r"it says 'client 3', expected 'client 4'"):
        read(path, "client 4")
    path.write_bytes(encode(Record(n=1)))  # a message: sound, but nobody vouches for it
    assert read(path) == Record(n=1)
    with pytest.raises(RecordError, match="expected 'client 3'"):
        read(path, "client 3")


def test_decoded_tensors_are_each_their_own() -> None:
    """A method that keeps one tensor of a reply must not keep the whole reply alive."""
    record = decode(encode(Record(large=torch.zeros(1000), small=torch.zeros(1))))
    assert record.tensors["small"].untyped_storage().nbytes() == 4
