"""Fixtures for tests of the node agent: a kubelet on sockets, a driver, folders of grants."""

import tempfile
from pathlib import Path

import cluster_of_one
import granted
import node_process
import pytest
import small_disks
import waiting
from fake_kubelet import FakeKubelet

from pyvgpu.deviceplugin.cluster import own_node
from pyvgpu.deviceplugin.containers import store
from pyvgpu.simulation import simulator


@pytest.fixture
def kubelet():
    with tempfile.TemporaryDirectory(
        prefix="pyvgpu-kubelet-"
    ) as folder:  # a socket's path is short
        made = FakeKubelet(Path(folder)).start()
        yield made
        made.stop()


@pytest.fixture
def machine(tmp_path):
    return simulator.open_machine("h100:2", tmp_path / "machines")


@pytest.fixture
def driver(machine, tmp_path):
    return granted.driver_of(machine, tmp_path / "driver")


@pytest.fixture
def places(tmp_path):
    """The folders of grants of a node."""
    made = store.GrantStore(tmp_path / "grants", tmp_path / "cdi")
    yield made
    made.close()


@pytest.fixture
def node(kubelet, tmp_path):
    """A node with two simulated devices, on which agents can be started."""
    with node_process.running(kubelet, tmp_path) as made:
        yield made


@pytest.fixture
def cluster(tmp_path):
    """An API server that knows one node, and a connection to it."""
    with cluster_of_one.running(tmp_path) as made:
        yield made


@pytest.fixture
def own(cluster):
    """The node of that API server, as an agent watches it."""
    made = own_node.OwnNode(cluster.connection, cluster_of_one.NODE)
    made.sync()
    with waiting.beside(made):
        yield made


@pytest.fixture
def small_disk(tmp_path):
    """A file system of four MiB."""
    with small_disks.mounted(tmp_path / "disk") as folder:
        yield folder
