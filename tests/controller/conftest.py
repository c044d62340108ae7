"""An API server for the shells of the controllers."""

import pytest


@pytest.fixture
def small():
    """A small API server and a connection to it."""
    pytest.importorskip("kubernetes", reason="needs the Kubernetes client")
    import small_api

    with small_api.running() as made:
        yield made
