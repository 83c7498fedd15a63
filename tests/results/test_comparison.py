"""Arms side by side: paired differences, what targets took, and what makes arms less comparable than they look."""

from __future__ import annotations

import pytest
from tests.results.arms import ARMS, arm, stop
from tests.results.ledgers import CLIENTS, last_mean, write_run

from coterie.errors import RunError, UserError
from coterie.results.comparison import contrast, measured, over_clients, read_arms, unequal_work
from coterie.results.sheets import comparison


def test_runs_of_one_label_are_seeds_of_one_arm(comparison_folder) -> None:
    arms = read_arms((folder.name.split("-")[0], folder) for folder in sorted(comparison_folder.iterdir()))
    assert [(each.label, [run.tally.seed for run in each.runs]) for each in arms] == [
        (label, [0, 1, 2]) for label in ("fedavg", "fedprox", "local")
    ]
    assert measured(arms) == ["local_post", "global"]


def test_differences_are_paired_and_noise_is_not_sold_as_a_win() -> None:
    better, noise = (gap.difference for gap in contrast(ARMS).gaps)
    assert (better.mean, better.low, better.high) == pytest.approx((0.0233333, 0.0089911, 0.0376755), abs=1e-6)
    assert better.shown
    assert noise.mean == pytest.approx(-0.25 / 3)


def test_what_targets_took_against_a_baseline() -> None:
    reaches = {reach.label: reach for reach in contrast(ARMS).reaches}
    better, noise = reaches["better"], reaches["noise"]
    assert (better.took("round").mean, better.took("bytes").mean) == (5, 550)
    assert better.fewer_rounds == pytest.approx(11 / 5)
    assert better.fewer_bytes == pytest.approx(1100 / 550)
    assert (len(noise.there), len(noise.found), noise.everywhere, noise.fewer_rounds) == (1, 3, False, None)
    swapped = {reach.label: reach.fewer_rounds for reach in contrast(ARMS, "better").reaches}
    assert swapped == {"fedavg": pytest.approx(5 / 11), "better": 1.0, "noise": None}
    with pytest.raises(UserError, match="did you mean 'better'"):
        contrast(ARMS, "beter")


def test_unequal_local_work_is_told_and_bounds_do_not_count() -> None:
    arms = [arm("local", (0.5,), steps=2400), arm("fedmd", (0.6,), steps=8400), arm("fccl", (0.6,), steps=8440)]
    bound = arm("centralised", (0.9,), steps=100, method="centralised")
    assert unequal_work(arms[1:]) == []  # within a per cent
    [sentence] = contrast([*arms, bound]).warnings
    assert sentence.startswith("local work differs: local 2,400 steps, others 8,400;")


def test_means_over_different_clients_are_told_and_not_subtracted() -> None:
    arms = [arm("fedavg", (0.9, 0.9, 0.9), clients=5), arm("local", (0.8, 0.8, 0.8), clients=10)]
    found = contrast(arms)
    assert found.warnings == ["means under local_post are not over the same clients (fedavg 5, local 10): they do not compare"]
    assert {gap.protocol for gap in found.gaps} == {"global"}


def test_what_runs_stopped_at_is_not_subtracted_but_when_they_did_is_told() -> None:
    """Whoever stops as soon as it is good enough ends with what it was told to reach, in whichever round."""
    base, quick = (stop(each, 0.5, of=20) for each in (arm("fedavg", (0.4, 0.45, 0.4), steps=9), arm("scaffold", (0.5,) * 3, steps=3)))
    found = contrast([base, quick])
    assert found.gaps  # in its last round, as all others
    assert any("local work differs" in warning for warning in found.warnings)
    stop(quick, 0.5, of=30)
    for arms in ([base, quick], [quick, base]):
        found = contrast(arms)
        assert found.gaps == []
        [warning] = found.warnings  # and not that its work is less
        assert warning.startswith("runs stopped at evaluation.stop_at (scaffold in round 20): ")
        assert [(reach.label, reach.target, len(reach.there)) for reach in found.reaches if reach.there] == [("scaffold", 0.5, 3)]
        [accuracies, *_] = comparison("runs", found)
        assert "bold" not in accuracies.note
        assert not any(cell.best for row in accuracies.rows for cell in row[1:])


def test_fairness_is_over_seeds_and_of_all_clients(comparison_folder) -> None:
    [fedavg] = read_arms(("fedavg", comparison_folder / f"fedavg-s{seed}") for seed in (0, 1, 2))
    over = over_clients(fedavg, "local_post")
    assert over.clients == (CLIENTS, CLIENTS)
    assert over.worst.mean < sum(last_mean("fedavg", seed) for seed in (0, 1, 2)) / 3
    assert over_clients(fedavg, "global") is None


def test_a_protocol_that_an_arm_never_measured_is_an_error_that_names_the_arm(tmp_path) -> None:
    write_run(tmp_path / "a", "fedavg", 0)
    path = tmp_path / "a" / "ledger.jsonl"
    path.write_text("".join(line for line in path.read_text().splitlines(keepends=True) if '"local_post","client"' not in line))
    with pytest.raises(RunError, match="mine seed 0: nothing was measured under 'local_post'"):
        contrast(read_arms([("mine", tmp_path / "a")]))


def test_arms_without_a_protocol_in_common_are_named() -> None:
    """A mean on all classes beside a mean on each client's own looks like a difference, and is none."""
    base, other = arm("fedavg", (0.9, 0.9, 0.9)), arm("local", (0.8, 0.8, 0.8))
    for each in other.runs:
        each.tally.means["local_post"] = each.tally.means.pop("global")
    assert contrast([base, base]).warnings == []
    [warning] = contrast([base, other]).warnings
    assert warning.startswith("local and fedavg were measured under no protocol in common and cannot be compared")
