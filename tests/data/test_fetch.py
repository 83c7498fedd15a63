"""Downloads from a server on loopback: mirrors, checksums, resuming, and nothing half-written."""

from __future__ import annotations

import bz2
import dataclasses
import hashlib
import io
import re
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from coterie.data.fetch import bars, fetch, fetch_file, listing, matches, verify
from coterie.data.sources import SOURCES, File, Source
from coterie.data.sources.usps import Usps
from coterie.errors import UserError

BYTES = np.random.default_rng(0).bytes(300_000)


@dataclasses.dataclass
class Server:
    """What it serves, how it misbehaves and what it was asked."""

    root: str = ""
    files: dict[str, bytes] = dataclasses.field(default_factory=dict)
    cut: dict[str, int] = dataclasses.field(default_factory=dict)
    """Close the connection after so many bytes, once."""
    ranges: bool = True
    asked: list[tuple[str, str]] = dataclasses.field(default_factory=list)


@pytest.fixture
def server() -> Iterator[Server]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.headers.get("Range", "")
            state.asked.append((self.path, asked))
            content = state.files.get(self.path)
            if content is None:
                self.send_error(404)
                return
            start = int(re.findall(r"bytes=(\d+)-", asked)[0]) if asked and state.ranges else 0
            if start and start >= len(content):
                self.send_error(416)
                return
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            self.wfile.write(content[start:][: state.cut.pop(self.path, None)])

        def log_message(self, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        state.root = f"http://127.0.0.1:{http.server_address[1]}"
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield state
        http.shutdown()
        thread.join()


def a_file(server: Server, *paths: str, content: bytes = BYTES, size: int = 0) -> File:
    return File("set/data.bin", "md5:" + hashlib.md5(content).hexdigest(), tuple(server.root + path for path in paths), size)


def left(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_fetch(server: Server, tmp_path: Path) -> None:
    server.files["/a"] = BYTES
    told: list[tuple[str, int, int]] = []
    file = a_file(server, "/a")
    (path,) = fetch_file(file, tmp_path, lambda *told_: told.append(told_))
    assert path.read_bytes() == BYTES
    assert left(tmp_path) == ["set/data.bin"]
    assert told[-1] == ("data.bin", len(BYTES), len(BYTES))
    assert [done for _, done, _ in told] == sorted({done for _, done, _ in told})
    fetch_file(file, tmp_path)
    assert len(server.asked) == 1


def test_damaged_file_is_replaced(server: Server, tmp_path: Path) -> None:
    server.files["/a"] = BYTES
    (tmp_path / "set").mkdir()
    (tmp_path / "set/data.bin").write_bytes(BYTES[:-1])
    fetch_file(a_file(server, "/a"), tmp_path)
    assert (tmp_path / "set/data.bin").read_bytes() == BYTES


def test_wrong_checksum(server: Server, tmp_path: Path) -> None:
    server.files["/a"] = BYTES[::-1]
    with pytest.raises(UserError, match=r"data\.bin could not be fetched: http.*/a \(wrong checksum\)"):
        fetch_file(a_file(server, "/a"), tmp_path)
    assert left(tmp_path) == []


def test_mirrors_in_order(server: Server, tmp_path: Path) -> None:
    server.files |= {"/wrong": b"an error page", "/right": BYTES}
    file = a_file(server, "/gone", "/wrong", "/right", "/never")
    dead = dataclasses.replace(file, urls=("http://127.0.0.1:9/closed", *file.urls))
    (path,) = fetch_file(dead, tmp_path)
    assert path.read_bytes() == BYTES
    assert [path for path, _ in server.asked] == ["/gone", "/wrong", "/right"]
    assert left(tmp_path) == ["set/data.bin"]


def test_all_mirrors_dead(server: Server, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"data\.bin could not be fetched: .*/a \(HTTPError: 404.*/b \(HTTPError"):
        fetch_file(a_file(server, "/a", "/b"), tmp_path)
    with pytest.raises(UserError, match="it has no address"):
        fetch_file(a_file(server), tmp_path)
    assert left(tmp_path) == []


def test_interrupted_then_resumed(server: Server, tmp_path: Path) -> None:
    server.files["/a"] = BYTES
    server.cut["/a"] = 200_000
    file = a_file(server, "/a")
    with pytest.raises(UserError, match="could not be fetched"):
        fetch_file(file, tmp_path)
    assert left(tmp_path) == ["set/data.bin.part"]
    have = (tmp_path / "set/data.bin.part").stat().st_size
    assert 0 < have <= 200_000
    told: list[int] = []
    fetch_file(file, tmp_path, lambda _, done, total: told.extend((done, total)))
    assert server.asked == [("/a", ""), ("/a", f"bytes={have}-")]
    assert (tmp_path / "set/data.bin").read_bytes() == BYTES
    assert left(tmp_path) == ["set/data.bin"]
    assert told[0] > have
    assert set(told[1::2]) == {len(BYTES)}


def test_second_mirror_resumes_the_first(server: Server, tmp_path: Path) -> None:
    server.files |= {"/a": BYTES, "/b": BYTES}
    server.cut["/a"] = 200_000
    fetch_file(a_file(server, "/a", "/b"), tmp_path)
    assert [path for path, asked in server.asked if asked] == ["/b"]


def test_server_without_ranges(server: Server, tmp_path: Path) -> None:
    server.files["/a"] = BYTES
    server.ranges = False
    (tmp_path / "set").mkdir()
    (tmp_path / "set/data.bin.part").write_bytes(BYTES[:1000])
    fetch_file(a_file(server, "/a"), tmp_path)
    assert (tmp_path / "set/data.bin").read_bytes() == BYTES
    assert len(server.asked) == 1


@pytest.mark.parametrize("part", [b"x" * 1000, BYTES + b"x"])
def test_part_of_something_else_is_thrown_away(part: bytes, server: Server, tmp_path: Path) -> None:
    server.files["/a"] = BYTES
    (tmp_path / "set").mkdir()
    (tmp_path / "set/data.bin.part").write_bytes(part)
    fetch_file(a_file(server, "/a"), tmp_path)
    assert [asked for _, asked in server.asked] == [f"bytes={len(part)}-", ""]
    assert left(tmp_path) == ["set/data.bin"]


def test_part_that_was_whole(server: Server, tmp_path: Path) -> None:
    server.files["/a"] = BYTES
    (tmp_path / "set").mkdir()
    (tmp_path / "set/data.bin.part").write_bytes(BYTES)
    fetch_file(a_file(server, "/a"), tmp_path)
    assert left(tmp_path) == ["set/data.bin"]


def test_stopped_by_the_user(server: Server, tmp_path: Path) -> None:
    server.files["/a"] = BYTES

    def stop(name: str, done: int, total: int) -> None:
        if done > 100_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch_file(a_file(server, "/a"), tmp_path, stop)
    assert left(tmp_path) == ["set/data.bin.part"]


def tarred(members: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def an_archive(server: Server, content: bytes, members: dict[str, bytes]) -> File:
    checks = {name: "md5:" + hashlib.md5(member).hexdigest() for name, member in members.items()}
    return File("set.tar.gz", "md5:" + hashlib.md5(content).hexdigest(), (server.root + "/tar",), unpacks=checks)


def test_archive(server: Server, tmp_path: Path) -> None:
    members = {"batches/one": BYTES[:1000], "batches/two": BYTES[1000:3000]}
    server.files["/tar"] = tarred(members | {"../escape": b"x", "batches/readme": b"y"})
    file = an_archive(server, server.files["/tar"], members)
    fetch_file(file, tmp_path / "data")
    assert left(tmp_path) == ["data/batches/one", "data/batches/two"]
    (tmp_path / "data/batches/two").write_bytes(b"damaged")
    fetch_file(file, tmp_path / "data")
    assert (tmp_path / "data/batches/two").read_bytes() == members["batches/two"]
    fetch_file(file, tmp_path / "data")
    assert len(server.asked) == 2


@pytest.mark.parametrize("held", [{"batches/one": b"other"}, {"batches/two": b"x"}])
def test_archive_with_wrong_members(held: dict[str, bytes], server: Server, tmp_path: Path) -> None:
    server.files["/tar"] = tarred(held)
    with pytest.raises(UserError, match=r"set\.tar\.gz"):
        fetch_file(an_archive(server, server.files["/tar"], {"batches/one": b"right"}), tmp_path)
    assert not (tmp_path / "batches").exists()


def test_fetch_and_verify_a_source(server: Server, tmp_path: Path) -> None:
    """USPS in small, through its loader, from a mirror on loopback."""
    made = {f"/{name}": bz2.compress(f"{label} 1:0.5\n".encode()) for name, label in (("usps.bz2", 3), ("usps.t.bz2", 10))}
    server.files |= made

    class Local(Usps):
        name = Usps.name
        samples = (1, 1)
        files = tuple(
            File(f"usps{path}", "md5:" + hashlib.md5(content).hexdigest(), (server.root + path,)) for path, content in made.items()
        )

    assert [path.name for path in fetch(Local(), tmp_path)] == ["usps.bz2", "usps.t.bz2"]
    assert verify(Local(), tmp_path).y.tolist() == [2, 9]
    (tmp_path / "usps/usps.bz2").write_bytes(made["/usps.t.bz2"])
    with pytest.raises(UserError, match=r"usps\.bz2 has a wrong checksum: run `coterie data fetch usps`"):
        verify(Local(), tmp_path)


@pytest.mark.parametrize("name", ["pacs", "office-home", "mnist-m", "digits", "digit-domains"])
def test_what_cannot_be_fetched(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"{name} cannot be fetched: (get|it ships)"):
        fetch(SOURCES.resolve(name), tmp_path)


def test_folder_that_cannot_be_written(server: Server, tmp_path: Path) -> None:
    server.files["/a"] = BYTES
    (tmp_path / "set").write_text("a file where a folder should be")
    with pytest.raises(UserError, match=r"data\.bin cannot be written"):
        fetch_file(a_file(server, "/a"), tmp_path)


def test_bars(capsys: pytest.CaptureFixture[str]) -> None:
    with bars() as report:
        report("data.bin", 500, 1000)
        report("data.bin", 1000, 1000)
        report("other.bin", 10, 0)
    assert "data.bin" in capsys.readouterr().out


def test_files_are_well_formed() -> None:
    for spec in SOURCES.specs.values():
        assert issubclass(spec, Source)
        for file in spec.files:
            checks = [file.checksum, *file.leaves.values()]
            assert all(re.fullmatch(r"md5:[0-9a-f]{32}", check) for check in checks)
            assert file.urls
            assert all(re.match(r"https?://", url) and url.endswith(Path(file.path).name) for url in file.urls)
            assert file.size > 0


def test_checksums_are_those_of_the_real_files(data_folder: Path) -> None:
    for name in ("mnist", "usps"):
        for file in SOURCES.resolve(name).files:
            path = data_folder / file.path
            if path.is_file():
                assert matches(path, file.checksum)
                assert path.stat().st_size == file.size


def test_listing_of_an_empty_folder(tmp_path: Path) -> None:
    rows = {row.name: row for row in listing(tmp_path)}
    assert rows["mnist"].state == "missing"
    assert (rows["mnist"].bytes, rows["mnist"].samples) == (0, (0, 0))
    assert rows["mnist"].how == "run `coterie data fetch mnist`"
    assert "hemanthdv" in rows["office-home"].how
