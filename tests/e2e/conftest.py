"""Fixtures of all e2e suites: a namespace per test in the cluster that ``make e2e`` started."""

import os
from pathlib import Path

import pytest
import rig
import rights
import shared
import sidecars

from pyvgpu.controller.sidecar import cri


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    """Close the resources that the workers shared."""
    shared.end(session.config)


@pytest.fixture(scope="session", autouse=True)
def _cluster():
    if "CLUSTER_RUN" not in os.environ:
        lacks = os.environ.get("CLUSTER_LACKS")
        pytest.skip(f"{rights.WANTING} a cluster: {lacks}" if lacks else "needs make e2e")


@pytest.fixture
def space():
    with rig.space() as made:
        yield made


@pytest.fixture(scope="session")
def runtime():
    connection = cri.RuntimeClient(os.environ["CONTAINERD_ADDRESS"])
    yield connection
    connection.close()


@pytest.fixture(scope="session")
def parts(tmp_path_factory):
    """sidecar-controller and sidecar-node as processes.

    With several xdist workers all workers share them, and none stops them.
    """
    if folder := os.environ.get(sidecars.SHARED):
        yield sidecars.Parts(Path(folder))
        return
    with sidecars.running(tmp_path_factory.mktemp("parts")) as made:
        yield made
