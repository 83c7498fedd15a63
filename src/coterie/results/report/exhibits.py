"""What a method put on show, made small enough to draw, without knowing the method: lines, bars, heat maps, images."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from coterie.ledger import Event
from coterie.results.report.gather import Comparison
from coterie.results.report.numbers import thin
from coterie.results.report.read import Run

__all__ = ["exhibits_of", "images_of", "sheet"]

SIDE = 96
"""Rows and columns of a drawn heat map; larger ones are averaged in blocks."""
LINES = 24
"""Entries of a vector that are drawn as lines."""
BARS = 512
CLIENTS = 12
"""Clients of a run whose exhibits are shown."""
PICTURES = 48

Array = NDArray[np.float64]


def exhibits_of(comparison: Comparison) -> list[dict[str, Any]]:
    """Every exhibit that is whole: its title, how it is drawn, whose it is, its arrays, and a note where it was cut down.

    >>> from pathlib import Path
    >>> from coterie.results.report.gather import Arm
    >>> from coterie.results.report.read import Run
    >>> shown = {"round": 2, "client": None, "name": "a", "title": "Alpha", "draw": "bars", "x": "", "y": "", "values": [1.0, 2.0]}
    >>> run = Run(Path("r"), {"seed": 0}, exhibits={("a", None): [shown]})
    >>> [(each["title"], each["who"], each["values"]) for each in exhibits_of(Comparison("toy", [Arm("mine", "mine", [run])]))]
    [('Alpha', 'server', [1.0, 2.0])]
    """
    found: list[dict[str, Any]] = []
    for index, arm in enumerate(comparison.arms):
        for run in arm.runs:
            found.extend({**each, "arm": index, "seed": run.seed} for each in _domains(run))
            names: dict[str, int] = {}
            for (name, client), events in run.exhibits.items():
                names[name] = names.get(name, 0) + (client is not None)
                if names[name] > CLIENTS:
                    continue
                drawn = _drawn(events)
                if drawn is not None:
                    how = {key: str(events[-1].get(key, "")) for key in ("title", "draw", "x", "y")}
                    who = "server" if client is None else f"client {client}"
                    found.append({**how, "arm": index, "seed": run.seed, "who": who, "round": events[-1]["round"], **drawn})
    return found


def _domains(run: Run) -> Iterator[dict[str, Any]]:
    """Where models were measured on every domain: the matrix of models by domains, in percent."""
    seen = {name.removeprefix("on "): metrics for name, metrics in run.clients.items() if name.startswith("on ")}
    order = list((run.partition or {}).get("domains") or sorted(seen))
    owners = (run.partition or {}).get("domain_of") or []
    for metric, title in (("accuracy", "accuracy"), ("top5", "top-5 accuracy")):
        cells = {(client, domain): each for domain, metrics in seen.items() for client, each in metrics.get(metric, {}).items()}
        clients = sorted({client for client, _ in cells})[:CLIENTS]
        if not clients or any((client, domain) not in cells for client in clients for domain in order):
            continue
        yield {
            "title": f"Every model on every domain: {title}",
            "draw": "heatmap",
            "x": "tested on (%)",
            "y": "model of",
            "who": "all clients",
            "round": max(each.round for each in cells.values()),
            "values": [[100 * cells[client, domain].value for domain in order] for client in clients],
            "columns": order,
            "rows": [f"{client}: {order[owners[client]]}" if client < len(owners) else str(client) for client in clients],
            "note": _first(CLIENTS, len({client for client, _ in cells}), "clients"),
        }


def _drawn(events: Sequence[Event]) -> dict[str, Any] | None:
    """The arrays to draw; nothing where they do not have the shape that their kind of drawing needs."""
    try:
        values = np.asarray(events[-1]["values"], dtype=np.float64)
        match events[-1]["draw"], values.ndim:
            case "lines", 0 | 1:
                return _lines(events)
            case "bars", 0 | 1:
                flat = np.atleast_1d(values)
                return {"values": flat[:BARS].tolist(), "note": _first(BARS, len(flat), "entries")}
            case "heatmap", 2:
                small = _blocks(values)
                note = "" if small.shape == values.shape else f"averaged in blocks from {values.shape[0]} x {values.shape[1]}"
                return {"values": small.tolist(), "note": note}
            case "images", 2 | 3:
                stack = values if values.ndim == 3 else values[None]
                address = sheet(stack[:PICTURES])
                return {"values": address, "shape": list(images_of(address).shape), "note": _first(PICTURES, len(stack), "images")}
    except (ValueError, TypeError):
        pass
    return None


def _lines(events: Sequence[Event]) -> dict[str, Any]:
    by_round = {int(event["round"]): np.atleast_1d(np.asarray(event["values"], dtype=np.float64)) for event in events}
    rounds = thin(sorted(by_round))
    width = min(LINES, min(len(by_round[r]) for r in rounds))
    lines = [[float(by_round[r][entry]) for r in rounds] for entry in range(width)]
    return {"rounds": rounds, "values": lines, "note": _first(LINES, max(len(by_round[r]) for r in rounds), "entries")}


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
