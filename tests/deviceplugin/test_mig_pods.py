"""Pods that request MIG instances get their own, which live as long as the pods."""

import contextlib
import json
import re
import signal

import cluster_of_one
import mig_node
import node_process
import pytest
import simulated_node
from fake_kubelet import VCORE, VMEMORY, StartError, container, pod

from pyvgpu import names
from pyvgpu.deviceplugin.devices import health
from pyvgpu.simulation import mig, simulator

pytestmark = pytest.mark.slow


@pytest.fixture(name="node")
def fixture_node(kubelet, tmp_path):
    """A node with a GPU in MIG mode without instances, and another GPU."""
    machine = simulator.open_machine("h100:mig=none,t4", tmp_path / "machines")
    root = simulated_node.make(tmp_path / "root", simulated_node.nodes(2))
    mig_node.capabilities(root / "proc")
    with contextlib.ExitStack() as stack:
        yield node_process.Node(kubelet, machine, root, tmp_path, stack)


def start(node, cluster, *options):
    return node.start("--kubeconfig", cluster.kubeconfig, "--dynamic-mig", "all", *options)


def admitted(node, cluster, name, need, annotations):
    one = node.kubelet.admit(pod(name, container("x", *need)))
    cluster.add(one, annotations)
    return one


def instances(node):
    return {(one.profile, one.uuid) for one in simulator.mig_state(node.machine).instances}


def of_profile(name):
    return {names.MIG_ANNOTATION: name}


def until_registered(node, agents):
    """Wait until so many agents have registered in turn: kubelet keeps the offers of the last."""
    node.until(lambda: node.log.read_text().count("registered pyvgpu.io/vmemory") == agents)
    node.kubelet.until_offered()


HARDWARE = {names.ISOLATION_ANNOTATION: "hardware"}


def test_pod_gets_an_instance_that_lives_as_long_as_the_pod(node, cluster):
    kubelet = node.kubelet
    agent = start(node, cluster)
    kubelet.until_offered()
    assert len(kubelet.healthy(VCORE)) == 200
    one = admitted(node, cluster, "p", (10, 4), of_profile("1g.10gb"))
    answer = kubelet.start_container(one, "x")
    ((profile, uuid),) = instances(node)
    assert profile == "1g.10gb"
    edits = node.specification(answer)
    (found,) = [one for one in simulator.mig_state(node.machine).instances if one.uuid == uuid]
    devices = {one["path"] for one in edits["deviceNodes"]}
    assert {path for path in devices if "nvidia-cap" in path} == {
        f"/dev/nvidia-caps/nvidia-cap{minor}" for minor in mig_node.minors(found.gpu_instance)
    }, "its own two"
    assert "/dev/nvidia0" in devices
    assert "/dev/nvidia1" not in devices
    assert all(mount["containerPath"] != "/etc/pyvgpu" for mount in edits["mounts"])

    node_process.ended(agent, signal.SIGKILL)
    agent = start(node, cluster)
    until_registered(node, 2)
    assert kubelet.start_container(one, "x") == answer, "the container is restarted"
    assert instances(node) == {("1g.10gb", uuid)}

    node_process.ended(agent, signal.SIGKILL)
    kubelet.remove(one)
    start(node, cluster)
    node.until(lambda: not instances(node))
    assert (node.machine.folder / mig.FILE).read_text() == "gpu 0\n", "the mode stays"


def test_smallest_profile_for_the_request_and_shares_stay_off_the_gpu(node, cluster):
    kubelet = node.kubelet
    start(node, cluster)
    kubelet.until_offered()
    kubelet.start_container(admitted(node, cluster, "a", (20, 32), HARDWARE), "x")
    assert {name for name, _ in instances(node)} == {"2g.20gb"}
    share = admitted(node, cluster, "b", (60, 8), {})
    answer = kubelet.start_container(share, "x")
    assert node.quota(answer)[2] == node.machine.devices[1].uuid
    cluster_sees = cluster.published.devices[0]
    assert {"1g.10gb", "1g.10gb+me", "7g.80gb"} <= {
        profile.name for profile in cluster_sees.profiles
    }
    assert cluster_sees.taken == ()


def test_requests_are_placed_until_none_fits_and_the_next_waits(node, cluster):
    kubelet = node.kubelet
    start(node, cluster)
    kubelet.until_offered()
    first = admitted(node, cluster, "a", (45, 100), of_profile("3g.40gb"))
    kubelet.start_container(first, "x")
    kubelet.start_container(admitted(node, cluster, "b", (45, 100), HARDWARE), "x")
    late = admitted(node, cluster, "c", (10, 4), of_profile("1g.10gb"))
    with pytest.raises(StartError, match=r"no place for 1g.10gb beside 3g.40gb@0, 3g.40gb@4"):
        kubelet.start_container(late, "x")
    kubelet.remove(first)
    node.until(lambda: len(instances(node)) == 1)
    kubelet.start_container(late, "x")
    assert sorted(name for name, _ in instances(node)) == ["1g.10gb", "3g.40gb"]


@pytest.mark.parametrize(
    ("need", "annotations", "words"),
    [
        ((10, 4), of_profile("5g.50gb"), "has no MIG profile 5g.50gb; it has 1g.10gb"),
        ((50, 4), of_profile("1g.10gb"), "it has 12 vcore and 9.8GiB"),
        ((10, 4), of_profile("big"), "must be the name of a MIG profile"),
        ((200, 0), HARDWARE, "a container gets one instance"),
    ],
    ids=["profile", "figures", "word", "devices"],
)
def test_invalid_requests_are_refused_with_what_is_valid(node, cluster, need, annotations, words):
    start(node, cluster)
    node.kubelet.until_offered()
    if need[0] == 200:
        node.until(lambda: len(node.kubelet.healthy(VCORE)) == 200)
    one = admitted(node, cluster, "p", need, annotations)
    with pytest.raises(StartError, match=re.escape(words)):
        node.kubelet.start_container(one, "x")
    assert instances(node) == set()


def test_without_the_option_the_gpu_is_reported_as_before(node, cluster):
    node.start("--kubeconfig", cluster.kubeconfig)
    node.kubelet.until_offered()
    assert len(node.kubelet.healthy(VCORE)) == 100
    one = admitted(node, cluster, "p", (10, 4), of_profile("1g.10gb"))
    with pytest.raises(StartError, match="--dynamic-mig"):
        node.kubelet.start_container(one, "x")
    assert instances(node) == set()


def test_lost_checkpoint_is_recovered_with_the_instance(node, cluster):
    kubelet = node.kubelet
    agent = start(node, cluster)
    kubelet.until_offered()
    one = admitted(node, cluster, "p", (10, 4), of_profile("1g.10gb"))
    answer = kubelet.start_container(one, "x")
    before = instances(node)
    node_process.ended(agent, signal.SIGKILL)
    for file in node.state.glob("grants*"):
        file.unlink()
    start(node, cluster)
    until_registered(node, 2)
    assert kubelet.start_container(one, "x") == answer
    assert instances(node) == before


def test_xid_of_an_instance_leaves_the_gpu_healthy(node, cluster):
    kubelet = node.kubelet
    start(node, cluster, "--listen", "127.0.0.1:0", "--recover-seconds", "3600")
    kubelet.until_offered()
    kubelet.start_container(admitted(node, cluster, "p", (10, 4), of_profile("1g.10gb")), "x")
    (found,) = simulator.mig_state(node.machine).instances

    def states():
        return {
            one["uuid"]: one["state"] for one in json.loads(node.ask("/status.json")[1])["devices"]
        }

    gpu = node.machine.devices[0].uuid
    node.until(lambda: states()[gpu] == "healthy")
    simulator.set_faults(node.machine, f"xid 0 79 {found.gpu_instance} 0", "xid 1 79")
    node.until(lambda: states()[node.machine.devices[1].uuid] == "unhealthy")
    assert states()[gpu] == "healthy"


def states(node):
    return {
        one["uuid"]: (one["state"], one["why"])
        for one in json.loads(node.ask("/status.json")[1])["devices"]
    }


def taken_out_of_mig_mode(node, cluster):
    """Start an agent after a reload of the driver; return the pod that has an instance."""
    agent = start(node, cluster)
    node.kubelet.until_offered()
    one = admitted(node, cluster, "p", (10, 4), of_profile("1g.10gb"))
    node.kubelet.start_container(one, "x")
    node_process.ended(agent, signal.SIGKILL)
    (node.machine.folder / mig.FILE).write_text("")
    start(node, cluster, "--listen", "127.0.0.1:0", "--recover-seconds", "1")
    until_registered(node, 2)
    return one


def test_gpu_that_a_reload_of_the_driver_took_out_of_mig_mode_is_unhealthy(node, cluster):
    """Hopper forgets the mode with its driver; a pod's instance is recorded, so it is no GPU."""
    kubelet = node.kubelet
    one = taken_out_of_mig_mode(node, cluster)
    gpu = node.machine.devices[0].uuid
    node.until(lambda: states(node)[gpu] == ("unhealthy", health.MIG_OFF))
    with pytest.raises(StartError, match="it has left MIG mode"):
        kubelet.start_container(one, "x")

    (node.machine.folder / mig.FILE).write_text("gpu 0\n")
    node.until(lambda: states(node)[gpu] == ("healthy", ""))
    kubelet.start_container(one, "x")
    ((profile, _),) = instances(node)
    assert profile == "1g.10gb", "created again at its place"


def test_gpu_out_of_mig_mode_is_a_gpu_again_when_no_pod_has_an_instance_on_it(node, cluster):
    kubelet = node.kubelet
    one = taken_out_of_mig_mode(node, cluster)
    gpu = node.machine.devices[0].uuid
    node.until(lambda: states(node)[gpu][0] == "unhealthy")
    kubelet.remove(one)
    node.until(lambda: states(node)[gpu] == ("healthy", ""))
    # The agent shows a state before kubelet has the list that follows from it.
    kubelet.until(lambda: len(kubelet.healthy(VCORE)) == 200)
    kubelet.until(lambda: len(kubelet.healthy(VMEMORY)) >= 200)  # the other GPU has less
    share = admitted(node, cluster, "q", (60, 200), {})
    assert node.quota(kubelet.start_container(share, "x"))[2] == gpu


def labelled(cluster, labels):
    path = f"/api/v1/nodes/{cluster_of_one.NODE}"
    found = cluster.api.read(path)
    cluster.api.put(path, {**found, "metadata": {**found["metadata"], "labels": labels}})


def test_no_instance_is_created_beside_nvidias_mig_manager(node, cluster):
    kubelet = node.kubelet
    labelled(cluster, {"nvidia.com/mig.config": "all-1g.10gb"})
    start(node, cluster, "--listen", "127.0.0.1:0")
    kubelet.until_offered()
    gpu = node.machine.devices[0].uuid
    node.until(lambda: states(node)[gpu][0] == "unhealthy")
    assert "pods get no new MIG instances on GPU" in node.log.read_text()
    one = admitted(node, cluster, "p", (10, 4), of_profile("1g.10gb"))
    with pytest.raises(StartError):
        kubelet.start_container(one, "x")
    assert instances(node) == set()

    labelled(cluster, {})
    node.until(lambda: states(node)[gpu] == ("healthy", ""))
    kubelet.start_container(one, "x")
    assert {profile for profile, _ in instances(node)} == {"1g.10gb"}

    labelled(cluster, {"nvidia.com/mig.config": "all-disabled"})
    node.until(lambda: "(label nvidia.com/mig.config=all-disabled)" in node.log.read_text())
    late = admitted(node, cluster, "q", (10, 4), of_profile("1g.10gb"))
    with pytest.raises(StartError, match="NVIDIA's MIG manager divides the GPUs of this node"):
        kubelet.start_container(late, "x")
    assert len(instances(node)) == 1, "that of the running pod stays"
