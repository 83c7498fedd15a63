"""Bytes from outside, by the thousand: whatever they are, there is an answer or a sentence; no crash, no hang, bounded memory.

    python -m tests.hostile.fuzz [--seconds 60] [--examples 200] [--only record]

Every target is given valid bytes that hypothesis has damaged, and for records also headers that it has invented. The process may
have no more memory than it had plus two gigabytes; an input may take ten seconds of the processor. One JSON line says how many
inputs there were for each target. Anything else than an answer or the documented error ends the program with the input that did it.
"""

from __future__ import annotations

import argparse
import bz2
import gzip
import io
import json
import pickle  # only to write what is then read without it
import resource
import signal
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from PIL import Image
from scipy.io import savemat

from coterie.data.sources.blocks import read_npz
from coterie.data.sources.cifar import read_batch, read_binary
from coterie.data.sources.idx import read_idx
from coterie.data.sources.images import read_images
from coterie.data.sources.svhn import read_mat
from coterie.data.sources.usps import read_libsvm
from coterie.errors import CoterieError, RunError, UserError
from coterie.ledger import Mark, check, events
from coterie.record import Record, RecordError, decode, encode, read, write

PATIENCE = 10
"""Seconds of the processor for one input: a machine that is busy, or stopped for a measurement, is no hang."""
LONGEST = 900
"""Seconds of the clock for one input, which also finds one that only waits."""
ROOM = 2 * 2**30
"""Bytes of memory beyond what the process has when it begins."""

EDGES = [b"\x00", b"\xff", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\xff" * 8, b"\x00" * 8]
EDGES += [b'"', b"{", b"}", b"[" * 50, b"NaN", b"9" * 50, b"-1"]
edits = st.lists(
    st.tuples(
        st.sampled_from(["flip", "put", "insert", "remove", "cut", "repeat"]),
        st.floats(0, 1, exclude_max=True),
        st.one_of(st.sampled_from(EDGES), st.binary(min_size=1, max_size=8)),
    ),
    min_size=1,
    max_size=4,
)


def damaged(data: bytes, changes: list[tuple[str, float, bytes]]) -> bytes:
    """Valid bytes after some accidents."""
    held = bytearray(data)
    for how, where, what in changes:
        at = int(where * max(1, len(held)))
        match how:
            case "flip" if held:
                held[at] ^= 1 << what[0] % 8
            case "put":
                held[at : at + len(what)] = what
            case "insert":
                held[at:at] = what
            case "remove":
                del held[at : at + 1 + what[0]]
            case "cut":
                del held[at:]
            case "repeat":
                held[at:at] = held[at : at + 64] * min(what[0], 32)
    return bytes(held)


def headers() -> st.SearchStrategy[bytes]:
    """Records whose headers are JSON, and lie."""
    size = st.one_of(st.integers(-2, 8), st.sampled_from([2**31, 2**32, 2**48, 2**62, 2**63, 2**64, 10**30, 1.5, True, None, "1"]))
    entry = st.fixed_dictionaries(
        {
            "dtype": st.sampled_from(["F32", "F64", "I64", "U8", "BOOL", "BF16", "F8_E4M3", "F4", "C64", "U64", "", None, 3]),
            "shape": st.one_of(st.lists(size, max_size=4), st.just([1] * 65), st.just([0, 2**62, 2**62]), st.none(), st.just("1")),
            "data_offsets": st.one_of(st.lists(size, max_size=3), st.tuples(st.integers(0, 8), st.integers(0, 40)).map(list), st.none()),
        }
    )
    deep = st.just("[" * 2000 + "]" * 2000)
    value = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=4))
    odd = ["", "[]", "null", '{"a":{"b":1}}', '{"/x":1}', '{"x/":1}', '{"x":1,"x/y":2}', '{"":1}', '{"n":' + "9" * 5000 + "}"]
    scalars = st.one_of(st.dictionaries(st.text(max_size=4), value).map(json.dumps), st.sampled_from(odd), deep)
    name = st.one_of(st.text(max_size=5), st.sampled_from(["/x", "x/", "a//b", "\ud800", "a" * 1000, "x", "x/y", "\x00", "__metadata__"]))
    strange = st.dictionaries(st.text(max_size=3), st.text(max_size=3))
    metadata = st.one_of(st.fixed_dictionaries({"scalars": scalars}), strange, st.none(), deep)
    tables = st.tuples(metadata, st.dictionaries(name, entry, max_size=4), st.binary(max_size=48), st.integers(-9, 9))
    return tables.map(lambda parts: _framed({"__metadata__": parts[0], **parts[1]}, parts[2], parts[3]))


def _framed(header: dict[str, Any], data: bytes, off: int) -> bytes:
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", max(0, len(text) + (off if abs(off) > 7 else 0))) + text + data


def seeds_of_data() -> dict[str, bytes]:
    """A small valid file of every format."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (3, 3, 32, 32), dtype=np.uint8)
    y = [0, 1, 2]
    npz, png, jpeg, mat = io.BytesIO(), io.BytesIO(), io.BytesIO(), io.BytesIO()
    np.savez_compressed(npz, x_train=x, y_train=np.array(y), x_test=x, y_test=np.array(y))
    Image.fromarray(x[0].transpose(1, 2, 0)).save(png, "png")
    Image.fromarray(x[0].transpose(1, 2, 0)).save(jpeg, "jpeg")
    savemat(mat, {"X": x.transpose(2, 3, 1, 0), "y": np.array(y)[:, None] + 1}, do_compression=True)
    lines = "".join(f"{label + 1} " + " ".join(f"{i}:{0.5:.3f}" for i in range(1, 257, 9)) + "\n" for label in y)
    return {
        "cifar python, protocol 2": pickle.dumps({"data": x.reshape(3, -1), "labels": y}, protocol=2),
        "cifar python, protocol 4": pickle.dumps({"data": x.reshape(3, -1), "labels": y}, protocol=4),
        "cifar binary": b"".join(bytes([label]) + image.tobytes() for label, image in zip(y, x, strict=True)),
        "idx": gzip.compress(struct.pack(">HBBIII", 0, 8, 3, 3, 32, 32) + x[:, 0].tobytes()),
        "idx, unpacked": struct.pack(">HBBIII", 0, 8, 3, 3, 32, 32) + x[:, 0].tobytes(),
        "npz": npz.getvalue(),
        "png": png.getvalue(),
        "jpeg": jpeg.getvalue(),
        "mat": mat.getvalue(),
        "usps": bz2.compress(lines.encode()),
        "usps, unpacked": lines.encode(),
    }


READERS: dict[str, Callable[[Path], object]] = {
    "cifar python, protocol 2": lambda path: read_batch(path, "labels", 10),
    "cifar python, protocol 4": lambda path: read_batch(path, "labels", 10),
    "cifar binary": read_binary,
    "idx": read_idx,
    "idx, unpacked": read_idx,
    "npz": read_npz,
    "png": lambda path: read_images([path], 32),
    "jpeg": lambda path: read_images([path], 32),
    "mat": read_mat,
    "usps": read_libsvm,
    "usps, unpacked": read_libsvm,
}
PACKED = {"idx, unpacked": gzip.compress, "usps, unpacked": bz2.compress}
RECORD = encode(Record(model={"w": torch.arange(20.0), "n": torch.tensor(3), "b": torch.tensor([True, False])}, examples=3, name="é"))


def targets(folder: Path) -> dict[str, tuple[st.SearchStrategy[bytes], Callable[[bytes], None]]]:
    """What is fuzzed: where its inputs come from, and what must be able to take them."""
    found: dict[str, tuple[st.SearchStrategy[bytes], Callable[[bytes], None]]] = {
        "record": (edits.map(lambda changes: damaged(RECORD, changes)), decodes),
        "record, invented": (st.one_of(headers(), st.binary(max_size=64)), decodes),
    }
    sealed = folder / "sealed.safetensors"
    write(Record(x=torch.arange(8.0), n=1), sealed, "x", sync=False)
    found["sealed file"] = (_edited(sealed.read_bytes()), lambda data: reads(data, folder / "x.safetensors", sealed.read_bytes()))
    ledger = b"".join(json.dumps({"event": "round", "round": n, "seconds": 0.5}).encode() + b"\n" for n in range(6))
    found["ledger"] = (_edited(ledger), lambda data: reads_events(data, folder / "ledger.jsonl"))
    for name, data in seeds_of_data().items():
        found[name] = (_edited(data), _loader(name, folder / f"file{'.png' if name in ('png', 'jpeg') else ''}"))
    return found


def _edited(data: bytes) -> st.SearchStrategy[bytes]:
    return edits.map(lambda changes: damaged(data, changes))


def decodes(data: bytes) -> None:
    """A record or a RecordError; a record can be asked for what the server asks every reply for."""
    try:
        record = decode(data)
    except RecordError:
        return
    record.fault()
    record.digest()
    assert decode(encode(record)) == record
    for group in record.groups:
        record[group]


def reads(data: bytes, path: Path, sound: bytes) -> None:
    """Of a sealed file, nothing but what was written, or a RecordError."""
    path.write_bytes(data)
    try:
        read(path, "x")
    except RecordError:
        return
    assert data == sound, "a damaged file was taken for the one that was written"


def reads_events(data: bytes, path: Path) -> None:
    """Events, or a sentence."""
    path.write_bytes(data)
    for call in (lambda: list(events(path)), lambda: check(path, [Mark(50, "0" * 64)])):
        try:
            call()
        except (RunError, UserError):
            continue


def _loader(name: str, path: Path) -> Callable[[bytes], None]:
    def load(data: bytes) -> None:
        path.write_bytes(PACKED[name](data) if name in PACKED else data)
        try:
            READERS[name](path)
        except UserError:
            return

    return load


def fuzz(name: str, inputs: st.SearchStrategy[bytes], take: Callable[[bytes], None], examples: int, start: int) -> int:
    """So many inputs for one target; how many there were."""
    count = [0]

    @seed(start)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(inputs)
    def once(data: bytes) -> None:
        count[0] += 1
        signal.setitimer(signal.ITIMER_PROF, PATIENCE)
        signal.alarm(LONGEST)
        try:
            take(data)
        except CoterieError as error:
            raise AssertionError(f"{name}: {type(error).__name__}: {error}, for {data!r}") from error
        except BaseException:
            sys.stderr.write(f"{name}: {data!r}\n")
            raise
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.alarm(0)

    once()
    return count[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=0, help="go on until then; 0 for one turn")
    parser.add_argument("--examples", type=int, default=100, help="inputs for each target in a turn")
    parser.add_argument("--only", default="", help="targets whose name begins so")
    options = parser.parse_args()
    signal.signal(signal.SIGPROF, _too_long)
    signal.signal(signal.SIGALRM, _too_long)
    limit_memory()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        chosen = {name: target for name, target in targets(Path(folder)).items() if name.startswith(options.only)}
        inputs, turn = dict.fromkeys(chosen, 0), 0
        while turn == 0 or time.monotonic() - began < options.seconds:
            for name, target in chosen.items():
                inputs[name] += fuzz(name, *target, options.examples, turn)
            turn += 1
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(json.dumps({"inputs": sum(inputs.values()), "seconds": round(time.monotonic() - began), "peak_mb": peak, "by_target": inputs}))


def limit_memory() -> None:
    """No more address space than there is, and `ROOM`."""
    used = 1024 * next(int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmSize"))
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM, used + ROOM))


def _too_long(*_: object) -> None:
    raise TimeoutError(f"an input took more than {PATIENCE} s")


if __name__ == "__main__":
    main()
