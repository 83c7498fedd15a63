"""Imports without a search for garbage: what modules make stays, and torch's hundreds of thousands of objects are looked through again and
again while more of them come, which is an eighth of a command's start.

The server that workers are forked from imports modules by their names and nothing else, so beginning and end are modules too. What is there
at the end is not looked at again, neither there nor in what is forked from it: memory that both have in common stays so.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["importing"]


@contextmanager
def importing() -> Iterator[None]:
    """Import in here what a command needs.

    >>> with importing():
    ...     import json
    ...     gc.isenabled()
    False
    >>> gc.isenabled()
    True
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
