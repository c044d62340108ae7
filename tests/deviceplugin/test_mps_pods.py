"""Pods with the isolation mps share a device by its MPS daemon, which the agent runs."""

import contextlib
import os
import re
import signal
import tempfile
from pathlib import Path

import mps_room
import node_process
import pytest
import simulated_node
from fake_kubelet import VCORE, VMEMORY, StartError, container, pod

from pyvgpu import names, quota, region
from pyvgpu.deviceplugin.devices import mps_daemons
from pyvgpu.share import MPS_SERVER_BYTES
from pyvgpu.simulation import simulator

pytestmark = pytest.mark.slow

MPS = {names.ISOLATION_ANNOTATION: "mps"}
UNIT = 256 << 20


@pytest.fixture(name="node")
def fixture_node(kubelet, tmp_path):
    """A node with two GPUs, of which MPS divides the first."""
    machine = simulator.open_machine("h100:2", tmp_path / "machines")
    root = simulated_node.make(tmp_path / "root", simulated_node.nodes(2))
    with contextlib.ExitStack() as stack:
        node = node_process.Node(kubelet, machine, root, tmp_path, stack)
        # A socket's path is short.
        node.files = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mps-")))
        stack.callback(end, node)
        yield node


def daemon(node):
    return mps_room.Daemon(node.files / mps_daemons.FOLDER / uuid(node), node.machine)


def end(node):
    if daemon(node).folder.exists():
        daemon(node).run("quit")


def uuid(node):
    return node.machine.devices[0].uuid


def start(node, cluster, *options):
    process = node.start("--kubeconfig", cluster.kubeconfig, "--mps", uuid(node), *options)
    node.until(lambda: cluster.text and not cluster.published.devices[0].unhealthy)
    until_offered(node)
    return process


def until_offered(node):
    """Wait until kubelet sees all of both devices, but for the memory of the MPS server."""
    units = sum(device.memory_bytes // UNIT for device in node.machine.devices)
    node.until(lambda: len(node.kubelet.healthy(VCORE)) == 200)
    node.until(lambda: units - len(node.kubelet.healthy(VMEMORY)) <= 1)


def admitted(node, cluster, name, need, annotations=MPS):
    one = node.kubelet.admit(pod(name, container("x", *need)))
    cluster.add(one, annotations)
    return one


def variables(node, answer):
    """Return the environment of a container, whose mounts are at their places on the node."""
    edits = node.specification(answer)
    sources = {mount["containerPath"]: mount["hostPath"] for mount in edits["mounts"]}
    found = dict(each.split("=", 1) for each in edits["env"])
    return {**found, "CUDA_MPS_PIPE_DIRECTORY": sources[found["CUDA_MPS_PIPE_DIRECTORY"]]}


def client(node, answer):
    return daemon(node).client(**variables(node, answer))


def until_seen(node):
    """Wait until the agent knows the server."""
    node.until(lambda: f"the server has pid {daemon(node).server}\n" in node.log.read_text())


def limits(node, answer):
    sources = {
        mount["containerPath"]: mount["hostPath"] for mount in node.specification(answer)["mounts"]
    }
    file = os.open(Path(sources["/etc/pyvgpu"]) / names.QUOTA_FILE, os.O_RDONLY)
    try:
        (found,) = region.read_limits(file).devices
    finally:
        os.close(file)
    return found


def test_pods_share_the_device_by_its_daemon_and_others_stay_off(node, cluster):
    kubelet = node.kubelet
    start(node, cluster)
    first = kubelet.start_container(admitted(node, cluster, "a", (50, 8)), "x")
    other = kubelet.start_container(admitted(node, cluster, "b", (25, 8)), "x")
    quotas = kubelet.start_container(admitted(node, cluster, "c", (50, 8), {}), "x")
    assert node.quota(quotas)[2] == node.machine.devices[1].uuid
    assert limits(node, quotas).isolation is quota.Isolation.QUOTA
    for answer in (first, other):
        assert limits(node, answer).uuid == uuid(node)
        assert limits(node, answer).isolation is quota.Isolation.MPS
    assert variables(node, first)["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=2048M"
    mounts = {mount["containerPath"]: mount for mount in node.specification(first)["mounts"]}
    assert mounts["/dev/shm"]["hostPath"] == "/dev/shm"
    with client(node, first) as one, client(node, other) as two:
        for program in (one, two):
            program.send("context(); answer([enabled(), sms()])")
        assert one.answer() == [1, 66], "half of 132"
        assert two.answer() == [1, 32]
        assert one.pid != two.pid
        # Containers run as any uid, and one of another uid must not wait without end.
        command = Path(f"/proc/{daemon(node).pid}/cmdline").read_bytes().split(b"\0")
        assert b"-multiuser-server" in command


def test_audit_does_not_find_the_server(node, cluster):
    """It has memory on the device, in the agent's own container, and serves all of its pods."""
    start(node, cluster)
    answer = node.kubelet.start_container(admitted(node, cluster, "a", (50, 8)), "x")
    with client(node, answer) as program:
        program.send("context(); answer(enabled())")
        assert program.answer() == 1
        server = daemon(node).server
        said = "found that process {} of the node itself uses gpu0"
        node.until(lambda: said.format(program.pid) in node.log.read_text())
        assert said.format(server) not in node.log.read_text()


def test_daemon_that_ends_is_started_again_and_its_pods_hear_of_it(node, cluster):
    kubelet = node.kubelet
    start(node, cluster)
    one = admitted(node, cluster, "a", (50, 8))
    answer = kubelet.start_container(one, "x")
    with client(node, answer) as program:
        program.send("context(); answer(enabled())")
        assert program.answer() == 1
        until_seen(node)
        os.kill(daemon(node).server, signal.SIGKILL)
        node.until(lambda: any("MPS server has ended" in text for text in cluster.events(one)))
        before = daemon(node).pid
        os.kill(before, signal.SIGKILL)
        node.until(lambda: any("was started again" in text for text in cluster.events(one)))
    assert daemon(node).pid != before
    with client(node, answer) as program:
        program.send("context(); answer(enabled())")
        assert program.answer() == 1


def test_servers_and_daemons_that_end_one_after_the_other_are_replaced_each_time(node, cluster):
    kubelet = node.kubelet
    start(node, cluster)
    answer = kubelet.start_container(admitted(node, cluster, "a", (50, 8)), "x")

    def said(text, times):
        node.until(lambda: node.log.read_text().count(text) == times)

    for times in (1, 2):
        with client(node, answer) as program:
            program.send("context(); answer(enabled())")
            assert program.answer() == 1
            until_seen(node)
            os.kill(daemon(node).server, signal.SIGKILL)
            said("the MPS server has ended", times)
    for times in (1, 2):
        os.kill(daemon(node).pid, signal.SIGKILL)
        said("the MPS control daemon had ended and was started again", times)
    with client(node, answer) as program:
        program.send("context(); answer(enabled())")
        assert program.answer() == 1


def test_fatal_error_of_one_program_makes_the_device_unhealthy_until_all_are_gone(node, cluster):
    kubelet = node.kubelet
    start(node, cluster)
    one = admitted(node, cluster, "a", (50, 8))
    answer = kubelet.start_container(one, "x")
    with client(node, answer) as program, client(node, answer) as other:
        for each in (program, other):
            each.send("context(); answer(enabled())")
            assert each.answer() == 1
        program.send("answer(crash())")
        assert program.answer() != 0
        node.until(lambda: cluster.published.devices[0].unhealthy == mps_daemons.FAULT)
        node.until(lambda: any(mps_daemons.FAULT in text for text in cluster.events(one)))
        late = admitted(node, cluster, "b", (10, 8))
        with pytest.raises(StartError, match="a fatal error of one program"):
            kubelet.start_container(late, "x")
    node.until(lambda: not cluster.published.devices[0].unhealthy)
    node.until(lambda: any("healthy again" in text for text in cluster.events(one)))
    kubelet.start_container(late, "x")


def test_next_agent_adopts_the_daemon_and_an_idle_one_ends_with_the_agent(node, cluster):
    kubelet = node.kubelet
    agent = start(node, cluster)
    one = admitted(node, cluster, "a", (50, 8))
    answer = kubelet.start_container(one, "x")
    with client(node, answer) as program:
        program.send("context(); answer(enabled())")
        assert program.answer() == 1
        pid = daemon(node).pid
        assert node_process.ended(agent) == 0
        agent = start(node, cluster)
        assert daemon(node).pid == pid
        assert kubelet.start_container(one, "x") == answer
        program.send("answer(allocate(1))")
        assert program.answer() == 0
        assert not any("healthy again" in text for text in cluster.events(one))
    kubelet.remove(one)
    node.until(lambda: "grants.manager: ended" in node.log.read_text())
    assert node_process.ended(agent) == 0
    assert not daemon(node).folder.exists()


def test_next_agent_tells_pods_whose_daemon_was_killed_with_the_former(node, cluster):
    agent = start(node, cluster)
    one = admitted(node, cluster, "a", (50, 8))
    answer = node.kubelet.start_container(one, "x")
    with client(node, answer) as program:
        program.send("context(); answer(enabled())")
        assert program.answer() == 1
        node_process.ended(agent, signal.SIGKILL)
        os.kill(daemon(node).pid, signal.SIGKILL)
        start(node, cluster)
        node.until(lambda: any("was started again" in text for text in cluster.events(one)))


def test_device_with_other_containers_is_not_divided_before_they_are_gone(node, cluster):
    kubelet = node.kubelet
    agent = node.start("--kubeconfig", cluster.kubeconfig)
    until_offered(node)
    held = admitted(node, cluster, "a", (50, 8), {names.DEVICE_UUIDS_ANNOTATION: uuid(node)})
    kubelet.start_container(held, "x")
    node_process.ended(agent, signal.SIGKILL)
    agent = start(node, cluster)
    assert not cluster.published.devices[0].mps
    late = admitted(node, cluster, "b", (10, 8))
    with pytest.raises(StartError, match=re.escape("is not one that MPS divides (--mps names")):
        kubelet.start_container(late, "x")
    kubelet.remove(held)
    node.until(lambda: "grants.manager: ended" in node.log.read_text())
    node_process.ended(agent, signal.SIGKILL)
    start(node, cluster)
    node.until(lambda: cluster.published.devices[0].mps)
    kubelet.start_container(late, "x")


@pytest.mark.parametrize(
    ("need", "annotations", "words"),
    [
        pytest.param((100, 0), {}, "whole devices are requested", id="whole"),
        pytest.param(
            (50, 16),
            {names.DEVICE_COUNT_ANNOTATION: "2"},
            "shares of 2 devices are requested",
            id="several",
        ),
    ],
)
def test_invalid_requests_are_refused_with_what_is_valid(node, cluster, need, annotations, words):
    start(node, cluster)
    one = admitted(node, cluster, "p", need, MPS | annotations)
    with pytest.raises(StartError, match=words + ".*valid would be 1 to 99 vcore"):
        node.kubelet.start_container(one, "x")


def test_memory_of_the_server_is_set_aside(node, cluster):
    start(node, cluster)
    divided, other = cluster.published.devices
    assert (divided.mps, other.mps) == (True, False)
    assert other.memory_bytes - divided.memory_bytes == MPS_SERVER_BYTES


def test_device_whose_compute_mode_forbids_mps_is_unhealthy(node, cluster):
    simulator.set_faults(node.machine, "compute_mode 0 2")
    node.start("--kubeconfig", cluster.kubeconfig, "--mps", "all")
    node.until(lambda: cluster.text)
    node.until(lambda: "PROHIBITED; must be DEFAULT" in cluster.text)


def test_driver_without_the_daemon_is_unhealthy(node, cluster):
    for file in node.root.rglob("nvidia-cuda-mps-control"):
        file.unlink()
    node.start("--kubeconfig", cluster.kubeconfig, "--mps", "all")
    node.until(lambda: cluster.text)
    node.until(lambda: "there is no nvidia-cuda-mps-control" in cluster.text)
