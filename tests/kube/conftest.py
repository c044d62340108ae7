"""Fixture that records the backoff pauses of informers."""

import pausing
import pytest


@pytest.fixture
def pauses(monkeypatch):
    """The pauses of informers."""
    return pausing.noted(monkeypatch)
