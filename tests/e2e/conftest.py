"""What every suite gets: a namespace of its own in the cluster that ``make e2e`` brought up."""

import fcntl
import os
import subprocess
from pathlib import Path

import pytest
import rig
import rights
import sidecars
from xdist import scheduler

from pyvgpu.controller.sidecar import cri


class ByFolder(scheduler.LoadScopeScheduling):
    """One worker runs the tests of a folder, which may share what a cluster has once."""

    def _split_scope(self, nodeid):
        return nodeid.partition("::")[0].rpartition("/")[0]


def pytest_xdist_make_scheduler(config, log):
    return ByFolder(config, log)


@pytest.fixture(scope="session", autouse=True)
def _cluster():
    if "CLUSTER_RUN" not in os.environ:
        lacks = os.environ.get("CLUSTER_LACKS")
        pytest.skip(f"{rights.WANTING} a cluster: {lacks}" if lacks else "needs make e2e")


@pytest.fixture(autouse=True)
def _room(request, _cluster):
    """Keep whoever kills a server of the cluster apart from everybody else."""
    how = fcntl.LOCK_EX if request.node.get_closest_marker("alone") else fcntl.LOCK_SH
    with Path(os.environ["CLUSTER_RUN"], "tests.lock").open("w") as lock:
        fcntl.flock(lock, how)
        yield


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
    """What ends sidecars, the controller and the node part: both, as processes."""
    apply = ["kubectl", "apply", "-f", sidecars.RIGHTS]
    subprocess.run(apply, check=True, capture_output=True)
    made = sidecars.Parts(tmp_path_factory.mktemp("parts"))
    try:
        made.start_controller()
        made.start_node()
        yield made
    finally:
        codes = made.end()
    assert codes == [0, 0]
