"""`coterie data`: what is here, fetching, checking, and images of partitions."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie.cli.options import DataFolder, Json
from coterie.cli.sentences import console, say
from coterie.errors import UserError
from coterie.ledger import to_json

if TYPE_CHECKING:
    from coterie.data.sources import Source

__all__ = ["app"]

app = typer.Typer(help="Data sets: what is here, fetching, checking, images of partitions.", no_args_is_help=True)


@app.command("list")
def list_data_command(data: DataFolder = None, as_json: Json = False) -> None:
    """Every data set: whether it is there, its size and licence, and how to get it."""
    from coterie.data.fetch import listing
    from coterie.data.folder import data_folder
    from coterie.results.tables import amount, simple

    folder = data_folder(data)
    rows = listing(folder)
    if as_json:
        _print_json([dataclasses.asdict(row) for row in rows])
        return
    cells = [(row.name, row.state, amount(row.bytes) if row.bytes else "-", _images(*row.samples), row.licence) for row in rows]
    console.print(simple(f"data sets in {folder}", ["name", "state", "size", "samples", "licence"], cells))
    console.print(simple("how to get them", ["name", "how"], [(row.name, row.how) for row in rows]))


@app.command("fetch")
def fetch_command(
    name: Annotated[str, typer.Argument(help="A data set that `coterie data list` shows.")],
    data: DataFolder = None,
    as_json: Json = False,
) -> None:
    """Download a data set from its canonical places, checked against its published checksums; goes on where it was stopped."""
    from coterie.data.fetch import bars, fetch
    from coterie.data.folder import data_folder

    folder = data_folder(data)
    source = _source(name, folder)
    if as_json:
        paths = fetch(source, folder)
        _print_json({"name": name, "files": [str(path) for path in paths]})
        return
    with bars() as report:
        paths = fetch(source, folder, report)
    for path in paths:
        say(f"{name}: {path}")


@app.command("verify")
def verify_command(
    name: Annotated[str | None, typer.Argument(help="A data set; by default all that are there.")] = None,
    data: DataFolder = None,
    as_json: Json = False,
) -> None:
    """Compare files with their published checksums, and read every image and label."""
    from coterie.data.fetch import listing
    from coterie.data.folder import data_folder
    from coterie.results.tables import simple

    folder = data_folder(data)
    names = [row.name for row in listing(folder) if row.state in ("there", "part", "damaged")] if name is None else [name]
    rows, wrong = [], []
    for each in names:
        try:
            with console.status(f"reading {each}"):
                rows.append(_verified(_source(each, folder), folder))
        except UserError as error:
            wrong.append(str(error))
    if as_json:
        _print_json(rows)
    elif rows:
        columns = ["name", "samples", "classes", "image", "files as published"]
        console.print(simple(f"sound in {folder}", columns, [_cells(row) for row in rows]))
        for row in rows:
            if row["note"]:
                say(f"{row['name']}: {row['note']}")
    if wrong:
        raise UserError("; ".join(dict.fromkeys(wrong)))


@app.command("show")
def show_command(
    experiment: Annotated[str, typer.Argument(help="An experiment file, or the name of one that comes with Coterie.")],
    overrides: Annotated[list[str] | None, typer.Option("--set", help="Override any key, e.g. partition.clients=20. Repeatable.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="The .png, .svg or .pdf to write; by default the experiment's name and -partition.png.")
    ] = None,
    data: DataFolder = None,
    as_json: Json = False,
) -> None:
    """Draw who holds what in an experiment."""
    from coterie.data.drawing import draw_partition, save
    from coterie.running.experiment import Experiment

    plan = Experiment.load(experiment, overrides or ())
    population = plan.population(data)
    figure = draw_partition(
        population.pool, population.partition, f"{plan.name}: {plan.partition.name} over {population.partition.clients:,} clients"
    )
    path = out or Path(f"{plan.name}-partition.png")
    try:
        save(figure, path)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error}") from None
    if as_json:
        _print_json({"image": str(path), "clients": population.partition.clients, "note": population.pool.note})
    else:
        say(f"written to {path}")


def _source(name: str, folder: Path) -> Source:
    """The data set of this name, as it lies in a folder: complete, or a part."""
    from coterie.data.fetch import row
    from coterie.data.sources import SOURCES

    spec = SOURCES.find(name)
    if row(spec, folder).state == "yours":
        raise UserError(f"source '{name}' is data of your own, with nothing to fetch or verify: in an experiment, {spec.how}")
    return spec().as_it_lies(folder)


def _verified(source: Source, folder: Path) -> dict[str, Any]:
    """What a data set turned out to hold."""
    from coterie.data.fetch import verify

    pool = verify(source, folder)
    published = sum((folder / leaf).is_file() for file in source.files for leaf in file.leaves)
    return {
        "name": source.name,
        "samples": (pool.train, len(pool) - pool.train),
        "classes": pool.classes,
        "shape": pool.shape,
        "published": published,
        "note": pool.note,
    }


def _cells(row: dict[str, Any]) -> tuple[Any, ...]:
    c, h, w = row["shape"]
    return row["name"], _images(*row["samples"]), row["classes"], f"{h}x{w}x{c}", row["published"] or "-"


def _images(train: int, test: int) -> str:
    """Training and test images.

    >>> _images(60_000, 10_000), _images(0, 0)
    ('60,000 + 10,000', '-')
    """
    return f"{train:,} + {test:,}" if train or test else "-"


def _print_json(value: Any) -> None:
    sys.stdout.write(to_json(value) + "\n")
