"""Where data sets lie on this machine."""

from __future__ import annotations

import os
from pathlib import Path

import pooch

__all__ = ["data_folder"]


def data_folder(explicit: Path | None = None) -> Path:
    """The folder named by the user, else `$COTERIE_DATA`, else the user's cache; it need not exist yet.

    >>> data_folder(Path("here")).name
    'here'
    """
    if explicit is not None:
        return explicit.expanduser()
    named = os.environ.get("COTERIE_DATA", "")
    return Path(named).expanduser() if named else Path(pooch.os_cache("coterie"))
