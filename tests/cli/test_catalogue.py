"""What can be named, as the source says it, is what is registered."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from importlib import import_module

import pytest

from coterie.cli.catalogue import REGISTRIES, Kind, entries, entry
from coterie.errors import UserError

HOMES = {Kind.methods: ("methods", "METHODS"), **REGISTRIES}


@pytest.mark.parametrize("kind", [kind for kind in HOMES if kind is not Kind.engines])
def test_the_catalogue_is_the_registry(kind) -> None:
    home, name = HOMES[kind]
    registered = getattr(import_module(f"coterie.{home}"), name).specs
    found = entries(kind)
    assert list(found) == list(registered)
    for each, cls in registered.items():
        fields = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
        assert [setting.name for setting in found[each].settings] == [field.name for field in fields], each
        assert found[each].what == (cls.__doc__ or "").strip().split("\n")[0]


@pytest.mark.parametrize("kind", list(Kind))
def test_everything_has_a_sentence_and_so_has_every_setting(kind) -> None:
    for each in entries(kind).values():
        assert each.what, each.name
        assert [setting.name for setting in each.settings if not setting.what] == [], each.name


def test_defaults_are_those_of_the_class() -> None:
    settings = {each.name: each.default for each in entry(Kind.methods, "fedfusion").settings}
    assert (settings["operator"], settings["ema"], settings["level"], settings["bias"]) == ('"conv"', "0.9", "not set", "false")
    assert {each.name: each.default for each in entry(Kind.methods, "split-metadata").settings}["selection"] == '"kmeans"'


def test_a_users_own_class_is_looked_up_too(tmp_path, monkeypatch) -> None:
    code = 'from coterie import FedAvg\n\nclass Mine(FedAvg):\n    lam: float = 0.5\n    """How much."""\n'
    (tmp_path / "mine_to_list.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    found = entry(Kind.methods, "mine_to_list:Mine")
    assert {each.name: each.default for each in found.settings} == {
        "weighting": '"samples"',
        "aggregation": '"mean"',
        "regularisers": "[]",
        "lam": "0.5",
    }
    with pytest.raises(UserError, match="there is no class Yours"):
        entry(Kind.methods, "mine_to_list:Yours")


def test_an_unknown_name_leads_to_the_nearest() -> None:
    with pytest.raises(UserError, match="'fedfusoin' is unknown, did you mean 'fedfusion'"):
        entry(Kind.methods, "fedfusoin")


@pytest.mark.parametrize("words", [["list", "methods"], ["list", "methods", "fedfusion"], ["run"], ["--version"], []])
def test_what_needs_no_torch_does_not_import_it(words) -> None:
    program = "from coterie.cli.main import main\ntry:\n    main()\nexcept SystemExit: ...\nassert 'torch' not in sys.modules"
    code = f"import sys; sys.argv = ['coterie', *{words}]\n{program}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
