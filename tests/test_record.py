"""Records: what goes in comes out, bytes are counted right, nothing that arrives can do harm."""

from __future__ import annotations

import contextlib
import json
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.record import EMPTY, Record, RecordError, decode, encode, read, write

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
