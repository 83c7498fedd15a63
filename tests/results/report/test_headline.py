"""The largest words on the page claim no more than the smallest can show."""

from __future__ import annotations

import pytest
from tests.results.arms import arm, stop
from tests.results.ledgers import write_run

from coterie.results.gather import Report, gather
from coterie.results.report.headline import cards, ranked
from coterie.results.report.scores import scores


def headline(*arms) -> dict[str, str]:
    return cards(Report("toy", list(arms)), "global")[0]


def test_a_lead_that_its_interval_does_not_show_is_no_win() -> None:
    found = headline(arm("fedavg", (0.87, 0.88, 0.89)), arm("fedmmd", (0.90, 0.87, 0.885)))
    assert found["value"] == "no clear winner"
    assert found["detail"].startswith("fedmmd is 0.50 points ahead of fedavg over 3 common seeds, but the 95% interval ")
    assert found["detail"].endswith(" includes 0")


@pytest.mark.parametrize(
    ("seeds", "words"),
    [
        (2, "fedmmd is 50.00 points ahead of fedavg over 2 common seeds: too few seeds"),
        (1, "fedavg over 1 common seed: one seed: no interval"),
    ],
)
def test_too_few_seeds_have_no_winner(seeds, words) -> None:
    found = headline(arm("fedavg", (0.4,) * seeds), arm("fedmmd", (0.9,) * seeds))
    assert found["value"] == "no clear winner"
    assert found["detail"].endswith(words)


def test_a_winner_is_ahead_of_everybody() -> None:
    rivals = [arm("fedavg", (0.87, 0.88, 0.89)), arm("fedmmd", (0.90, 0.91, 0.921))]
    assert headline(*rivals)["value"] == "fedmmd"
    assert "3.03 points ahead of fedavg over 3 common seeds; 95% interval +2.89 to +3.18" in f"{headline(*rivals)['detail']}"
    third = arm("wild", (0.91, 0.80, 0.92))
    assert headline(*rivals, third)["value"] == "no clear winner"
    assert headline(*rivals, third)["detail"].endswith("; it is not told apart from wild")


def test_the_runner_up_is_the_second_of_the_table() -> None:
    found = headline(arm("fedavg", (0.75, 0.90, 0.83)), arm("fedfusion", (0.84, 0.83, 0.855)), arm("scaffold", (0.93, 0.92, 0.95)))
    assert found["value"] == "no clear winner"
    assert found["detail"].startswith("scaffold is 9.17 points ahead of fedfusion over 3 common seeds; 95% interval ")
    assert found["detail"].endswith("; it is not told apart from fedavg")


def test_who_stopped_as_soon_as_it_was_told_to_has_not_won() -> None:
    arms = [stop(arm("fedavg", (0.5, 0.51, 0.5)), 0.5, of=30), arm("local", (0.3, 0.31, 0.3))]
    found, score, *_ = cards(Report("toy", arms), "global")
    assert (found["value"], found["detail"]) == ("no clear winner", "runs stopped at evaluation.stop_at")
    assert score["title"] == "Accuracy"
    for rivals, marked in ((arms, []), ([arm("fedavg", (0.5, 0.5)), arms[1]], ["50.00% ± 0.00"])):
        rows = scores(Report("toy", rivals), "global", "accuracy")["rows"]
        assert [cell[0] for row in rows for cell in row if isinstance(cell, list)] == marked


def test_a_bound_neither_wins_nor_loses() -> None:
    found = headline(arm("fedavg", (0.80, 0.81, 0.80)), arm("local", (0.5, 0.5, 0.51)), arm("all", (0.97,) * 3, method="centralised"))
    assert found["value"] == "fedavg"
    assert found["detail"].endswith("; all, with all data in one place, has 97.00%")


def test_one_method_is_not_the_best_of_one(tmp_path) -> None:
    write_run(tmp_path / "run", "fedavg", 0)
    titles = [card["title"] for card in cards(gather([tmp_path]), "local_post")]
    assert titles == ["Accuracy", "Rounds to 85%", "Bytes to 85%"]
    [accuracy, *_] = cards(gather([tmp_path]), "local_post")
    assert accuracy["detail"] == "fedavg, after 12 rounds, one seed, mean over 6 clients, the worst 84.59%"


def test_the_rank_of_a_loss_is_the_other_way_round(comparison_folder) -> None:
    report = gather([comparison_folder])
    assert [found.label for found, _ in ranked(report.arms, "global", "accuracy")] == ["fedprox", "fedavg"]
    assert [found.label for found, _ in ranked(report.arms, "global", "loss")] == ["fedprox", "fedavg"]


def test_a_target_that_nobody_reached_is_told() -> None:
    found = cards(Report("toy", [arm("a", (0.5, 0.6)), arm("b", (0.4, 0.4))]), "global")
    assert found[2]["detail"] == "no method reached 90% with every seed"
    assert found[3]["value"] == "2.00 kB"
