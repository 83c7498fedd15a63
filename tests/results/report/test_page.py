"""One file that is complete and safe, and the command that writes it."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from importlib import resources

from tests.results.ledgers import write_run

from coterie.cli import main as cli
from coterie.cli.sentences import console
from coterie.results.gather import gather
from coterie.results.report import render

SHA256 = "79542150855a52c567260e3137095dbe2b744e6d702a5cabe67da246942fba7a"


def test_the_file_is_complete_and_safe(comparison_folder) -> None:
    text = render(gather([comparison_folder]))
    assert len(text.encode()) < 6e6
    assert not re.search(r"<(script|link|img|iframe)[^>]+(src|href)=[\"'](?!data:|#)", text)
    assert "<script>alert" not in text
    assert "{{" not in text.partition('id="data">')[0] + text.rpartition("</script>")[2]
    data = text.partition('<script type="application/json" id="data">')[2].partition("</script>")[0]
    assert json.loads(data)["title"] == "toy"


def test_a_run_that_measured_nothing_still_has_a_page(tmp_path) -> None:
    write_run(tmp_path / "run", "fedavg", 0)
    path = tmp_path / "run" / "ledger.jsonl"
    path.write_text("".join(line for line in path.read_text().splitlines(keepends=True) if '"event":"evaluation"' not in line))
    assert "nothing was measured under 'global', which was asked for" in render(gather([tmp_path]))


def test_the_plotting_library_is_as_published() -> None:
    data = resources.files("coterie.results.report").joinpath("plotly.min.js").read_bytes()
    assert hashlib.sha256(data).hexdigest() == SHA256
    assert "MIT" in resources.files("coterie.results.report").joinpath("plotly.LICENSE").read_text()


def test_the_command(comparison_folder, tmp_path, monkeypatch, capsys) -> None:
    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["coterie", "report", *words])
        monkeypatch.setattr(console, "_width", 200)
        code = 0
        try:
            cli.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        return code, *capsys.readouterr()

    code, out, _ = call(str(comparison_folder / "fedavg-s0"), "--out", str(tmp_path / "page.html"))
    assert code == 0
    assert f"written to {tmp_path / 'page.html'}" in out
    monkeypatch.setattr("coterie.results.report.write_figures", lambda found, folder: [folder / "one.pdf"])
    words = (str(comparison_folder / "fedavg-s0"), "--out", str(tmp_path / "page.html"), "--figures", "here")
    assert "1 figures written to" in call(*words)[1]
    (tmp_path / "nothing").mkdir()
    code, _, err = call(str(tmp_path / "nothing"))
    assert code == 2
    assert "is empty: expected a run" in err
    code, _, err = call(str(comparison_folder), "--out", str(tmp_path))
    assert code == 2
    assert "is a folder" in err
