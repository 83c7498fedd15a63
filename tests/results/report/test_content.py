"""The page's data: the ledger's numbers, each once."""

from __future__ import annotations

import csv
import io
import json
import re
from statistics import mean, stdev

import numpy as np
import pytest
from tests.results.ledgers import CLIENTS, ROUNDS, accuracy, last_mean, of_client, write_run

from coterie.protocols import PROTOCOLS
from coterie.results.gather import gather
from coterie.results.report.content import content
from coterie.results.summary import summarise
from coterie.results.tally import Tally

SEEDS = (0, 1, 2)


@pytest.fixture(scope="module")
def page(comparison_folder) -> dict:
    return content(gather([comparison_folder]))


def rows(table: dict) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(table["csv"])))


def summaries(folder, method: str) -> list[dict]:
    return [summarise(Tally.read(folder / f"{method}-s{seed}" / "ledger.jsonl")) for seed in SEEDS]


def test_scores_are_those_of_the_summaries(page, comparison_folder) -> None:
    for row in rows(page["scores"]["local_post"]["accuracy"]):
        found = [each["protocols"]["local_post"]["accuracy"] for each in summaries(comparison_folder, row["method"])]
        for column, key in (("last", "last"), ("best", "best"), ("mean of last five", "mean_of_last_five"), ("worst", "worst")):
            assert float(row[column]) == pytest.approx(mean(each[key] for each in found))
            assert float(row[f"{column} sd"]) == pytest.approx(stdev(each[key] for each in found))
        assert row["clients"] == str(CLIENTS)


def test_a_protocol_has_one_mean_on_the_page(page) -> None:
    """Scores, cards, dots and boxes are all over the same clients: every one, as measured at the end."""
    for index, row in enumerate(rows(page["scores"]["local_post"]["accuracy"])):
        dots = [dot[0] for dot in page["clients"]["local_post"]["dots"][index]]
        assert len(dots) == CLIENTS * len(SEEDS)
        assert mean(dots) == pytest.approx(float(row["last"]), abs=1e-6)
        assert float(row["last"]) == pytest.approx(mean(last_mean(row["method"], seed) for seed in SEEDS))


def test_the_five_numbers_of_a_box_come_with_the_page(page) -> None:
    """The page draws what it is given; it has no rule of quartiles of its own."""
    values = [of_client("fedavg", seed, ROUNDS, client) for seed in SEEDS for client in range(CLIENTS)]
    expected = np.quantile(values, [0, 0.25, 0.5, 0.75, 1])
    assert list(page["clients"]["local_post"]["boxes"][0].values()) == pytest.approx(list(expected))
    quartiles = rows(page["clients"]["local_post"]["summary"])[0]
    assert float(quartiles["first quartile"]) == pytest.approx(expected[1])


def test_curves_are_means_and_extremes_over_seeds(page) -> None:
    curve, axis = page["curves"]["global"]["accuracy"][1], page["axes"][1]
    found = [[accuracy("fedprox", seed, round) for seed in SEEDS] for round in range(1, ROUNDS + 1)]
    assert curve["mean"] == pytest.approx([mean(values) for values in found], abs=1e-6)
    assert curve["low"] == pytest.approx([min(values) for values in found], abs=1e-6)
    assert curve["high"] == pytest.approx([max(values) for values in found], abs=1e-6)
    assert axis["bytes"] == [5000 + 48_000 * round for round in axis["rounds"]]
    assert axis["seconds"] == pytest.approx([0.5 * round for round in axis["rounds"]])
    assert page["curves"]["global"]["accuracy"][2] is None


def test_the_worst_client_has_a_curve_beside_the_mean(page) -> None:
    assert page["protocols"]["local_post"]["metrics"] == ["accuracy", "worst", "worst_tenth", "spread", "loss"]
    worst = page["curves"]["local_post"]["worst"][0]["mean"]
    assert worst[-1] == pytest.approx(mean(of_client("fedavg", seed, ROUNDS, 5) for seed in SEEDS), abs=1e-6)
    assert page["protocols"]["global"]["metrics"] == ["accuracy", "loss"]


def test_every_protocol_has_its_sentence_and_its_clients(page) -> None:
    found = {row["protocol"]: row for row in rows(page["measures"])}
    assert found["local_post"]["what is measured"] == PROTOCOLS["local_post"].what
    assert (found["local_post"]["over"], found["global"]["over"]) == ("6 clients", "at the server")
    assert (found["local_post"]["methods"], found["global"]["methods"]) == ("all", "fedavg, fedprox")


def test_paired_differences_against_any_method(page) -> None:
    against_fedavg, against_fedprox, _ = (rows(table) for table in page["differences"]["local_post"])
    assert [row["method"] for row in against_fedavg] == ["fedprox", "local"]
    gap = mean(last_mean("fedprox", seed) - last_mean("fedavg", seed) for seed in SEEDS)
    assert float(against_fedavg[0]["difference"]) == pytest.approx(gap)
    assert float(against_fedprox[0]["difference"]) == pytest.approx(-gap)
    assert (against_fedavg[0]["verdict"], against_fedprox[0]["verdict"]) == ("higher", "lower")
    assert page["differences"]["global"][2] is None


def test_targets_are_those_of_the_summaries(page, comparison_folder) -> None:
    for target, name in (("0.5", "50%"), ("0.85", "85%")):
        for rule in ("first_crossing", "running_mean"):
            found = page["targets"]["global"][name][rule]
            for index, method in enumerate(("fedavg", "fedprox")):
                crossed = [each["targets"]["global"][target][rule] for each in summaries(comparison_folder, method)]
                reached = [each for each in crossed if each is not None]
                assert found["reached"][index] == [len(reached), 3]
                for what, key in (("rounds", "round"), ("bytes", "bytes")):
                    assert found["bars"][index][what] == (mean(each[key] for each in reached) if reached else None)
            assert found["bars"][2] is None


def test_bytes_by_kind_and_worst_clients(page) -> None:
    found = {(row["method"], row["content"], row["direction"]): int(row["payload bytes"]) for row in rows(page["traffic"]["table"])}
    assert found["fedavg", "weights", "up"] == 4000 * 6 * ROUNDS
    assert found["local", "setup", "down"] == 5000
    assert 0 not in found.values()
    worst = rows(page["clients"]["local_post"]["worst"])[0]
    assert (worst["method"], worst["seed"], worst["client"]) == ("fedavg", "0", "5")
    assert float(worst["accuracy"]) == of_client("fedavg", 0, ROUNDS, 5)
    assert worst["holds"] == "15 samples of classes 1, 2"
    assert {row["in round"] for row in rows(page["clients"]["local_post"]["worst"])} == {str(ROUNDS)}


def test_local_work_and_the_training_loss(page) -> None:
    assert page["work"]["parts"] == ["pretraining", "training in rounds", "only to be measured"]
    assert page["work"]["bars"] == [[50, 50, 50], [720, 720, 720], [240, 240, 0]]
    assert page["work"]["losses"][0]["mean"][-1] == pytest.approx(2 * 0.8**ROUNDS + 0.01)


def test_classes_and_what_was_taken_for_what(page) -> None:
    found = page["classes"]["global"]
    assert found["accuracy"][0][0] == pytest.approx(mean(accuracy("fedavg", seed, ROUNDS) for seed in SEEDS))
    assert found["accuracy"][0][2] is None
    assert found["confusion"][0][1] == pytest.approx([1 / 11, 8 / 11, 1 / 11, 1 / 11])
    assert found["confusion"][2] is None


def test_domains_have_a_table(tmp_path) -> None:
    folder = write_run(tmp_path / "run", "fedavg", 0)
    line = '{"event":"evaluation","round":12,"protocol":"local_post","client":null,"metric":"accuracy","value":%s,"domain":"%s"}\n'
    with (folder / "ledger.jsonl").open("a") as file:
        file.write(line % (0.75, "plain") + line % (0.25, "noisy"))
    page = content(gather([tmp_path]))
    assert rows(page["domains"]["local_post"]) == [{"method": "fedavg", "plain": "0.75", "plain sd": "", "noisy": "0.25", "noisy sd": ""}]
    assert float(rows(page["scores"]["local_post"]["accuracy"])[0]["last"]) == pytest.approx(last_mean("fedavg", 0))


def test_what_else_is_on_the_page(page) -> None:
    assert page["cards"]["global"][0]["value"] == "fedprox"
    assert "ahead of fedavg over 3 common seeds; 95% interval" in page["cards"]["global"][0]["detail"]
    assert page["subtitle"] == "3 methods · 3 seeds · 12 rounds · 6 clients, 3 per round · digits · partition classes"
    assert page["facts"] == "model mlp · sgd, learning rate 0.05 · 2 local epochs per round · batches of 10"
    assert page["rejected"]["counts"] == [0, 6, 0]
    assert len(page["partitions"]) == 3
    assert page["new_clients"]["curves"][0]["mean"] == pytest.approx([0.2, 0.6, 0.71])
    assert {each["draw"] for each in page["logs"]} == {"lines", "heatmap", "images"}
    assert page["seconds"]["places"] == ["waiting for clients", "evaluation", "server and ledger"]
    assert [bar[0] for bar in page["seconds"]["bars"]] == pytest.approx([3.6, 1.2, 1.2])
    assert page["seconds"]["table"]["rows"][0][1] == "6.0 ± 0.0 s"


def test_values_that_are_no_numbers_are_gaps(tmp_path) -> None:
    write_run(tmp_path / "run", "fedavg", 0)
    path = tmp_path / "run" / "ledger.jsonl"
    path.write_text(re.sub(r'("loss","value":)[^},]+', r"\1NaN", path.read_text()))
    page = content(gather([tmp_path]))
    assert page["curves"]["global"]["loss"][0]["mean"] == [None] * ROUNDS
    assert json.dumps(page, allow_nan=False)


def test_a_ledger_without_what_is_new_has_a_page(tmp_path) -> None:
    """Runs from before fixed sets, local work and classes: their pages lack those parts and nothing else."""
    write_run(tmp_path / "run", "fedavg", 0)
    path = tmp_path / "run" / "ledger.jsonl"
    kept = [json.loads(line) for line in path.read_text().splitlines()]
    kept = [event for event in kept if event["event"] not in ("training", "classes", "log") and not event.get("final")]
    dropped = ("clients", "worst", "worst_tenth", "spread")
    old = [{k: v for k, v in e.items() if k not in dropped} if e["event"] == "evaluation" else e for e in kept]
    path.write_text("".join(json.dumps(event, separators=(",", ":")) + "\n" for event in old))
    page = content(gather([tmp_path]))
    assert (page["work"], page["classes"], page["logs"]) == (None, {}, [])
    assert rows(page["scores"]["local_post"]["accuracy"])[0]["clients"] == "6"
