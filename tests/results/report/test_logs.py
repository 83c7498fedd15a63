"""What methods log is drawn by its shape, and named by a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coterie.engines import Inline
from coterie.ledger import events
from coterie.results.comparison import ArmRuns
from coterie.results.gather import Report, gather
from coterie.results.read import Run
from coterie.results.report.logs import logs_of
from coterie.results.tally import Tally
from coterie.running.experiment import Experiment
from coterie.running.rounds import run

STYLES = ["plain", "inverted", "turned", "noisy"]


def logged(*arrays: tuple[int, int | None, str, Any]) -> list[dict[str, Any]]:
    lines = [{"event": "log", "round": round, "client": client, "name": name, "values": values} for round, client, name, values in arrays]
    return logs_of(Report("toy", [ArmRuns("mine", [Run(Path("run"), Tally.of(lines))])]))


@pytest.mark.parametrize(
    ("values", "draw"),
    [
        (0.5, "lines"),
        ([0.5, 0.25], "lines"),
        ([0.01 * entry for entry in range(64)], "heatmap"),
        ([[1.0, 0.5], [0.5, 1.0]], "heatmap"),
        ([[[0.0, 1.0], [1.0, 0.0]]] * 3, "images"),
    ],
)
def test_the_shape_decides_how_it_is_drawn(values, draw) -> None:
    assert [each["draw"] for each in logged((1, None, "anything", values))] == [draw]


@pytest.mark.parametrize("values", [[[1.0, 2.0], [3.0]], "text", [[[[1.0]]]]])
def test_what_has_no_shape_is_left_out(values) -> None:
    assert logged((1, None, "anything", values)) == []


def test_known_names_have_titles_labels_and_legends() -> None:
    [losses] = logged((1, 3, "losses", [0.5, 0.1]), (2, 3, "losses", [0.4, 0.1]))
    assert (losses["title"], losses["y"], losses["names"]) == ("Terms of the training loss", "loss", ["cross-entropy", "added term"])
    assert (losses["rounds"], losses["values"], losses["who"]) == ([1, 2], [[0.5, 0.4], [0.1, 0.1]], "client 3")
    [dials] = logged((1, None, "alpha and beta", [0.5, 0.5]))
    assert dials["names"] == ["alpha", "beta"]
    [matrix] = logged((4, 0, "public correlation", [[1.0, 0.0], [0.0, 1.0]]))
    assert (matrix["x"], matrix["y"]) == ("class (mean logit)", "class (own logit)")
    [own] = logged((1, None, "temperature of the sea", 3.0))
    assert own["title"] == "Temperature of the sea"


def test_a_long_vector_is_a_map_of_entries_by_rounds() -> None:
    [fusion] = logged(*((round, 0, "fusion", [0.1 * round] * 20) for round in (1, 2, 5)))
    assert (fusion["columns"], fusion["x"], fusion["y"]) == ([1, 2, 5], "round", "channel")
    assert len(fusion["values"]) == 20
    assert fusion["values"][0] == pytest.approx([0.1, 0.2, 0.5])


def test_the_server_comes_first_and_clients_in_their_order() -> None:
    found = logged(*((1, client, "losses", [0.5]) for client in (9, 2, None, 10)))
    assert [each["who"] for each in found] == ["server", "client 2", "client 9", "client 10"]


def test_large_matrices_and_many_images_are_cut_down_and_say_so() -> None:
    [large] = logged((1, None, "m", [[1.0] * 200] * 200))
    assert (len(large["values"]), large["note"]) == (96, "averaged in blocks from 200 x 200")
    [images] = logged((1, None, "i", [[[0.5]]] * 60))
    assert images["note"] == "the first 48 of 60 images"


def test_the_matrix_of_models_by_domains(tmp_path) -> None:
    """Every number of the heat map is the ledger's of the last round; rows say whose model it is; one scale for every method."""
    changes = ["rounds=2", "method=local", "pretraining=1", "data.test=80"]
    run(Experiment.load("digit-styles", changes), tmp_path / "run", engine=Inline())
    shown = {each["title"]: each for each in logs_of(gather([tmp_path / "run"]))}
    matrix = shown["Every model on every domain: accuracy"]
    assert (matrix["columns"], matrix["rows"]) == (STYLES, [f"{client}: {style}" for client, style in enumerate(STYLES)])
    assert (matrix["low"], matrix["high"]) == (0, 100)
    assert "Every model on every domain: top-5 accuracy" in shown
    last = {
        (e["client"], e["domain"]): e["value"]
        for e in events(tmp_path / "run" / "ledger.jsonl")
        if e["event"] == "evaluation" and e["protocol"] == "domain" and e["metric"] == "accuracy" and e["round"] == 2
    }
    assert matrix["values"] == [[100 * last[client, style] for style in STYLES] for client in range(4)]


def test_without_foreign_domains_there_is_no_matrix(tmp_path) -> None:
    changes = ["rounds=1", "method=local", "data.test=80", 'evaluation.protocols=["intra"]']
    run(Experiment.load("digit-styles", changes), tmp_path / "run", engine=Inline())
    assert [each for each in logs_of(gather([tmp_path / "run"])) if "domain" in each["name"]] == []
