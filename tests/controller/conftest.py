"""Fixture that records the controllers' pauses between requests to the API server."""

import pausing
import pytest

from pyvgpu.kube import rate_limit


@pytest.fixture
def pauses(monkeypatch):
    """The pauses of informers and of a controller's circuit breaker."""
    return pausing.noted(monkeypatch, rate_limit)
