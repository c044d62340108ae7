"""Changes of devices and drivers under running pods."""

import shutil
import subprocess

import pytest
import rig
import simulated_node
from agents import UNIT, container

from pyvgpu.kube import apiserver
from pyvgpu.simulation import simulator

pytestmark = [pytest.mark.e2e, pytest.mark.alone]

STAYS = "/client; trap 'exit 0' TERM; while true; do sleep 0.1; done"
NEW = "999.2"


def executed(space, pod, *command):
    whole = ["kubectl", "--namespace", space.name, "exec", pod, "--", *command]
    return subprocess.run(whole, check=True, capture_output=True, text=True).stdout


def install(agent, release, other):
    simulated_node.rename_driver(agent.root, other, release)
    before = agent.log.read_text().count(f"found driver {release}")
    agent.wait(lambda: agent.log.read_text().count(f"found driver {release}") > before)
    agent.wait_for_offers()


@pytest.fixture
def upgraded(agent):
    old = simulator.DRIVER_RELEASE
    yield lambda: install(agent, NEW, old)
    install(agent, old, NEW)


def test_new_driver_is_for_new_pods_while_running_pods_keep_theirs(space, agent, upgraded):
    space.create("pods", rig.pod("old", container("a", 30, 8, STAYS), restartPolicy="Always"))
    space.until("pods", "old", lambda current: rig.runs(current, "a"))
    upgraded()
    space.create("pods", rig.pod("new", container("a", 30, 8, STAYS), restartPolicy="Always"))
    space.until("pods", "new", lambda current: rig.runs(current, "a"))
    for pod, release in (("old", simulator.DRIVER_RELEASE), ("new", NEW)):
        assert f"libcuda.so.{release}" in executed(space, pod, "ls", "-R", "/usr/local/pyvgpu")
        assert f"total {8 * UNIT}\n" in executed(space, pod, "/client")
    now = space.read("pods", "old")
    assert rig.state(now, "a")["restartCount"] == 0
    for pod in ("old", "new"):
        path = space.path("pods", pod)
        space.server.call("DELETE", path, body={"gracePeriodSeconds": 0})
    agent.until_idle()


def vcore(agent):
    return agent.allocatable()["pyvgpu.io/vcore"]


@pytest.fixture
def impatient(running):
    """An agent with a short bind deadline."""
    running.become("--bind-deadline", "5")
    yield running
    simulator.set_faults(running.machine)


def test_pod_whose_device_is_lost_before_its_start_is_evicted_or_gets_an_event(space, impatient):
    agent = impatient
    waits = container("i", 30, 8, "until [ -e /go/on ]; do sleep 0.1; done")
    folder = agent.folder / "go"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    waits["volumeMounts"] = [{"name": "go", "mountPath": "/go"}]
    spec = {
        "initContainers": [waits],
        "volumes": [{"name": "go", "hostPath": {"path": str(folder)}}],
    }
    template = rig.pod("p", container("a", 30, 8), **spec)
    space.create("pods", rig.pod("bare", container("a", 30, 8), **spec))
    space.create("jobs", rig.job("j", template, backoffLimit=0))
    space.until("pods", "bare", lambda pod: rig.runs(pod, "i"))
    agent.wait(lambda: [pod for pod in space.pods_of("j") if rig.runs(pod, "i")])
    simulator.set_faults(agent.machine, "lost 0", "lost 1")
    agent.wait(lambda: vcore(agent) == "0")
    (folder / "on").touch()
    space.until_event("bare", "VGPURefused", "device is unhealthy")
    space.until("jobs", "j", lambda job: rig.condition(job, "Failed"))
    assert not rig.has_ended(space.read("pods", "bare"))


@pytest.fixture
def other_plugin(agent):
    """Set the node's capacity of another plugin's GPUs; None removes it."""

    def count(number):
        body = {"status": {"capacity": {"nvidia.com/gpu": number}}}
        path = f"/api/v1/nodes/{agent.place.node}/status"
        rig.as_admin().server.call("PATCH", path, body=body, kind=apiserver.MERGE_PATCH)

    yield count
    count(None)
    agent.wait_for_offers()


def test_another_gpu_plugin_stops_new_pods_and_keeps_running_ones(space, agent, other_plugin):
    space.create("pods", rig.pod("old", container("a", 30, 8, STAYS), restartPolicy="Always"))
    space.until("pods", "old", lambda pod: rig.runs(pod, "a"))
    other_plugin("2")
    agent.wait(lambda: vcore(agent) == "30")
    rig.as_admin().until_event(agent.place.node, "VGPUNotOffered", "nvidia.com/gpu: 2")
    assert f"total {8 * UNIT}\n" in executed(space, "old", "/client")
    other_plugin("0")
    agent.wait(lambda: vcore(agent) == "200")
    rig.as_admin().until_event(agent.place.node, "VGPUOffered")
    assert rig.state(space.read("pods", "old"), "a")["restartCount"] == 0
    space.server.call("DELETE", space.path("pods", "old"), body={"gracePeriodSeconds": 0})
    agent.until_idle()


def test_device_in_mig_mode_is_not_offered(agent):
    simulator.set_faults(agent.machine, "mig 0")
    try:
        agent.wait(lambda: vcore(agent) == "100")
    finally:
        simulator.set_faults(agent.machine)
    agent.wait_for_offers()
