"""A comparison from Python."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import coterie
from coterie.errors import UserError
from coterie.methods.fedavg import FedAvg
from coterie.testing import small_experiment

PLAN = small_experiment(FedAvg()).replace(engine={"name": "inline"})


HEARD: list[str] = []


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> coterie.Tables:
    methods, folder = ["fedavg", FedAvg(weighting="uniform"), "local"], tmp_path_factory.mktemp("runs")
    heard = [lambda event: HEARD.append(f"{event['run']} {event['event']}")]
    return coterie.compare(PLAN, methods, [0, 1, 2], folder, baseline="local", callbacks=heard)


def test_callbacks_hear_every_run(found) -> None:
    assert (HEARD.count("local seed 2 round"), HEARD.count("local seed 0 end")) == (PLAN.rounds, 1)


def test_its_tables_are_shown_written_and_read_as_numbers(found) -> None:
    assert [standing.label for standing in found.found.standings] == [run["method"] for run in found.runs[::3]]
    assert len(found.runs) == 9
    assert found.found.baseline == "local"
    assert (found.folder / "table.md").read_text() == str(found) == found.text("markdown")
    assert json.loads((found.folder / "table.json").read_text())["runs"] == json.loads(json.dumps(found.runs))
    assert found._repr_html_().count("<table>") == len(found.sheets)
    assert set(found.frame()["method"].dropna()) == {"fedavg", "local"}


def test_what_is_there_is_reused(found) -> None:
    again = coterie.compare(PLAN, ["fedavg", "local"], [0, 1], found.folder)
    assert again.compared.reused == 4


def test_a_baseline_that_is_not_compared_is_an_error_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="baseline 'locl': not one of what is compared, did you mean 'local'"):
        coterie.compare(PLAN, ["fedavg", "local"], [0], tmp_path / "runs", baseline="locl")
    assert not (tmp_path / "runs").exists()
