"""Delays between retries of refused requests."""

import pytest

from pyvgpu.kube import backoff


@pytest.mark.parametrize(
    ("attempt", "chance", "options", "seconds"),
    [
        (1, 1.0, {}, 1.0),
        (2, 1.0, {}, 2.0),
        (6, 1.0, {}, 32.0),
        (7, 1.0, {}, 60.0),
        (10_000, 1.0, {}, 60.0),
        (7, 0.0, {}, 6.0),
        (1, 0.0, {"retry_after": 7.0}, 7.0),
        (7, 1.0, {"retry_after": 7.0}, 60.0),
        (1, 1.0, {"status": 409}, 0.25),
        (100, 1.0, {"status": 422}, 5.0),
        (1, 1.0, {"status": 500}, 1.0),
    ],
)
def test_delay(attempt, chance, options, seconds):
    assert backoff.delay(attempt, chance, **options) == seconds
