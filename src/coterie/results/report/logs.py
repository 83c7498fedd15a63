"""What methods logged, made small enough to draw. How it is drawn follows from its shape; titles and labels are in a table by name.

A number or a short vector is lines over rounds, a long vector is a heat map of entries by rounds, a matrix is a heat map, a stack of
matrices is images.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from coterie.ledger import Event
from coterie.results.gather import Report
from coterie.results.report.curves import thin
from coterie.results.tally import Tally

__all__ = ["LOOKS", "Look", "images_of", "logs_of", "sheet"]

SIDE = 96
"""Rows and columns of a drawn heat map; larger ones are averaged in blocks."""
LINES = 12
"""Entries of a vector up to which each is a line; longer ones are a heat map."""
CLIENTS = 12
"""Clients of a run whose logs are shown."""
IMAGES = 48

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Look:
    """How a log is named: its title, what its axes and entries are called."""

    title: str
    x: str = ""
    y: str = ""
    entries: tuple[str, ...] = ()
    """Names of a vector's entries; the last is that of all further ones too."""

    def entry(self, index: int, of: int) -> str:
        """The name of one entry.

        >>> look = Look("Terms of the training loss", entries=("cross-entropy", "added term"))
        >>> look.entry(0, 2), look.entry(1, 2), look.entry(2, 3), Look("Alpha").entry(4, 9)
        ('cross-entropy', 'added term', 'added term 2', 'entry 4')
        """
        if not self.entries:
            return f"entry {index}"
        last = len(self.entries) - 1
        return self.entries[index] if index < last or of <= len(self.entries) else f"{self.entries[-1]} {index - last + 1}"


LOOKS = {
    "losses": Look("Terms of the training loss", y="loss", entries=("cross-entropy", "added term")),
    "fusion": Look("Weight of the global extractor in the fusion, by channel", x="round", y="channel", entries=("channel 0", "channel")),
    "global fusion": Look("Weight of the global extractor, at the server", x="round", y="channel", entries=("channel 0", "channel")),
    "trust": Look("Weight of each client's predictions, in the cohort's order", y="weight", entries=("first client", "client")),
    "alpha and beta": Look("Weights of the labels: alpha (local model) and beta (meme model)", y="weight", entries=("alpha", "beta")),
    "public correlation": Look("Correlation with the federation on public data", x="class (mean logit)", y="class (own logit)"),
    "private correlation": Look("Correlation among own logits on private test data", x="class", y="class"),
}
"""By the name under which a method logs; any other is its own title."""


def logs_of(report: Report) -> list[dict[str, Any]]:
    """Every log that is whole: its title, how it is drawn, whose it is, its arrays, and a note where it was cut down.

    >>> from pathlib import Path
    >>> from coterie.results.comparison import ArmRuns
    >>> from coterie.results.read import Run
    >>> tally = Tally.of([{"event": "log", "round": 2, "client": None, "name": "alpha and beta", "values": [0.5, 0.25]}])
    >>> [(each["who"], each["names"], each["values"]) for each in logs_of(Report("toy", [ArmRuns("mine", [Run(Path("r"), tally)])]))]
    [('server', ['alpha', 'beta'], [[0.5], [0.25]])]
    """
    found: list[dict[str, Any]] = []
    for index, arm in enumerate(report.arms):
        for run in arm.runs:
            about = {"arm": index, "seed": run.tally.seed}
            found.extend({**each, **about} for each in (*_domains(run.tally), *_logs(run.tally)))
    return found


def _logs(tally: Tally) -> Iterator[dict[str, Any]]:
    """The server's first, then clients in their order."""
    shown: dict[str, int] = {}
    for (name, client), events in sorted(tally.logs.items(), key=lambda item: (item[0][0], -1 if item[0][1] is None else item[0][1])):
        shown[name] = shown.get(name, 0) + (client is not None)
        drawn = _drawn(events) if shown[name] <= CLIENTS else None
        if drawn is not None:
            who = "server" if client is None else f"client {client}"
            look = LOOKS.get(name, Look(f"{name[:1].upper()}{name[1:]}"))
            yield {"name": name, "title": look.title, "who": who, "round": events[-1]["round"], **drawn}


def _domains(tally: Tally) -> Iterator[dict[str, Any]]:
    """Where models were measured on every domain: the matrix of models by domains, in percent, on one scale for all methods."""
    owners = (tally.partition or {}).get("domain_of") or []
    for metric, title in (("accuracy", "accuracy"), ("top5", "top-5 accuracy")):
        cells = tally.on_domain.get(metric, {})
        order = list((tally.partition or {}).get("domains") or sorted({domain for _, domain in cells}))
        clients = sorted({client for client, _ in cells})[:CLIENTS]
        if not clients or any((client, domain) not in cells for client in clients for domain in order):
            continue
        yield {
            "name": f"domains {metric}",
            "title": f"Every model on every domain: {title}",
            "draw": "heatmap",
            "x": "tested on (%)",
            "y": "model of",
            "who": "all clients",
            "round": max(each.round for each in cells.values()),
            "values": [[100 * cells[client, domain].value for domain in order] for client in clients],
            "low": 0,
            "high": 100,
            "columns": order,
            "rows": [f"{client}: {order[owners[client]]}" if client < len(owners) else str(client) for client in clients],
            "note": _first(CLIENTS, len({client for client, _ in cells}), "clients"),
        }


def _drawn(events: Sequence[Event]) -> dict[str, Any] | None:
    """The arrays to draw; nothing where they are ragged or have more dimensions than images."""
    try:
        values = np.asarray(events[-1]["values"], dtype=np.float64)
        look = LOOKS.get(events[-1]["name"], Look(""))
        match values.ndim:
            case 0 | 1:
                return _over_rounds(events, look)
            case 2:
                note = "" if max(values.shape) <= SIDE else f"averaged in blocks from {values.shape[0]} x {values.shape[1]}"
                return {"draw": "heatmap", "x": look.x, "y": look.y, "values": _blocks(values).tolist(), "note": note}
            case 3:
                address = sheet(values[:IMAGES])
                note = _first(IMAGES, len(values), "images")
                return {"draw": "images", "values": address, "shape": list(images_of(address).shape), "note": note}
    except (ValueError, TypeError):
        pass
    return None


def _over_rounds(events: Sequence[Event], look: Look) -> dict[str, Any]:
    by_round = {int(event["round"]): np.atleast_1d(np.asarray(event["values"], dtype=np.float64)) for event in events}
    rounds = thin(sorted(by_round))
    width = min(len(by_round[each]) for each in rounds)
    matrix = np.stack([by_round[each][:width] for each in rounds], axis=1)
    if width <= LINES:
        names = [look.entry(entry, width) for entry in range(width)]
        return {"draw": "lines", "x": "round", "y": look.y, "rounds": rounds, "names": names, "values": matrix.tolist(), "note": ""}
    kept = thin(rounds, SIDE)
    small = _blocks(matrix[:, [rounds.index(each) for each in kept]])
    note = "" if width <= SIDE else f"averaged in blocks from {width} entries"
    return {"draw": "heatmap", "x": "round", "y": look.y or "entry", "columns": kept, "values": small.tolist(), "note": note}


def _first(most: int, length: int, noun: str) -> str:
    return f"the first {most} of {length} {noun}" if length > most else ""


def _blocks(matrix: Array) -> Array:
    """A matrix of at most SIDE x SIDE, each entry the mean of a block.

    >>> _blocks(np.ones((200, 10))).shape
    (96, 10)
    """
    for axis in (0, 1):
        if matrix.shape[axis] > SIDE:
            parts = np.array_split(matrix, SIDE, axis=axis)
            matrix = np.stack([part.mean(axis=axis) for part in parts], axis=axis)
    return matrix


def sheet(images: Array) -> str:
    """Grey images side by side in one PNG, as a data address; what is not finite is black.

    >>> sheet(np.zeros((3, 8, 8)))[:22]
    'data:image/png;base64,'
    """
    rows = list(_rows(images))
    out = io.BytesIO()
    Image.fromarray(np.vstack(rows)).save(out, "png", optimize=True)
    return "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()


def images_of(address: str) -> NDArray[np.uint8]:
    """The pixels behind a data address that `sheet` made.

    >>> images_of(sheet(np.ones((1, 2, 2)))).tolist()
    [[128, 128, 128, 128], [128, 255, 255, 128], [128, 255, 255, 128], [128, 128, 128, 128]]
    """
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(address.partition(",")[2]))))


def _rows(images: Array, columns: int = 12, gap: int = 1) -> Iterator[NDArray[np.uint8]]:
    levels = (255 * np.clip(np.nan_to_num(images), 0, 1)).round().astype(np.uint8)
    framed = np.pad(levels, ((0, 0), (gap, gap), (gap, gap)), constant_values=128)
    columns = min(columns, len(framed))
    empty = np.full_like(framed[0], 128)
    for start in range(0, len(framed), columns):
        row = [*framed[start : start + columns]]
        yield np.hstack(row + [empty] * (columns - len(row)))
