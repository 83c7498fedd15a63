"""The bits of every method are those that were written down, where the processor is the one they were written down on."""

from __future__ import annotations

import json

import pytest
from tests import digests

from coterie.methods import METHODS

KEPT = json.loads(digests.KEPT.read_text())


@pytest.mark.parametrize("case", digests.CASES)
def test_the_bits_are_those_written_down(case) -> None:
    written = KEPT.get(digests.machine(), {})
    if case not in written:
        pytest.skip(f"bits were written down on {', '.join(KEPT)}; not for this on {digests.machine()}")
    assert digests.digest_of(case) == written[case]


@pytest.mark.parametrize("case", ["fedavg", "fml"])
def test_the_same_experiment_twice_has_the_same_bits(case) -> None:
    assert digests.digest_of(case) == digests.digest_of(case)


def test_every_method_is_written_down() -> None:
    assert set(METHODS) == {case["method"]["name"] for case in digests.CASES.values()}
    assert any(set(written) == set(digests.CASES) for written in KEPT.values())
    assert all(set(written) <= set(digests.CASES) for written in KEPT.values())
