"""The command line as a user meets it: exit codes, sentences, JSON, plain lines without a terminal."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from coterie.cli import main as cli


def coterie(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["coterie", *words])
    monkeypatch.setattr(cli, "console", cli.Console(width=160))
    code = 0
    try:
        cli.main()
    except SystemExit as stop:
        code = int(stop.code or 0)
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture
def call(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    return lambda *words: coterie(capsys, monkeypatch, *words)


FAST = ("--set", "rounds=2", "--set", "engine.name=inline")


def test_run_writes_shows_and_resumes(call, tmp_path) -> None:
    code, out, _ = call("run", "digits-two-class", *FAST)
    assert code == 0
    assert "round 2/2" in out
    assert "written to runs/digits-two-class-fedavg-s0" in out
    folder = tmp_path / "runs" / "digits-two-class-fedavg-s0"
    summary = json.loads((folder / "summary.json").read_text())
    code, out, _ = call("run", "--resume", str(folder), "--json")
    assert code == 0
    assert json.loads(out) == {"folder": str(folder), **summary}
    assert f"{100 * summary['protocols']['global']['accuracy']['last']:.2f}%" in call("run", "--resume", str(folder))[1]


def test_json_is_json_and_quiet_is_quiet(call, tmp_path) -> None:
    code, out, err = call("run", "digits-two-class", *FAST, "--json")
    assert code == 0
    assert json.loads(out)["rounds"] == 2
    assert err == ""
    _, out, _ = call("run", "digits-two-class", *FAST, "--quiet", "--out", "here")
    assert "round 1/2" not in out
    assert (tmp_path / "here" / "ledger.jsonl").exists()


def test_compare_runs_what_is_missing_and_reuses_the_rest(call) -> None:
    words = ("compare", "digits-two-class", *FAST, "--seeds", "0,1")
    code, out, _ = call(*words, "--methods", "local,fedavg")
    assert code == 0
    assert out.count("round 2/2") == 4
    code, out, _ = call(*words, "--methods", "local,fedavg,centralised", "--json")
    rows = json.loads(out)["runs"]
    assert [(row["method"], row["seed"]) for row in rows] == [(m, s) for m in ("local", "fedavg", "centralised") for s in (0, 1)]
    _, out, _ = call(*words, "--methods", "local,fedavg,centralised")
    assert "round 1/2" not in out
    assert "±" in out


@pytest.mark.parametrize("kind", ["methods", "models", "datasets", "partitions", "selections", "experiments"])
def test_list(call, kind) -> None:
    code, out, _ = call("list", kind, "--json")
    assert code == 0
    rows = json.loads(out)
    assert all(row["name"] and row["what"] for row in rows)
    _, table, _ = call("list", kind)
    assert all(row["name"] in table for row in rows)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("run", "digits-two-clas"), "did you mean 'digits-two-class'"),
        (("run", "digits-two-class", "--set", "method.muu=1"), "method.muu = 1: no such key here"),
        (("run", "digits-two-class", "--set", "cohort=0"), "cohort"),
        (("run", "digits-two-class", "--set", "training.optimiser.lr=-1"), "training.optimiser.lr = -1"),
        (("run", "digits-two-class", "--sett", "x=1"), "No such option: --sett"),
        (("run",), "either an experiment or --resume"),
        (("run", "--resume", "nowhere"), "there is no ledger in nowhere"),
        (("run", "--resume", "nowhere", "--set", "rounds=3"), "--set and --out do not go with it"),
        (("compare", "digits-two-class", "--methods", "fedavg,fedprx"), "did you mean 'fedprox'"),
        (("compare", "digits-two-class", "--methods", ","), "--methods is empty"),
        (("compare", "digits-two-class", "--methods", "fedavg", "--seeds", "one"), "--seeds = 'one'"),
        (("list", "method"), "method"),
    ],
)
def test_mistakes_exit_2_with_a_sentence_and_write_nothing(call, tmp_path, words, sentence) -> None:
    code, out, err = call(*words)
    assert code == 2
    assert sentence in err
    assert "Traceback" not in out + err
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_fails_exits_1(call, tmp_path) -> None:
    words = ("run", "digits-two-class", *FAST, "--set", "training.optimiser.lr=1e30", "--set", "admission.quorum=1.0")
    code, _, err = call(*words)
    assert code == 1
    assert "replies admitted" in err
    assert "Traceback" not in err


def test_help_comes_without_torch() -> None:
    code = "import sys, coterie.cli; assert not {'torch', 'sklearn', 'matplotlib'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
