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
    assert text.count("\r") == ROUNDS
    assert f"round {ROUNDS}/{ROUNDS}, global " in text
    assert "left" not in text.split("\r")[-1]
