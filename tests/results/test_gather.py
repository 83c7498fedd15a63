"""Which runs belong together, and a sentence for each that does not."""

from __future__ import annotations

import pytest
from tests.results.ledgers import write_run

from coterie.errors import UserError
from coterie.results.gather import gather


def test_a_comparison_is_found_below_its_folder(comparison_folder) -> None:
    found = gather([comparison_folder])
    assert [(arm.label, [run.tally.seed for run in arm.runs]) for arm in found.arms] == [
        ("fedavg", [0, 1, 2]),
        ("fedprox", [0, 1, 2]),
        ("local", [0, 1, 2]),
    ]
    assert found.name == "toy"
    assert found.notices == []
    assert len(gather([comparison_folder / "fedavg-s0", comparison_folder]).runs) == 9


def test_arms_are_named_by_what_differs(tmp_path) -> None:
    write_run(tmp_path / "a", "fedprox", 0)
    write_run(tmp_path / "b", "fedprox", 0, method={"name": "fedprox", "mu": 1.0})
    write_run(tmp_path / "c", "fedavg", 0)
    assert [arm.label for arm in gather([tmp_path]).arms] == ["fedprox mu=0.1", "fedprox mu=1.0", "fedavg"]
    write_run(tmp_path / "d", "fedavg", 0, cohort=2)
    assert [arm.label for arm in gather([tmp_path / "c", tmp_path / "d"]).arms] == ["fedavg cohort=0.5", "fedavg cohort=2"]


def test_the_same_seed_does_not_count_twice(tmp_path) -> None:
    for name in "ab":
        write_run(tmp_path / name, "fedavg", 0)
    found = gather([tmp_path])
    assert len(found.runs) == 1
    assert "the same seed 0" in found.notices[0]


def test_what_is_no_run_is_a_sentence(tmp_path) -> None:
    with pytest.raises(UserError, match="is empty: expected a run"):
        gather([tmp_path])
    with pytest.raises(UserError, match="there is no folder"):
        gather([tmp_path / "nowhere"])
    (tmp_path / "photo.txt").write_text("something else")
    with pytest.raises(UserError, match="holds something else"):
        gather([tmp_path])
    with pytest.raises(UserError, match="is not a run"):
        gather([tmp_path / "photo.txt"])


def test_different_experiments_are_refused_in_a_sentence(tmp_path) -> None:
    write_run(tmp_path / "a", "fedavg", 0)
    write_run(tmp_path / "b", "fedavg", 0, data={"source": [{"name": "mnist"}]})
    with pytest.raises(UserError, match=r"different experiments: data.source is .*digits.* in .* and .*mnist"):
        gather([tmp_path])
    write_run(tmp_path / "c", "fedavg", 0, partition={"name": "iid", "clients": 6})
    with pytest.raises(UserError, match=r'partition.name is "classes" in .* and "iid"'):
        gather([tmp_path / "a", tmp_path / "c"])


def test_a_grid_over_the_partition_is_told(tmp_path) -> None:
    write_run(tmp_path / "a", "fedavg", 0)
    write_run(tmp_path / "b", "fedavg", 0, partition={"name": "classes", "clients": 60})
    found = gather([tmp_path])
    assert [arm.label for arm in found.arms] == ["fedavg partition.clients=6", "fedavg partition.clients=60"]
    assert found.notices == ["The runs differ in partition.clients: their accuracies are of different problems."]


def test_a_run_whose_code_was_changed_says_so(tmp_path) -> None:
    write_run(tmp_path / "a", "fedavg", 0)
    path = tmp_path / "a" / "ledger.jsonl"
    path.write_text(path.read_text() + '{"event":"resume","round":4,"dropped_bytes":0,"versions":{},"changed_code":true}\n')
    assert gather([tmp_path]).notices == ["a: its code was changed when it went on after round 4."]


def test_what_makes_arms_less_comparable_than_they_look_is_told(tmp_path) -> None:
    write_run(tmp_path / "fedavg", "fedavg", 0)
    write_run(tmp_path / "fedprox", "fedprox", 0)
    path = tmp_path / "fedprox" / "ledger.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    dropped = ('{"event":"training","round":0', '"protocol":"local_post","client"')
    path.write_text("".join(line for line in lines if not any(words in line for words in dropped)))
    assert gather([tmp_path]).notices == [
        "Local work differs: fedprox 720 steps, fedavg 770; a difference may come from more training and not from the method.",
        "fedprox: nothing was measured under 'local_post', which was asked for.",
    ]
