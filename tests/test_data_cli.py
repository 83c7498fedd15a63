"""`coterie data`: what it prints, what it writes, and how it says no."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from coterie.cli.main import app, main
from coterie.data.fetch import listing
from coterie.data.sources import SOURCES, File
from coterie.data.sources.usps import Usps
from coterie.errors import UserError

DAMAGE = b"not a bzip2 file"


def coterie(*words: str | Path) -> Result:
    """Run a command in this process; a mistake is in `.exception`."""
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "80"})


def said(*words: str | Path) -> str:
    """What a command that works prints."""
    result = coterie(*words)
    assert result.exit_code == 0, result.exception
    return result.stdout


def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str | Path) -> str:
    """The one sentence in which `coterie` refuses, with exit code 2."""
    monkeypatch.setattr("coterie.cli.stopping.listen", lambda: None)  # which would outlive the test
    monkeypatch.setattr(sys, "argv", ["coterie", *map(str, words)])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    return error.removeprefix("error: ").strip()


def test_list_names_every_source(tmp_path: Path) -> None:
    out = said("data", "list", "--data", tmp_path)
    assert all(name in out for name in SOURCES)
    assert "coterie data fetch fashion-mnist" in out
    assert "coterie[huggingface]" in out
    assert "…" not in out.replace(str(tmp_path), "")
    assert max(map(len, out.splitlines())) <= 80


def test_one_damaged_file_does_not_hide_the_others(tmp_path: Path) -> None:
    (tmp_path / "svhn-6k.npz").write_bytes(b"no archive")
    rows = {row["name"]: row for row in json.loads(said("data", "list", "--json", "--data", tmp_path))}
    assert (rows["svhn"]["state"], rows["digits"]["state"]) == ("damaged", "there")
    assert "svhn-6k.npz is truncated or damaged" in rows["svhn"]["how"]


def test_list_as_json(tmp_path: Path) -> None:
    rows = json.loads(said("data", "list", "--json", "--data", tmp_path))
    assert [row["name"] for row in rows] == list(SOURCES)
    digits, mnist = rows[:2]
    assert (digits["state"], digits["samples"], digits["licence"]) == ("there", [1442, 355], "CC BY 4.0 (UCI)")
    assert (mnist["state"], mnist["bytes"], mnist["how"]) == ("missing", 0, "run `coterie data fetch mnist`")
    assert not list(tmp_path.iterdir())


def test_list_of_real_data(data_folder: Path) -> None:
    states = {row["name"]: row["state"] for row in json.loads(said("data", "list", "--json", "--data", data_folder))}
    assert states == {row.name: row.state for row in listing(data_folder)}
    assert set(states.values()) <= {"there", "part", "missing", "yours"}


def test_the_folder_may_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path / "mine"))
    assert "mine" in "".join(said("data", "list").split())


@pytest.mark.parametrize("command", ["fetch", "verify"])
@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("mnits", "source 'mnits' is unknown: did you mean 'mnist'?"),
        ("npz", "source 'npz' is data of your own, with nothing to fetch or verify: in an experiment, say where: path = \"a/file.npz\""),
    ],
)
def test_names_that_mean_nothing(
    command: str, name: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(monkeypatch, capsys, "data", command, name, "--data", tmp_path / "new").startswith(sentence)
    assert not (tmp_path / "new").exists()


def test_fetch_refuses_data_without_an_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(monkeypatch, capsys, "data", "fetch", "pacs", "--data", tmp_path / "new").startswith(
        "pacs cannot be fetched: get it from"
    )
    assert not (tmp_path / "new").exists()


def test_fetch_leaves_files_that_are_there_alone(data_folder: Path) -> None:
    if Usps().found(data_folder) is None:
        pytest.skip(f"no real data: usps is missing in {data_folder}")
    assert json.loads(said("data", "fetch", "usps", "--json", "--data", data_folder)) == {
        "name": "usps",
        "files": [str(data_folder / "usps" / name) for name in ("usps.bz2", "usps.t.bz2")],
    }
    assert said("data", "fetch", "usps", "--data", data_folder).splitlines()[-1] == f"usps: {data_folder / 'usps' / 'usps.t.bz2'}"


def test_fetch_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(Usps, "files", (File("usps/usps.bz2", "md5:0", ("http://127.0.0.1:1/usps.bz2",)),))
    sentence = refused(monkeypatch, capsys, "data", "fetch", "usps", "--data", tmp_path)
    assert sentence.startswith(f"{tmp_path / 'usps' / 'usps.bz2'} could not be fetched: http://127.0.0.1:1/usps.bz2 (ConnectionError")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_verify_one(tmp_path: Path) -> None:
    (row,) = json.loads(said("data", "verify", "digits", "--json", "--data", tmp_path))
    assert row == {"name": "digits", "samples": [1442, 355], "classes": 10, "shape": [1, 8, 8], "published": 0, "note": ""}


@pytest.fixture(autouse=True)
def _no_debian_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is there does not depend on what this machine has installed."""
    monkeypatch.setattr("coterie.data.sources.idx.FashionMnist.system", Path("nowhere"))


def test_verify_all_that_is_there(tmp_path: Path, data_folder: Path) -> None:
    if not (data_folder / "svhn-6k.npz").is_file():
        pytest.skip(f"no real data: svhn-6k.npz is missing in {data_folder}")
    shutil.copy(data_folder / "svhn-6k.npz", tmp_path)
    out = said("data", "verify", "--data", tmp_path)
    assert "1,442 + 355" in out
    assert "6,000 + 3,000" in out
    assert "svhn: a part of svhn: 6,000 of 73,257 training and 3,000 of 26,032 test images" in out
    assert "mnist" not in out


def test_verify_names_a_file_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    sentence = refused(monkeypatch, capsys, "data", "verify", "usps", "--data", tmp_path)
    assert sentence.startswith(f"{tmp_path / 'usps' / 'usps.bz2'} is missing")
    assert sentence.endswith("run `coterie data fetch usps`")


def test_verify_goes_on_after_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "usps").mkdir()
    for name in ("usps.bz2", "usps.t.bz2"):
        (tmp_path / "usps" / name).write_bytes(DAMAGE)
    sentence = refused(monkeypatch, capsys, "data", "verify", "--data", tmp_path)
    assert sentence == f"{tmp_path / 'usps' / 'usps.bz2'} has a wrong checksum: run `coterie data fetch usps`"
    result = coterie("data", "verify", "--json", "--data", tmp_path)
    assert isinstance(result.exception, UserError)
    assert [row["name"] for row in json.loads(result.stdout)] == ["digits", "digit-styles"]


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_show(ending: str, tmp_path: Path) -> None:
    path = tmp_path / "new" / f"image.{ending}"
    assert said("data", "show", "digits-two-class", "--out", path) == f"written to {path}\n"
    assert path.stat().st_size > 1000


def test_show_by_default_and_with_overrides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = json.loads(said("data", "show", "digits-two-class", "--json", "--set", "partition.clients=20"))
    assert found == {"image": "digits-two-class-partition.png", "clients": 20, "note": ""}
    assert [path.name for path in tmp_path.iterdir()] == ["digits-two-class-partition.png"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["digit-two-class"], "experiment 'digit-two-class' is neither a file nor the name of one: did you mean 'digits-two-class'?"),
        (["digits-two-class", "--set", "partition.clientz=3"], "partition.clientz = 3: no such key here, did you mean 'clients'?"),
        (["digits-two-class", "--set", "partition.clients=5000"], "partition.clients = 5000: "),
        (["digits-two-class", "--out", "image.bmp"], "image 'image.bmp' has no format we write"),
        (["digits-two-class", "--out", "taken/image.png"], "taken/image.png cannot be written: "),
    ],
)
def test_show_refuses(
    words: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("taken").touch()
    assert refused(monkeypatch, capsys, "data", "show", *words).startswith(sentence)
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_show_of_data_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    sentence = refused(monkeypatch, capsys, "data", "show", "mnist-shards", "--data", tmp_path / "none")
    assert "is missing: mnist was looked for in" in sentence
    assert not list(tmp_path.iterdir())


def test_what_is_heavy_is_imported_when_it_is_needed() -> None:
    code = "import sys, coterie.cli; print(sorted({'sklearn', 'scipy', 'PIL', 'matplotlib'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
