"""How long the shells of the controllers leave the API server alone."""

import pausing
import pytest

from pyvgpu.controller import pace


@pytest.fixture
def pauses(monkeypatch):
    """The pauses of informers and of the gate of a controller."""
    return pausing.noted(monkeypatch, pace)
