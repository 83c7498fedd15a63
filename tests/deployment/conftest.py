"""What tests of deployments share."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _quick(monkeypatch) -> None:
    """Who sits in this process is not waited for."""
    for name in ("POLL", "LOOK"):
        monkeypatch.setattr(f"coterie.engines.flower.{name}", 0.0)
