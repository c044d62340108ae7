"""Fixture that records the controllers' pauses between requests to the API server."""

import pausing
import pytest

from pyvgpu.controller import pace


@pytest.fixture
def pauses(monkeypatch):
    """The pauses of informers and of a controller's circuit breaker."""
    return pausing.noted(monkeypatch, pace)
