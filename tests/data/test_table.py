"""Own data without code: tables, arrays of any shape, texts."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from coterie.data.sources.npz import Npz
from coterie.data.sources.table import Csv
from coterie.engines import Inline
from coterie.errors import UserError
from coterie.running.experiment import Experiment
from coterie.running.rounds import run


def written(path: Path, rows: list[list[object]]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return path


@pytest.fixture
def flowers(tmp_path) -> Path:
    rng = np.random.default_rng(0)
    rows = [
        [f"row {n}", n % 2 + rng.normal(0, 0.1), ["red", "blue"][n % 2], "" if n % 7 == 0 else n % 2, ["a", "b"][n % 2]] for n in range(80)
    ]
    return written(tmp_path / "flowers.csv", [["id", "width", "colour", "height", "species"], *rows])


def test_a_table_has_numbers_categories_and_classes(flowers, tmp_path) -> None:
    pool = Csv(path="flowers.csv", label="species", ignore=("id",)).load(tmp_path)
    assert (pool.shape, pool.classes, pool.train, len(pool), pool.x.dtype) == ((4,), 2, 64, 80, np.float32)
    assert not np.isnan(pool.x).any()
    assert set(np.unique(pool.x[:, 1:3])) == {0.0, 1.0}
    assert "classes of species: a, b" in pool.note
    again = Csv(path="flowers.csv", label="species", ignore=("id",)).load(tmp_path)
    assert np.array_equal(pool.x, again.x)


def test_a_table_is_learned_by_a_small_network_and_its_model_predicts_plain_rows(flowers, tmp_path) -> None:
    table = {"name": "flowers", "rounds": 3, "partition": {"name": "iid", "clients": 3}, "model": "tabular", "method": "fedavg"}
    source = {"name": "csv", "path": str(flowers), "label": "species", "ignore": ["id"]}
    result = run(Experiment.parse(table | {"data": {"source": source}}), tmp_path / "run", engine=Inline())
    assert result.accuracy() == 1.0
    pool = Csv(path=str(flowers), label="species", ignore=("id",)).load(tmp_path)
    assert result.model().predict(pool.x[:5]).tolist() == pool.y[:5].tolist()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"label": "specis"}, "has no column 'specis': did you mean 'species'"),
        ({"ignore": ()}, r"column 'id' has 80 different values|no column"),
        ({"label": "width", "ignore": ("id",)}, "label 'width' has 80 different values; regression is not supported"),
        ({"label": "height", "ignore": ("id",)}, "12 rows have no label"),
    ],
)
def test_a_table_that_does_not_fit_is_a_sentence(flowers, tmp_path, changes, said, monkeypatch) -> None:
    monkeypatch.setattr("coterie.data.sources.table.CATEGORIES", 50)
    with pytest.raises(UserError, match=said):
        Csv(**{"path": "flowers.csv", "label": "species", "ignore": ("id",), **changes}).load(tmp_path)


def test_a_column_of_text_is_learned_by_its_words(tmp_path) -> None:
    texts = [[f"what a {'good' if n % 2 else 'bad'} day number {n}", n % 2] for n in range(100)]
    path = written(tmp_path / "days.csv", [["text", "mood"], *texts])
    source = {"name": "csv", "path": str(path), "label": "mood", "text": "text", "length": 8}
    table = {"name": "days", "rounds": 8, "partition": {"name": "iid", "clients": 2}, "model": {"name": "text", "vocabulary": 500}}
    training = {"epochs": 5, "batch": 10, "optimiser": {"name": "adam", "lr": 0.01}}
    plan = Experiment.parse(table | {"data": {"source": source}, "method": "fedavg", "training": training})
    assert run(plan, tmp_path / "run", engine=Inline()).accuracy() > 0.9


@pytest.mark.parametrize(
    ("kind", "shape"), [(np.float64, (12,)), (np.float32, (2, 6)), (np.float32, (2, 3, 4)), (np.bool_, (5,)), (np.int64, (6,))]
)
def test_arrays_of_any_shape(tmp_path, kind, shape) -> None:
    rng, y = np.random.default_rng(0), np.arange(40) % 2
    x = (rng.normal(y.reshape(-1, *(1,) * len(shape)), 0.1, (40, *shape)) * (10 if kind is np.int64 else 1)).astype(kind)
    np.savez(tmp_path / "mine.npz", x_train=x[:30], y_train=y[:30], x_test=x[30:], y_test=y[30:])
    pool = Npz(path="mine.npz").load(tmp_path)
    assert (pool.shape, pool.tokens, pool.images) == (shape, kind is np.int64, False)
    table = {
        "name": "arrays",
        "partition": {"name": "iid", "clients": 2},
        "method": "fedavg",
        "data": {"source": {"name": "npz", "path": "mine.npz"}},
    }
    model = "text" if kind is np.int64 else "mlp"
    Experiment.parse(table | {"model": model}).population(tmp_path)
    with pytest.raises(UserError, match=r"model 'cnn' (takes|needs) images"):
        Experiment.parse(table | {"model": "cnn"}).population(tmp_path)


def test_what_is_not_supported_says_so(tmp_path) -> None:
    x = np.zeros((4, 3), np.float32)
    for y, said in ((np.zeros(4), "regression is not supported"), (np.zeros((4, 2), np.int64), "segmentation")):
        np.savez(tmp_path / "mine.npz", x_train=x, y_train=y, x_test=x, y_test=y)
        with pytest.raises(UserError, match=said):
            Npz(path="mine.npz").load(tmp_path)
