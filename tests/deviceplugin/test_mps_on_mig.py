"""MPS on the MIG devices of a node: each has a daemon of its own, as on one machine."""

import contextlib
import os
import signal
import tempfile
from pathlib import Path

import mig_node
import mps_room
import node_process
import pytest
import simulated_node
from fake_kubelet import VCORE, VMEMORY, container, pod

from pyvgpu import names
from pyvgpu.deviceplugin.devices import mps_daemons
from pyvgpu.simulation import mig, simulator

pytestmark = pytest.mark.slow

MPS = {names.ISOLATION_ANNOTATION: "mps"}
RPC_FAILURE = 806
ROOM = 500  # units of memory: of both GPUs, some for the servers


@pytest.fixture(name="node")
def fixture_node(kubelet, tmp_path):
    """A node with a GPU in MIG mode with two instances, and a whole GPU."""
    machine = simulator.open_machine("h100:mig=3g.40gb+2g.20gb,h100", tmp_path / "machines")
    root = simulated_node.make(tmp_path / "root", simulated_node.nodes(2))
    mig_node.capabilities(root / "proc")
    with contextlib.ExitStack() as stack:
        node = node_process.Node(kubelet, machine, root, tmp_path, stack)
        # A socket's path is short.
        node.files = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mps-")))
        stack.callback(end, node)
        yield node


def daemon(node, uuid):
    return mps_room.Daemon(node.files / mps_daemons.FOLDER / uuid, node.machine)


def end(node):
    for folder in (node.files / mps_daemons.FOLDER).glob("*-*"):
        daemon(node, folder.name).run("quit")


def start(node, cluster, *options):
    process = node.start("--kubeconfig", cluster.kubeconfig, *options)
    node.until(lambda: cluster.text and not any(x.unhealthy for x in cluster.published.devices))
    node.until(lambda: len(node.kubelet.healthy(VCORE)) == 300)
    node.until(lambda: len(node.kubelet.healthy(VMEMORY)) > ROOM)
    return process


def started(node, cluster, name, need, uuid):
    """Start a container under MPS on *uuid*; return its environment, capabilities and pod."""
    one = node.kubelet.admit(pod(name, container("x", *need)))
    cluster.add(one, {**MPS, names.DEVICE_UUIDS_ANNOTATION: uuid})
    answer = node.kubelet.start_container(one, "x")
    edits = node.specification(answer)
    sources = {mount["containerPath"]: mount["hostPath"] for mount in edits["mounts"]}
    found = dict(each.split("=", 1) for each in edits["env"])
    pipe = sources[found["CUDA_MPS_PIPE_DIRECTORY"]]
    caps = {x["path"] for x in edits["deviceNodes"] if "nvidia-cap" in x["path"]}
    # The shim selects the quota's device.
    return {**found, "CUDA_MPS_PIPE_DIRECTORY": pipe, "CUDA_VISIBLE_DEVICES": uuid}, caps, one


def test_each_mig_device_is_divided_by_a_daemon_of_its_own(node, cluster):
    large, small = simulator.mig_state(node.machine).instances
    start(node, cluster, "--mps", "all")
    assert [device.mps for device in cluster.published.devices] == [True] * 3
    variables = {}
    for name, found in zip("ab", (large, small), strict=True):
        made, caps, _ = started(node, cluster, name, (50, 8), found.uuid)
        assert made["CUDA_MPS_PIPE_DIRECTORY"] == str(daemon(node, found.uuid).folder)
        numbers = mig_node.minors(found.gpu_instance)
        assert caps == {f"/dev/nvidia-caps/nvidia-cap{number}" for number in numbers}
        variables[found.uuid] = made
    with (
        daemon(node, large.uuid).client(**variables[large.uuid]) as one,
        daemon(node, small.uuid).client(**variables[small.uuid]) as other,
    ):
        for program in (one, other):
            program.send("context(); answer([enabled(), sms()])")
        assert one.answer() == [1, 30], "half of 60"
        assert other.answer() == [1, 16], "half of 32"
        os.kill(daemon(node, small.uuid).server, signal.SIGKILL)
        node.until(lambda: other.ask("allocate(1)") == RPC_FAILURE)
        assert one.ask("allocate(1)") == 0, "the other instance is not concerned"


def test_a_gpu_in_mig_mode_is_not_divided_but_its_mig_devices_are(node, cluster):
    large, small = simulator.mig_state(node.machine).instances
    gpu, whole = (device.uuid for device in node.machine.devices)
    start(node, cluster, "--mps", f"{gpu},{small.uuid}")
    found = {device.uuid: device.mps for device in cluster.published.devices}
    assert found == {large.uuid: False, small.uuid: True, whole: False}
    assert (
        f"--mps: {gpu} is not divided by MPS, since it is in MIG mode; name its MIG devices: "
        f"{large.uuid}, {small.uuid}\n"
    ) in node.log.read_text()


def test_daemon_ends_with_its_mig_device_and_that_of_the_other_stays(node, cluster):
    large, small = simulator.mig_state(node.machine).instances
    start(node, cluster, "--mps", "all", "--recover-seconds", "1")
    made, _, pod_there = started(node, cluster, "a", (50, 8), large.uuid)
    gone = daemon(node, small.uuid).pid
    with daemon(node, large.uuid).client(**made) as program:
        program.send("context(); answer(sms())")
        assert program.answer() == 30
        file = node.machine.folder / mig.FILE
        lines = file.read_text().splitlines(keepends=True)
        (file.parent / ".new").write_text("".join(x for x in lines if small.uuid not in x))
        (file.parent / ".new").replace(file)
        node.until(lambda: not daemon(node, small.uuid).folder.exists())
        node.until(lambda: not Path(f"/proc/{gone}").exists())
        node.until(lambda: len(node.kubelet.healthy(VCORE)) == 200)
        assert program.ask("allocate(1)") == 0
    assert cluster.events(pod_there) == []
