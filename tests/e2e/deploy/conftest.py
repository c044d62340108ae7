"""What is shipped, installed in the cluster as a user does it, while its tests run."""

import contextlib
import os

import pytest
import rig
import shared
import shipped as made

SHARED = "SHARED_INSTALLATION"


@contextlib.contextmanager
def _installed():
    """Install it once for all workers; it stays for the tests that are alone, which remove it."""
    made.install()
    yield made.NAMESPACE


def pytest_sessionstart(session):
    shared.begin(session.config, SHARED, _installed)


@pytest.fixture(scope="session")
def rendered():
    return made.manifests()


@pytest.fixture(scope="session")
def shipped():
    """Install everything, and return the namespace that it lives in."""
    ours = rig.everybodys(made.NAMESPACE)
    if SHARED in os.environ:
        yield ours
        return
    made.install()
    try:
        yield ours
    finally:
        print(made.kubectl("get", "pods", "--output=wide"), made.logs())
        made.remove()
