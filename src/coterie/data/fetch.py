"""Getting data sets: download, check, list.

pooch checks checksums and renames a finished file into place, but begins every download anew. `Resume` is the downloader
given to it: bytes go to a `.part` file beside the final name, which a later attempt continues with an HTTP range request.
Nothing that is unfinished or unchecked ever stands under its final name.
"""

from __future__ import annotations

import dataclasses
import os
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pooch
import requests
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from coterie import durable
from coterie.data.pool import Pool
from coterie.data.sources import SOURCES
from coterie.data.sources.base import File, Found, Source, matches
from coterie.data.sources.blocks import reading
from coterie.errors import UserError

__all__ = ["FetchReport", "FetchRow", "bars", "fetch", "fetch_file", "listing", "verify"]

FetchReport = Callable[[str, int, int], None]
"""Told a file's name, the bytes there so far and the bytes in all (0: unknown)."""

CHUNK = 1 << 16
PATIENCE = (10.0, 60.0)
"""Seconds to wait for a connection, and for the next bytes."""


def silent(name: str, done: int, total: int) -> None:
    """Tell nobody."""


@contextmanager
def bars() -> Iterator[FetchReport]:
    """A progress bar a file on the terminal, drawn while the context is open."""
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()
    with Progress(*columns) as progress:
        tasks: dict[str, Any] = {}

        def report(name: str, done: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = progress.add_task(name)
            progress.update(tasks[name], completed=done, total=total or None)

        yield report


def fetch(source: Source, folder: Path, progress: FetchReport = silent) -> tuple[Path, ...]:
    """Every file of `source` in `folder`, downloaded where it is missing or damaged; where they are."""
    if not source.files:
        raise UserError(f"{source.name} cannot be fetched: {source.how}")
    return tuple(path for file in source.files for path in fetch_file(file, folder, progress))


def fetch_file(file: File, folder: Path, progress: FetchReport = silent) -> tuple[Path, ...]:
    """One file, or the members of one archive, from the first mirror that has the right bytes."""
    leaves = tuple(folder / leaf for leaf in file.leaves)
    if all(matches(folder / leaf, checksum) for leaf, checksum in file.leaves.items()):
        return leaves
    target = folder / file.path
    failures = []
    for url in file.urls:
        failure = attempt(url, file, target, progress)
        if failure is None:
            if file.unpacks:
                unpack(file, folder)
            return leaves
        failures.append(f"{url} ({failure})")
    raise UserError(f"{target} could not be fetched: {'; '.join(failures) or 'it has no address'}")


def attempt(url: str, file: File, target: Path, progress: FetchReport) -> str | None:
    """Download from one mirror; None, or what went wrong. What was resumed and came out wrong is tried once more from its beginning."""
    resume = Resume(target.with_name(target.name + ".part"), progress, file.size)
    for _ in range(1 + resume.part.exists()):
        try:
            pooch.retrieve(url, file.checksum, fname=target.name, path=target.parent, downloader=resume)
            durable.sync_file(target)
        except requests.RequestException as error:
            return f"{type(error).__name__}: {error}"
        except ValueError:  # pooch's word for a wrong checksum; the bytes are gone with its temporary file
            continue
        except OSError as error:
            raise UserError(f"{target} cannot be written: {error}") from None
        return None
    return "wrong checksum"


@dataclasses.dataclass(frozen=True)
class Resume:
    """A downloader for pooch that continues where the last attempt stopped."""

    part: Path
    progress: FetchReport = silent
    size: int = 0

    def __call__(self, url: str, output_file: str, caller: object) -> None:
        """Bring `part` to its full length, then give it to pooch under the name it chose."""
        have = self.part.stat().st_size if self.part.exists() else 0
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
        with requests.get(url, headers=headers, stream=True, timeout=PATIENCE) as reply:
            if reply.status_code == requests.codes.requested_range_not_satisfiable:
                # nothing lies beyond what we have: the checksum decides whether that is the file
                os.replace(self.part, output_file)
                return
            reply.raise_for_status()
            continued = reply.headers.get("Content-Range", "").startswith(f"bytes {have}-") and reply.status_code == requests.codes.partial
            self.write(reply, have if continued else 0)
        os.replace(self.part, output_file)

    def write(self, reply: requests.Response, have: int) -> None:
        """Append the reply behind the first `have` bytes."""
        total = have + int(reply.headers.get("Content-Length", 0)) if "Content-Length" in reply.headers else self.size
        with self.part.open("ab" if have else "wb") as stream:
            for chunk in reply.iter_content(CHUNK):
                stream.write(chunk)
                have += len(chunk)
                self.progress(self.part.name.removesuffix(".part"), have, total)


def unpack(file: File, folder: Path) -> None:
    """The wanted members of an archive, each checked before it gets its name; then the archive goes."""
    archive = folder / file.path
    with tempfile.TemporaryDirectory(dir=folder) as scratch, reading(archive), tarfile.open(archive) as tar:
        for leaf, checksum in file.unpacks.items():
            # the name is ours, not the archive's: nothing it holds can be written elsewhere
            member, fresh = tar.extractfile(leaf), Path(scratch) / "member"
            if member is None:
                raise UserError(f"{archive} holds {leaf}, but not as a file")
            with fresh.open("wb") as stream:
                while chunk := member.read(CHUNK):
                    stream.write(chunk)
            if not matches(fresh, checksum):
                raise UserError(f"{leaf} in {archive} has a wrong checksum")
            (folder / leaf).parent.mkdir(parents=True, exist_ok=True)
            durable.place(fresh, folder / leaf)
    archive.unlink()


def verify(source: Source, folder: Path) -> Pool:
    """The pool, after every file of `source` that is in `folder` was compared with its published checksum."""
    source.check([folder / leaf for file in source.files for leaf in file.leaves if (folder / leaf).is_file()])
    return source.load(folder)


@dataclasses.dataclass(frozen=True)
class FetchRow:
    """What `coterie data list` tells of one source."""

    name: str
    state: str
    """`there`, `part`, `missing`, `damaged`, or `yours` where the user must say which folder or file."""
    bytes: int
    samples: tuple[int, int]
    """Training and test images that are there."""
    licence: str
    homepage: str
    how: str


def listing(folder: Path) -> list[FetchRow]:
    """Every registered source, in order; nothing is read but file names and label counts.

    >>> [(row.name, row.state, row.samples) for row in listing(Path("nowhere"))][:2]
    [('digits', 'there', (1442, 355)), ('mnist', 'missing', (0, 0))]
    """
    return [row(spec, folder) for spec in SOURCES.specs.values()]


def row(spec: type[Source], folder: Path) -> FetchRow:
    """One line of the listing."""
    needed = any(f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING for f in fields(spec))
    try:
        found = None if needed else spec().as_it_lies(folder).found(folder)
    except UserError as error:  # of one set: the others are listed
        return FetchRow(spec.name, "damaged", 0, (0, 0), spec.licence, spec.homepage, f"{error}; {spec.advice()}")
    state = "yours" if needed else "missing" if found is None else "part" if found.part else "there"
    seen = found or Found((), (0, 0))
    return FetchRow(spec.name, state, seen.bytes, seen.samples, spec.licence, spec.homepage, spec.advice())


def fields(spec: type[Source]) -> tuple[dataclasses.Field[Any], ...]:
    """The settings of a source."""
    return dataclasses.fields(spec)  # type: ignore[arg-type]
