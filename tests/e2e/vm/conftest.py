"""Fixtures: a virtual machine as the cluster's node, and the chart in it; see ``run``."""

import os
import subprocess
from pathlib import Path

import agents
import charts
import pytest
import rig
import undisturbed
import virtual_machine
from waiting import wait_until

_DISK = Path(__file__).parent / "disk"
_VALUES = {  # all else as the chart has it, such as the folders of the node
    "simulate": "h100:2",
    "agent": {
        "suspend": True,
        "options": ["--simulate=/etc/pyvgpu/node.machine"],
        "volumes": [{"name": "machine", "hostPath": {"path": "/etc/pyvgpu"}}],
        "volumeMounts": [{"name": "machine", "mountPath": "/etc/pyvgpu", "readOnly": True}],
    },
    "sidecar": {"enabled": True},
    "webhook": {"enabled": False},
}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """Add the end of the machine's console, and its journals, to reports of failures."""
    report = yield
    machine = item.funcargs.get("machine")
    if report.failed and machine is not None:
        report.sections.append(("virtual machine", machine.story()))
        report.sections.append(("pods", charts.story()))
    return report


def node_is_ready():
    found, _ = rig.as_admin().server.items("/api/v1/nodes", {})
    return any(
        (condition["type"], condition["status"]) == ("Ready", "True")
        for node in found
        for condition in node["status"]["conditions"]
    )


@pytest.fixture(scope="session")
def machine(tmp_path_factory, _cluster):
    """The node, once kubelet reports that it is ready."""
    agents.make_image(tmp_path_factory.mktemp("images"))
    disk = Path(os.environ["MACHINE"], "disk.ext4")
    subprocess.run([_DISK, os.environ["BASE"], disk], check=True)
    made = virtual_machine.Machine(disk)
    try:
        made.start()
        wait_until(node_is_ready, rig.SECONDS, made.story)
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="session")
def release(machine, tmp_path_factory):
    """Install the chart."""
    file = charts.write(tmp_path_factory.mktemp("values") / "release.yaml", _VALUES)
    with charts.installed(file):
        undisturbed.has_devices()
        yield


@pytest.fixture
def space(release):
    with rig.space() as made:
        yield made
