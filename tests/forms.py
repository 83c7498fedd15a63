"""Two forms of the tests. CI runs the short one, which has one of every kind; `make test-long` runs all.

What takes long and shows once more what another case shows is marked `long`; the short form says so and skips it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest

LONG = bool(os.environ.get("COTERIE_LONG"))

long = pytest.mark.skipif(not LONG, reason="in the long form only: make test-long")


def rest_is_long(cases: Iterable[Any], *, short: Iterable[Any]) -> list[Any]:
    """The cases, of which the short form has only some.

    >>> [case if isinstance(case, str) else case.values[0] for case in rest_is_long(["a", "b"], short=["b"])]
    ['a', 'b']
    """
    cases, kept = list(cases), list(short)
    unknown = [case for case in kept if case not in cases]
    assert not unknown, f"no such cases: {unknown}"
    return [case if case in kept else _long(case) for case in cases]


def _long(case: Any) -> Any:
    return pytest.param(*(case if isinstance(case, tuple) else [case]), marks=long)
