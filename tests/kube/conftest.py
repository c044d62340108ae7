"""How long informers leave the API server alone."""

import pausing
import pytest


@pytest.fixture
def pauses(monkeypatch):
    """The pauses of informers."""
    return pausing.noted(monkeypatch)
