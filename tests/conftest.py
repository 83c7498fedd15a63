"""What every test may ask for."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("coterie", deadline=None)  # machines are shared: a slow example is no fault
settings.load_profile("coterie")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell has put the suite into the background: tests of Ctrl-C want it all the same
    signal.signal(signal.SIGINT, signal.default_int_handler)
SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The real data: `$COTERIE_DATA`, else `../shared/data` beside the repository; the test is skipped where there is none."""
    folder = Path(os.environ.get("COTERIE_DATA") or SHARED)
    if not folder.is_dir():
        pytest.skip(f"no real data: {folder} is missing (set COTERIE_DATA to a folder that `coterie data fetch` has filled)")
    return folder
