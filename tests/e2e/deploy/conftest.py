"""Fixtures: the chart's sidecar and webhook objects, installed in the cluster as by a user."""

import contextlib
import os

import pytest
import rig
import shared
import shipped as made

SHARED = "SHARED_INSTALLATION"


@contextlib.contextmanager
def _installed():
    """Install once for all workers; the tests marked alone use it afterwards and remove it."""
    made.install()
    yield made.NAMESPACE


def pytest_sessionstart(session):
    shared.begin(session.config, SHARED, _installed)


@pytest.fixture(scope="session")
def rendered():
    return made.manifests()


@pytest.fixture(scope="session")
def shipped():
    """Install everything; return its namespace."""
    ours = rig.as_admin(made.NAMESPACE)
    if SHARED in os.environ:
        yield ours
        return
    made.install()
    try:
        yield ours
    finally:
        print(made.kubectl("get", "pods", "--output=wide"), made.logs())
        made.remove()
