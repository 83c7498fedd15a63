"""What tests of reports share."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.results.ledgers import METHODS, write_run


@pytest.fixture(scope="session")
def comparison_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("comparison")
    for method in METHODS:
        for seed in (0, 1, 2):
            write_run(folder / f"{method}-s{seed}", method, seed)
    return folder
