"""What tests of deployments share."""

from __future__ import annotations

import pytest
from tests.deployment.post import Clock


@pytest.fixture(autouse=True)
def _clock(monkeypatch) -> None:
    """Who sits in this process is not waited for."""
    monkeypatch.setattr("coterie.engines.flower.time", Clock())
