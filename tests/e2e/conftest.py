"""What every suite gets: a namespace of its own in the cluster that ``make e2e`` brought up."""

import os

import pytest
import rig
import rights

from pyvgpu.controller.sidecar import cri


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
