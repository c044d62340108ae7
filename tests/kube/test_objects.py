"""Accessors for Kubernetes objects."""

import datetime

import pytest

from pyvgpu.kube import objects

AT = datetime.datetime(2026, 11, 21, 10, 0, 0, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2026-11-21T10:00:00Z", AT),
        ("2026-11-21T12:00:00+02:00", AT),
        ("2026-11-21T10:00:00", AT),
        ("2026-11-21T10:00:00.500000Z", AT + datetime.timedelta(seconds=0.5)),
        (None, None),
        ("", None),
        ("soon", None),
        (["2026-11-21T10:00:00Z"], None),
        ("10000-01-01T00:59:59Z", None),
    ],
)
def test_times_of_the_api_server(text, time):
    assert objects.time_of(text) == time
