"""What an error means for whoever called the program."""

from __future__ import annotations

import sys

import pytest

from coterie.cli import main as cli
from coterie.errors import CoterieError, Interrupted, RunError, UserError


class Stopped(Interrupted):
    """Somebody's own."""


@pytest.mark.parametrize(("error", "code"), [(UserError, 2), (RunError, 1), (Interrupted, 130), (Stopped, 130), (CoterieError, 1)])
def test_an_exit_code_belongs_to_an_error_and_to_what_derives_from_it(error, code, monkeypatch, capsys) -> None:
    def fail(**_: object) -> None:
        raise error("so it is")

    monkeypatch.setattr(cli, "app", fail)
    monkeypatch.setattr(sys, "argv", ["coterie"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == code
    assert "error: so it is" in capsys.readouterr().err
