"""MIG instances and MPS for pods of a real cluster."""

import os
import signal

import agents
import mig_agents
import mig_node
import pytest
import rig
from agents import UNIT, container

from pyvgpu import names
from pyvgpu.deviceplugin.devices import mps_daemons
from pyvgpu.simulation import simulator

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

VCORE = names.VCORE_RESOURCE
STAYS = "trap 'exit 0' TERM; while true; do sleep 0.1; done"
SEES = f"ls /dev/nvidia-caps > /dev/termination-log; {STAYS}"


@pytest.fixture(scope="module", name="own")
def fixture_own(running, tmp_path_factory):
    """An agent on a node with a GPU in MIG mode without instances, and a GPU that MPS divides."""
    folder = tmp_path_factory.mktemp("own")
    with mig_agents.in_place_of(running, folder, "h100:mig=none,h100") as made:
        begin(made)
        yield made


@pytest.fixture(name="divided")
def fixture_divided(own):
    """That agent, without grants and instances of earlier tests."""
    own.until_idle()
    own.wait(lambda: not instances(own))
    return own


def begin(made):
    """Start the agent; return when kubelet offers both GPUs."""
    uuid = made.machine.devices[1].uuid
    before = made.registrations()
    made.begin("--dynamic-mig", "all", "--mps", uuid)
    made.wait(lambda: made.registrations() == before + 2)
    made.wait(lambda: made.allocatable().get(VCORE) == "200")


def pod(name, script, annotations, vcore=10, **spec):
    made = rig.pod(name, container("a", vcore, 8, script), **spec)
    made["metadata"]["annotations"] = annotations
    return made


def instances(agent):
    return simulator.mig_state(agent.machine).instances


def test_pod_gets_a_mig_instance_that_outlives_a_killed_agent(space, divided):
    space.create("pods", pod("p", SEES, {names.MIG_ANNOTATION: "1g.10gb"}))
    space.until("pods", "p", lambda now: rig.runs(now, "a"))
    (made,) = instances(divided)
    assert made.profile == "1g.10gb"

    divided.stop(signal.SIGKILL)
    begin(divided)
    assert instances(divided) == (made,)
    space.create("pods", pod("q", SEES, {names.ISOLATION_ANNOTATION: "hardware"}, 40))
    space.until("pods", "q", lambda now: rig.runs(now, "a"))
    assert {one.profile for one in instances(divided)} == {"1g.10gb", "3g.40gb"}

    divided.stop(signal.SIGKILL)
    space.server.call("DELETE", space.path("pods", "q"), body={"gracePeriodSeconds": 0})
    begin(divided)
    divided.wait(lambda: instances(divided) == (made,))
    space.server.call("DELETE", space.path("pods", "p"), body={"gracePeriodSeconds": 0})
    divided.wait(lambda: not instances(divided))


def test_container_has_the_capabilities_of_its_own_instance(space, divided):
    annotations = {names.MIG_ANNOTATION: "1g.10gb"}
    space.create("pods", pod("stays", STAYS, annotations))
    space.until("pods", "stays", lambda now: rig.runs(now, "a"))
    (first,) = instances(divided)
    sees = "ls /dev/nvidia-caps > /dev/termination-log"
    space.create("pods", pod("p", sees, annotations))
    ended = space.until("pods", "p", rig.has_ended)
    (status,) = ended["status"]["containerStatuses"]
    seen = status["state"]["terminated"]["message"].split()
    possible = {
        tuple(sorted(f"nvidia-cap{minor}" for minor in mig_node.minors(number)))
        for number in range(15)
        if number != first.gpu_instance
    }
    assert tuple(sorted(seen)) in possible


def test_profile_that_the_gpu_lacks_is_refused_with_the_valid_ones(space, divided):
    space.create("pods", pod("p", STAYS, {names.MIG_ANNOTATION: "5g.50gb"}))
    space.until_event("p", "VGPURefused", "has no MIG profile 5g.50gb; it has 1g.10gb")
    assert not instances(divided)


def test_pods_share_a_device_by_mps_and_hear_of_its_failure(space, divided):
    annotations = {names.ISOLATION_ANNOTATION: "mps"}
    space.create("pods", pod("stays", f"/client; {STAYS}", annotations, 30))
    space.until("pods", "stays", lambda now: rig.runs(now, "a"))
    space.create("pods", pod("p", "", annotations, 30))
    seen = agents.said(space.until("pods", "p", rig.has_ended), "a")
    assert int(seen["total"]) == 8 * UNIT, "the shim's quota is in force"
    (daemon,) = (divided.folder / "run" / mps_daemons.FOLDER).glob("*/nvidia-cuda-mps-control.pid")
    before = int(daemon.read_text())
    os.kill(before, signal.SIGKILL)
    space.until_event("stays", "VGPUProgramsLost", "was started again")
    divided.wait(lambda: daemon.exists() and int(daemon.read_text()) != before)
    space.create("pods", pod("q", "", annotations, 30))
    ended = space.until("pods", "q", rig.has_ended)
    assert rig.phase(ended) == "Succeeded", ended["status"]


def test_programs_of_a_deleted_pod_are_terminated_before_the_kill(space, divided):
    script = "trap '' TERM; /holder 512 100 & wait"
    space.create("pods", pod("p", script, {names.ISOLATION_ANNOTATION: "mps"}, 30))
    space.until("pods", "p", lambda now: rig.runs(now, "a"))
    divided.wait(lambda: "holds" in agents.logs(space, "p", "a"))
    space.server.call("DELETE", space.path("pods", "p"), body={"gracePeriodSeconds": 8})
    divided.wait(lambda: "MPS terminated process" in divided.log.read_text())
    divided.until_idle()
