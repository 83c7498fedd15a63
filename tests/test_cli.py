"""The command line as a user meets it: exit codes, sentences, JSON, plain lines without a terminal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from coterie.cli import main as cli
from coterie.cli.sentences import console


def coterie(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["coterie", *words])
    monkeypatch.setattr(console, "_width", 160)
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


def test_compare_reuses_what_run_did_says_so_and_writes_its_table(call, tmp_path) -> None:
    call("run", "digits-two-class", *FAST, "--set", "seed=1")
    code, out, _ = call("compare", "digits-two-class", *FAST, "--methods", "fedavg,local", "--seeds", "0-1")
    assert code == 0
    assert out.count("round 2/2") == 3
    assert "written to runs/digits-two-class; 1 of 4 runs reused" in out
    folder = tmp_path / "runs" / "digits-two-class"
    assert len(json.loads((folder / "table.json").read_text())["runs"]) == 4
    assert (folder / "table.csv").read_text().startswith("method,")
    assert "| fedavg |" in (folder / "table.md").read_text()
    again, other = (
        call("compare", "digits-two-class", *FAST, "--methods", names, "--seeds", "0-1")[1] for names in ("fedavg,local", "fedavg")
    )
    assert "4 of 4 runs reused" in again
    assert ["no longer of the one before" in each for each in (again, other)] == [False, True]


def test_what_help_says_about_set_works_and_says_whom_it_reaches(call) -> None:
    words = ("compare", "digits-two-class", *FAST, "--methods", "fedavg,fedprox,fedprox(mu=0.5)", "--set", "method.mu=0.01", "--json")
    code, out, err = call(*words)
    assert code == 0
    assert "note: method.mu = 0.01 is for fedprox; fedavg has no such key" in err
    assert [row["method"] for row in json.loads(out)["runs"]] == ["fedavg", "fedprox mu=0.01", "fedprox mu=0.5"]


def test_an_arm_that_fails_leaves_a_table_and_exit_code_1(call, tmp_path) -> None:
    words = (
        "--set",
        "admission.quorum=1.0",
        "--grid",
        "training.optimiser.lr=1e30,0.1",
        "--methods",
        "fedavg",
        "--baseline",
        "fedavg lr=1e+30",
    )
    code, out, err = call("compare", "digits-two-class", *FAST, *words)
    assert code == 1
    assert "fedavg lr=0.1" in out
    assert "1 of 2 runs failed (the same command tries them again): fedavg lr=1e+30 seed 0: " in err
    assert "lr=0.1" in (tmp_path / "runs" / "digits-two-class" / "table.md").read_text()


def test_an_arm_that_cannot_work_is_named_before_any_starts(call, tmp_path) -> None:
    code, out, err = call("compare", "digits-two-class", *FAST, "--methods", "fedavg,fedfusion,local", "--seeds", "0,1,2")
    assert (code, out) == (2, "")
    assert "fedfusion seed 0: " in err
    assert list(tmp_path.iterdir()) == []


def test_run_with_another_method_leaves_out_protocols_that_it_does_not_offer(call, tmp_path) -> None:
    code, _, err = call("run", "digits-two-class", *FAST, "--set", "method=local", "--out", "here")
    assert code == 0
    assert "note: not evaluated under 'global': method 'local' does not offer it" in err
    assert list(json.loads((tmp_path / "here" / "summary.json").read_text())["protocols"]) == ["local_post"]
    asked = ("--set", "method=local", "--set", 'evaluation.protocols=["global"]')
    assert "does not offer it" in call("run", "digits-two-class", *FAST, *asked)[2]


def test_resume_with_changed_code_must_be_said(call, tmp_path, monkeypatch) -> None:
    from coterie.engines import Inline
    from coterie.errors import Interrupted
    from coterie.running.experiment import Experiment
    from coterie.running.rounds import run

    def stop(event: dict) -> None:
        if event["event"] == "round":
            raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        run(Experiment.load("digits-two-class", ["rounds=2", "engine.name=inline"]), tmp_path / "run", engine=Inline(), callbacks=[stop])
    monkeypatch.setattr("coterie.running.provenance._own_code", lambda: "another")
    code, _, err = call("run", "--resume", "run")
    assert (code, "the code changed since the run in run was begun (coterie)" in err) == (2, True)
    assert call("run", "--resume", "run", "--changed-code")[0] == 0
    assert "note: run: its code was changed when it went on after round 0." in call("report", "run")[1]


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
        (("run", "digits-two-class", "--set", "model=[mlp, cnn]"), 'expected strings in quotes, as in model=["mlp", "cnn"]'),
        (("run", "digits-two-class", "--set", "model=[mlp"), "not TOML, expected a table or a list, closed"),
        (("run", "digits-two-class", "--set", "method={name=fedprox, mu=0.1}"), 'as in method={name="fedprox", mu=0.1}'),
        (("run", "digits-two-class", "--set", "training.optimiser.lr=-1"), "training.optimiser.lr = -1"),
        (("run", "digits-two-class", "--sett", "x=1"), "No such option: --sett"),
        (("run", "digits-two-class", "--method", "fedavg"), "One run is --set method=fedprox"),
        (("run", "digits-two-class", "--seeds", "0-2"), "several are: coterie compare EXPERIMENT --methods"),
        (("run",), "either an experiment or --resume"),
        (("run", "--resume", "nowhere"), "there is no ledger in nowhere"),
        (("run", "--resume", "nowhere", "--set", "rounds=3"), "--set and --out do not go with it"),
        (("compare", "digits-two-class", "--methods", "fedavg,fedprx"), "did you mean 'fedprox'"),
        (("compare", "digits-two-class", "--methods", ","), "--methods is empty"),
        (("compare", "digits-two-class", "--methods", "fedavg", "--seeds", "one"), "--seeds = 'one'"),
        (("compare", "digits-two-class", "--methods", "fedavg", "--seeds", "4-2"), "--seeds = '4-2' is reversed: expected 2-4"),
        (("compare", "digits-two-class", "--methods", "fedavg,local", "--set", "method.mu=1"), "none of fedavg, local has such a key"),
        (("run", "digits-two-class", "--changed-code"), "they need --resume"),
        (("list", "method"), "coterie list method: no such kind of thing, did you mean 'methods'?"),
        (("clean", "nowhere"), "there is no run in nowhere"),
        (("tune", "digits-two-class", "--over", "method.mu"), "--over method.mu: expected key=value,value"),
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
    assert err.endswith("is training.optimiser.lr too large?\n")
    assert "Traceback" not in err


def test_help_comes_without_torch() -> None:
    code = "import sys, coterie.cli; assert not {'torch', 'sklearn', 'matplotlib'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


COMPLETED = """
eval "$(coterie --show-completion bash)"
offered() { COMP_WORDS=(coterie "$@") COMP_CWORD=$#; _coterie_completion coterie; echo "${COMPREPLY[*]}"; }
offered rep
offered run digits
offered list meth
offered list methods fedp
"""


def test_bash_completes_commands_experiments_kinds_and_names() -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(["bash", "-c", COMPLETED], capture_output=True, text=True, check=False, env={**os.environ, "PATH": path})
    assert done.stdout.splitlines() == ["reproduce report", "digits-two-class", "methods", "fedper fedproto fedprox"], done.stderr


def test_bare_version_and_help(call) -> None:
    from coterie import __version__

    for words in ((), ("-h",), ("run", "-h")):
        code, out, err = call(*words)
        assert (code, "Usage" in out, err) == (0, True, "")
    assert call("--version")[:2] == (0, f"coterie {__version__}\n")


def test_more_rounds_for_a_finished_run(call, tmp_path) -> None:
    call("run", "digits-two-class", *FAST, "--out", "short")
    code, out, _ = call("run", "--resume", "short", "--rounds", "3", "--out", "longer")
    assert (code, "round 3/3" in out, "round 2/3" in out) == (0, True, False)
    assert json.loads((tmp_path / "longer" / "summary.json").read_text())["rounds"] == 3
    assert "need --resume" in call("run", "digits-two-class", "--rounds", "3")[2]


def test_an_error_in_ones_own_code_is_one_sentence_with_its_place(call, tmp_path, monkeypatch) -> None:
    (tmp_path / "my_broken_one.py").write_text(
        "from coterie import FedAvg\n\nclass Broken(FedAvg):\n    def round(self, state, fed):\n        return {}['key']\n"
    )
    code, _, err = call("run", "digits-two-class", *FAST, "--set", "method=my_broken_one:Broken")
    assert (code, err) == (1, "error: KeyError: 'key' (my_broken_one.py:5)\n")


NOT_METHODS = """
from typing import ClassVar
from coterie import FedAvg, Method, Record, means, spec, task

class Undecorated(Method):
    pass

@spec
class Startless(Method):
    pass

class Forgetful(FedAvg):
    def round(self, state, fed):
        super().round(state, fed)

class Unmeasured(FedAvg):
    evaluates: ClassVar[tuple[str, ...]] = ("globel",)

class Misread(FedAvg):
    @task
    def train(self, site, memory, message):
        return Record(model=site.fit(message.group("modell"), None).params), memory

class Misspelt(FedAvg):
    def round(self, state, fed):
        return means(fed.ask("train", state, like=state), "modle")

class Loose(FedAvg):
    evaluates: ClassVar[str] = "global"

@spec
class Counts(Method):
    def start(self, fed):
        return Record(model=fed.server.fresh())

    def round(self, state, fed):
        fed.ask("count", state)
        return state

class Unmarked(Counts):
    def count(self, site, memory, message):
        return Record(), memory

class Unlisted(Counts):
    @task
    def count(self, site, memory, message):
        site.evaluate("personal", message.group("model"))
        return Record(), memory

class Persnal(Counts):
    @task
    def count(self, site, memory, message):
        site.evaluate("persnal", message.group("model"))
        return Record(), memory

class Narrow(FedAvg):
    evaluates: ClassVar[tuple[str, ...]] = ("global",)
"""


@pytest.mark.parametrize(
    ("name", "code", "sentence"),
    [
        ("Undecorated", 2, "method 'not_quite:Undecorated' is not a dataclass: write @coterie.spec above its class"),
        ("Startless", 2, "method 'startless' has no start(self, fed): expected one that returns the server's first state, a Record"),
        ("Forgetful", 1, "method 'forgetful': round returned NoneType, expected the server's state, a Record"),
        ("Unmeasured", 2, "evaluates = 'globel': no such model, did you mean 'global'?"),
        ("Misread", 1, "the Record given to fit is empty; is that group in the message or the memory? (not_quite.py:22)"),
        ("Misspelt", 1, "LookupError: no reply has a group 'modle' of tensors: did you mean 'model'? Valid: model (not_quite.py:26)"),
        ("Loose", 2, "evaluates = 'global': expected a tuple, evaluates = ('global',)"),
        ("Unmarked", 1, "Unmarked has no task 'count': its function count is not marked, write @coterie.task above it"),
        (
            "Unlisted",
            1,
            "site.evaluate('personal', ...): the method does not say that it has this model, list it in its `evaluates` (not_q",
        ),
        (
            "Persnal",
            1,
            "site.evaluate('persnal', ...): no such model, did you mean 'personal'? Valid: composed, global, personal, start (not",
        ),
        ("Forgetfull", 2, "method 'not_quite:Forgetfull': no such class there, did you mean 'Forgetful'?"),
    ],
)
def test_what_is_wrong_with_a_method_of_ones_own_is_one_sentence(call, tmp_path, name, code, sentence) -> None:
    (tmp_path / "not_quite.py").write_text(NOT_METHODS)
    found, out, err = call("run", "digits-two-class", *FAST, "--set", f"method=not_quite:{name}")
    assert (found, err.count("error: "), "Traceback" in out + err) == (code, 1, False), err
    assert sentence in err


def test_a_method_may_inherit_a_task_and_leave_out_a_model_that_it_measures(call, tmp_path) -> None:
    (tmp_path / "not_quite.py").write_text(NOT_METHODS)
    assert call("run", "digits-two-class", *FAST, "--set", "method=not_quite:Narrow", "--quiet")[0] == 0


def test_a_folder_to_write_to_is_not_a_file(call, tmp_path) -> None:
    (tmp_path / "file").touch()
    assert call("run", "digits-two-class", *FAST, "--out", "file")[::2] == (
        2,
        "error: file is a file: expected a folder that is empty or not there yet\n",
    )
    assert call("run", "digits-two-class", *FAST, "--dry-run", "--out", "file/below")[::2] == (
        2,
        "error: file is a file: expected a folder that is empty or not there yet\n",
    )
    assert call("compare", "digits-two-class", *FAST, "--methods", "fedavg", "--out", "file")[::2] == (
        2,
        "error: file is a file: expected a folder for the runs of a comparison\n",
    )


def test_a_comparison_that_cannot_be_written_is_told_in_a_sentence_before_any_arm_starts(call) -> None:
    code, out, err = call("compare", "digits-two-class", *FAST, "--methods", "fedavg", "--out", "/proc/x")
    assert (code, out, err) == (1, "", "error: /proc/x: No such file or directory\n")


def test_a_comparison_does_not_go_into_the_folder_of_a_run(call, tmp_path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "ledger.jsonl").touch()
    for where in ("one", "one/below"):
        code, _, err = call("compare", "digits-two-class", *FAST, "--methods", "fedavg", "--out", where)
        assert (code, err) == (2, "error: the folder one holds a single run: expected another one for the runs of a comparison\n")
    assert os.listdir(tmp_path / "one") == ["ledger.jsonl"]


def test_a_file_of_ones_own_that_is_missing_was_looked_for_everywhere(call, tmp_path) -> None:
    words = ("--set", 'data.source={name="csv",path="no.csv",label="x"}', "--data", "elsewhere")
    _, _, err = call("run", "digits-two-class", *FAST, *words)
    assert "error: elsewhere/no.csv is missing: csv was looked for in elsewhere, " in err
    assert f"{tmp_path}; say where" in err


def test_a_bare_list_shows_what_can_be_listed(call) -> None:
    assert "fedprox" in json.loads(call("list", "--json")[1])["methods"]
    code, out, _ = call("list")
    assert (code, "partitions" in out, "dirichlet" in out) == (0, True, True)


def test_a_run_that_cannot_begin_leaves_no_folder(call, tmp_path) -> None:
    assert call("run", "digits-two-class", *FAST, "--set", "cohort=11")[0] == 2
    assert list((tmp_path / "runs").iterdir()) == []
