"""What every suite gets: a namespace of its own in the cluster that ``make e2e`` brought up."""

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
    """End what the workers shared, after them."""
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
    connection = cri.Runtime(os.environ["CONTAINERD_ADDRESS"])
    yield connection
    connection.close()


@pytest.fixture(scope="session")
def parts(tmp_path_factory):
    """What ends sidecars, the controller and the node part: both, as processes.

    With several workers they are everybody's, and nobody's to end.
    """
    if folder := os.environ.get(sidecars.SHARED):
        yield sidecars.Parts(Path(folder))
        return
    with sidecars.running(tmp_path_factory.mktemp("parts")) as made:
        yield made
