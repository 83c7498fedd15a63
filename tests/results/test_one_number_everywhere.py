"""One experiment, five views: `coterie run`, `compare`, `watch`, TensorBoard and the report show the same bytes and accuracies."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from coterie.cli import main as cli
from coterie.cli.sentences import console
from coterie.cli.watch import watch
from coterie.ledger import events
from coterie.results.comparison import contrast, read_arms
from coterie.results.gather import gather
from coterie.results.report.content import content
from coterie.results.sheets import comparison, wide
from coterie.results.tables import amount, as_markdown

METHODS = ("fedavg", "centralised")
TARGET = 0.15
WORDS = [
    "digits-two-class",
    "--set",
    "rounds=4",
    "--set",
    "engine.name=inline",
    "--set",
    f"evaluation.targets=[{TARGET}]",
    "--track",
    "tensorboard",
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    """Both methods through the command, each with what the method can be measured under."""
    here = tmp_path_factory.mktemp("views")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here)
        for method in METHODS:
            more = ["--set", 'evaluation.protocols=["global"]'] if method == "centralised" else []
            patch.setattr(sys, "argv", ["coterie", "run", *WORDS, "--set", f"method={method}", *more, "--out", method, "--quiet"])
            cli.main()
    return {method: here / method for method in METHODS}


def truth(folder: Path) -> dict[str, Any]:
    """By hand, from the lines of the ledger alone."""
    sent = dict.fromkeys(("up", "down", "setup_up", "setup_down"), 0)
    last: dict[str, float] = {}
    to_target: int | None = None
    for event in events(folder / "ledger.jsonl"):
        if event["event"] == "exchange":
            sent[event["direction"] if event["round"] else f"setup_{event['direction']}"] += event["payload_bytes"]
        elif event["event"] == "evaluation" and event["client"] is None and event["metric"] == "accuracy" and "domain" not in event:
            last[event["protocol"]] = event["value"]  # a final line comes after the curve's
            if event["protocol"] == "global" and event["value"] >= TARGET and to_target is None:
                to_target = sum(sent.values())
    return {"sent": sent, "last": last, "to target": to_target}


def in_summary(folder: Path) -> dict[str, Any]:
    summary = json.loads((folder / "summary.json").read_text())
    return {
        "sent": {way: summary["bytes"][way] for way in ("up", "down", "setup_up", "setup_down")},
        "last": {protocol: found["accuracy"]["last"] for protocol, found in summary["protocols"].items()},
        "to target": summary["targets"]["global"][str(TARGET)]["first_crossing"]["bytes"],
    }


def from_tensorboard(folder: Path) -> dict[str, Any]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder / "tensorboard"))
    accumulator.Reload()
    return {tag: accumulator.Scalars(tag)[-1].value for tag in accumulator.Tags()["scalars"]}


@pytest.mark.parametrize("method", METHODS)
def test_the_summary_of_a_run_is_the_ledgers(folders, method) -> None:
    assert in_summary(folders[method]) == truth(folders[method])


@pytest.mark.parametrize("method", METHODS)
def test_what_a_run_prints_is_its_summary(folders, method, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["coterie", "run", "--resume", str(folders[method]), "--quiet"])
    monkeypatch.setattr(console, "_width", 80)
    cli.main()
    printed, known = " ".join(capsys.readouterr().out.split()), truth(folders[method])
    assert spent(known) in printed
    assert f"({amount(known['to target'])})" in printed
    assert all(f"{protocol} {100 * value:.2f}%" in printed for protocol, value in known["last"].items())


def spent(known: dict[str, Any]) -> str:
    setup = known["sent"]["setup_up"] + known["sent"]["setup_down"]
    return f"sent up {amount(known['sent']['up'])}, down {amount(known['sent']['down'])}, setup {amount(setup)}"


def test_compare_shows_the_same(folders) -> None:
    found = contrast(read_arms(folders.items()))
    rows = {row["method"]: row for row in wide(found)}
    text = as_markdown(comparison("t", found))
    for method, folder in folders.items():
        known, row = truth(folder), rows[method]
        assert (row["bytes up"], row["bytes down"]) == (known["sent"]["up"], known["sent"]["down"])
        assert row["bytes setup"] == known["sent"]["setup_up"] + known["sent"]["setup_down"]
        assert row[f"bytes to global {TARGET}"] == known["to target"]
        assert {protocol: row[f"{protocol} mean"] for protocol in known["last"]} == known["last"]
        assert amount(known["to target"]) in text


@pytest.mark.parametrize("method", METHODS)
def test_watch_shows_the_same(folders, method) -> None:
    console = Console(file=io.StringIO(), width=100)
    view = watch(folders[method], console)
    assert isinstance(console.file, io.StringIO)
    known, text = truth(folders[method]), " ".join(console.file.getvalue().split())
    assert spent(known) in text
    for protocol, value in known["last"].items():
        assert f"{protocol} {100 * value:.2f}%" in text
        last = view.tally.last(protocol)
        assert last is not None
        assert last.value == value


@pytest.mark.parametrize("method", METHODS)
def test_tensorboard_received_the_same(folders, method) -> None:
    known, found = truth(folders[method]), from_tensorboard(folders[method])
    for way, size in known["sent"].items():
        assert found[f"bytes/{way}"] == pytest.approx(size, rel=1e-6)  # float32 on disk
    for protocol, value in known["last"].items():
        name = f"{protocol}/final_accuracy" if f"{protocol}/final_accuracy" in found else f"{protocol}/accuracy"
        assert found[name] == pytest.approx(value, rel=1e-6)


def test_the_report_shows_the_same(folders) -> None:
    page = content(gather(folders.values()))
    runs = {row["method"]: row for row in rows_of(page["runs"])}
    target = {row["method"]: row for row in rows_of(page["targets"]["global"]["15%"]["first_crossing"]["table"])}
    for method, folder in folders.items():
        known = truth(folder)
        assert [int(runs[method][name]) for name in ("sent up", "sent down")] == [known["sent"]["up"], known["sent"]["down"]]
        assert int(runs[method]["setup"]) == known["sent"]["setup_up"] + known["sent"]["setup_down"]
        assert int(target[method]["bytes"]) == known["to target"]
        for protocol, value in known["last"].items():
            scores = {row["method"]: row for row in rows_of(page["scores"][protocol]["accuracy"])}
            assert float(scores[method]["last"]) == value
            cards = " ".join(card["value"] for card in page["cards"][protocol])
            assert method == "centralised" or f"{100 * value:.2f}%" in cards


def rows_of(table: dict[str, Any]) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(table["csv"])))


def test_centralised_does_not_reach_its_target_for_nothing(folders) -> None:
    """What it takes to bring all data to one place once was 0 B in one view and 103.82 kB in another."""
    known = truth(folders["centralised"])
    assert known["to target"] == known["sent"]["setup_up"] > 0
    assert re.fullmatch(r"\d+\.\d\d kB", amount(known["to target"]))
