"""Pages of documentation as programs: their blocks are run in order, in an empty folder, and what they print is held against the page.

    python -m tests.docs.pages docs/tutorials/first-comparison.md      writes what the commands print into the page

A block with a title is a file. `bash` is run with the tool on the path, `python` by itself. A `text` block after it is what it
prints, where a line `...` stands for any number of lines.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', flags=re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"[-+]?\d[\d,.]*")
JUDGED = re.compile(r"no difference shown|not shown|higher|lower|too few seeds")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    title: str
    text: str
    span: tuple[int, int]
    """Where its text lies in the page."""


def blocks(page: str) -> Iterator[Block]:
    """Every fenced block, in order."""
    for found in FENCE.finditer(page):
        yield Block(found.group(1), found.group(2) or "", found.group(3), found.span(3))


def perform(block: Block, folder: Path) -> str:
    """Run one, and say what it printed; anything but success is an error that shows it."""
    command = ["bash", "-euo", "pipefail", "-c"] if block.language == "bash" else [sys.executable, "-c"]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "COLUMNS": "80", "COTERIE_DATA": str(data())}
    done = subprocess.run([*command, block.text], cwd=folder, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, f"{block.text}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def data() -> Path:
    """Where data sets lie: the folder that is set, or the one beside the project."""
    return Path(os.environ.get("COTERIE_DATA") or ROOT.parent / "shared" / "data")


def played(page: str, folder: Path) -> Iterator[tuple[Block, str]]:
    """Do what a page says, in its order; every block of output that it shows, with what was printed."""
    printed = ""
    for block in blocks(page):
        if block.title:
            (folder / block.title).write_text(block.text, encoding="utf-8")
        elif block.language in ("bash", "python"):
            printed = perform(block, folder)
        elif block.language == "text":
            yield block, printed


def form(line: str) -> str:
    """A line without what another processor may compute: numbers, verdicts, and the widths that come of them.

    >>> form("fedavg   87.98% ± 0.71   higher")
    'fedavg # ± # #'
    """
    return " ".join(re.sub(r"[─━]+", "", JUDGED.sub("#", NUMBER.sub("#", line))).replace("#%", "#").split())


def differences(shown: str, printed: str) -> list[str]:
    """Lines that a page shows and that were not printed, in that order."""
    rest = iter([form(line) for line in printed.splitlines()])
    return [line for line in shown.splitlines() if line.strip() != "..." and form(line) and form(line) not in rest]


def written(page: str) -> str:
    """The page with what its commands print now."""
    with tempfile.TemporaryDirectory() as folder:
        outputs = list(played(page, Path(folder)))
        for block, printed in reversed(outputs):
            lines = [line.rstrip() for line in printed.replace(folder, ".").strip("\n").splitlines()]
            page = page[: block.span[0]] + "\n".join(lines) + "\n" + page[block.span[1] :]
    return page


if __name__ == "__main__":
    for name in sys.argv[1:]:
        Path(name).write_text(written(Path(name).read_text(encoding="utf-8")), encoding="utf-8")
