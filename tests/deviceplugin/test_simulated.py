"""A node with simulated devices, without a driver and without a node in /dev."""

import shutil
import signal

import pytest
import waiting
from fake_kubelet import VCORE, container, pod
from node_process import UNIT, ended

from pyvgpu import names
from pyvgpu.simulation import simulator

pytestmark = pytest.mark.slow


def of_agent(node):
    """Return the machine that the agent has created."""
    (folder,) = (node.state / "simulated/machines").iterdir()
    return simulator.read_machine(folder)


def test_simulated_devices_keep_their_uuids(node):
    shutil.rmtree(node.root)
    killed = node.start("--simulate", "h100:2")
    node.kubelet.until_offered()
    machine = of_agent(node)
    assert [device.model for device in machine.devices] == ["h100", "h100"]
    uuids = [device.uuid for device in machine.devices]
    one = node.kubelet.admit(pod("p", container("a", 30, 8), container("b", 100, 0)))
    answers = [node.kubelet.start_container(one, name) for name in ("a", "b")]
    vcore, units, first = node.quota(answers[0])
    assert (vcore, units, first in uuids) == (30, 8, True)
    for answer in answers:
        edits = node.specification(answer)
        assert edits["deviceNodes"] == []
        assert f"{names.SIMULATED_MACHINE_VARIABLE}={machine.folder}" in edits["env"]
        (mount,) = (
            entry for entry in edits["mounts"] if entry["containerPath"] == str(machine.folder)
        )
        assert (mount["hostPath"], "rw" in mount["options"]) == (str(machine.folder), True)
    assert ended(killed, signal.SIGKILL) == -signal.SIGKILL
    node.start("--simulate", "h100:2")
    node.kubelet.until_offered()
    assert node.kubelet.start_container(one, "a") == answers[0]
    assert [device.uuid for device in of_agent(node).devices] == uuids


def test_all_simulated_devices_are_offered(node):
    node.start("--simulate", "t4")
    node.kubelet.until_offered()
    assert len(node.kubelet.healthy(VCORE)) == 100
    most = of_agent(node).devices[0].memory_bytes // UNIT
    one = node.kubelet.admit(pod("p", container("a", 50, most)))
    assert node.quota(node.kubelet.start_container(one, "a"))[:2] == (50, most)


@pytest.mark.parametrize("machine", ["h1000", "h100:0", "h100:17", ""])
def test_unknown_machine_is_refused(node, machine):
    process = node.start("--simulate", machine)
    assert process.wait(waiting.PROMPT) == 64
    said = node.log.read_text()
    assert "--simulate" in said
    assert "h100" in said
