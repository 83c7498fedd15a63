"""The server that workers are forked from, begun as early as can be: while it imports torch, so does whoever began it.

Needs nothing but Python's own modules, so that a command can begin it before it imports anything else. Who began it keeps it: it ends with
that process.
"""

from __future__ import annotations

import multiprocessing
import sys
from multiprocessing import forkserver
from pathlib import Path

__all__ = ["FOR_ARMS", "begin"]

PRELOADED = ("coterie.engines.processes", "coterie.methods", "numpy.random")
"""What every worker needs in its first task at the latest: each would import it for itself."""
FOR_ARMS = ("coterie.studies.compare",)
"""What the processes of a comparison import beside."""


def begin(*more: str) -> None:
    """Have the server import what workers need, and `more`; one that is there already stays as it is."""
    main = sys.modules["__main__"]
    if not Path(getattr(main, "__file__", None) or __file__).exists():
        del main.__file__  # a script from standard input: Python would have every worker look for a file called <stdin>
    modules = ["coterie.importing.begins", *more, *PRELOADED, "coterie.importing.ends"]
    multiprocessing.get_context("forkserver").set_forkserver_preload(modules)
    forkserver.ensure_running()
