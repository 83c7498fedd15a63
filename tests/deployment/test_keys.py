"""Keys for a trial: made once, for the machines that were named."""

from __future__ import annotations

import pytest

from coterie.deployment.keys import make_keys
from coterie.errors import UserError

pytest.importorskip("cryptography")


def test_what_is_there_stays_and_what_is_missing_is_made(tmp_path) -> None:
    keys = make_keys(tmp_path, ["north"], ["fl.example.org"])
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    make_keys(tmp_path, ["north", "south"], ["fl.example.org"])
    assert {path: path.read_bytes() for path in before} == before
    assert keys.participant("south").exists()


def test_a_certificate_that_is_there_is_not_taken_for_one_of_another_machine(tmp_path) -> None:
    make_keys(tmp_path, ["north"])
    with pytest.raises(
        UserError, match=r"--hosts fl\.example\.org: .*server\.pem is there and not for it; expected localhost, 127\.0\.0\.1"
    ):
        make_keys(tmp_path, ["north"], ["fl.example.org"])
