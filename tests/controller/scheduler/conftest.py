"""Fixture with an API server that implements bindings."""

import pytest


@pytest.fixture
def cluster():
    """A small API server that implements bindings, and a connection to it."""
    pytest.importorskip("kubernetes", reason="needs the Kubernetes client")
    import scheduling_api
    import small_api

    with small_api.running(scheduling_api.SchedulingApi()) as made:
        yield made
