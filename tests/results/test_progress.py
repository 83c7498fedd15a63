"""Progress in one line."""

from __future__ import annotations

import io
import json

from tests.results.ledgers import ROUNDS, write_run

from coterie.results.progress import Progress


def test_a_run_is_one_line_that_is_written_over(tmp_path) -> None:
    folder, said = write_run(tmp_path / "run", "fedavg", 0), io.StringIO()
    shown = Progress(said)
    for line in (folder / "ledger.jsonl").read_text().splitlines():
        shown(json.loads(line))
    text = said.getvalue()
    assert text.count("\n") == 1
    assert text.count("\r") == ROUNDS + 1
    assert f"round {ROUNDS}/{ROUNDS}, global " in text
    assert "left" not in text.split("\r")[-1]


def test_every_run_of_a_comparison_leaves_a_line_of_its_own(tmp_path) -> None:
    said = io.StringIO()
    shown = Progress(said)
    ledgers = [(write_run(tmp_path / str(seed), "fedavg", seed) / "ledger.jsonl").read_text().splitlines() for seed in (0, 1)]
    for lines in zip(*ledgers, strict=True):  # at once
        for seed, line in enumerate(lines):
            shown({**json.loads(line), "run": f"fedavg seed {seed}"})
    kept = [line.rpartition("\r")[2] for line in said.getvalue().split("\n")[:-1]]
    assert [line.partition(", ")[0] for line in kept] == [f"fedavg seed {seed}: round {ROUNDS}/{ROUNDS}" for seed in (0, 1)]
