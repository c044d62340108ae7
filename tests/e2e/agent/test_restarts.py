"""All of a node starts again, in each order, and the node itself: pods keep what they have."""

import itertools
import json
import os
import shutil
import signal
import subprocess

import agents
import killing
import pytest
import rig
from agents import UNIT, container

from pyvgpu.deviceplugin import state

pytestmark = [pytest.mark.e2e, pytest.mark.alone]

STAYS = "/client; trap 'exit 0' TERM; while true; do sleep 0.1; done"
SIZES = (4, 8, 12)  # units of the pods that stay
SERVERS = ("agent", "kubelet", "containerd")
ORDERS = list(itertools.permutations(SERVERS))
SHORT = "PYVGPU_SOAK_PODS" not in os.environ  # two of the orders are in every run of the suite


@pytest.fixture
def staying(space, agent):
    """Pods that run, and go on."""
    for units in SIZES:
        create(space, units)
    for units in SIZES:
        space.until("pods", f"p{units}", lambda it: rig.runs(it, "a"))
        sees(space, agent, units)
    return space


def create(space, units):
    pod = rig.pod(f"p{units}", container("a", 20, units, STAYS), restartPolicy="Always")
    space.create("pods", pod)


def sees(space, agent, units):
    """Wait until the container that runs now has said what it sees."""
    agent.wait(lambda: "returned 1" in agents.logs(space, f"p{units}", "a"))
    assert f"total {units * UNIT}\n" in agents.logs(space, f"p{units}", "a")


def runs_again(space, agent, units, before):
    """Wait until a container runs that is none of those *before*, and see what it sees."""
    space.until(
        "pods",
        f"p{units}",
        lambda it: rig.runs(it, "a") and rig.state(it, "a")["containerID"] not in before,
    )
    sees(space, agent, units)


def ids(space):
    return {rig.state(it, "a").get("containerID") for it in space.pods()}


@pytest.mark.parametrize("order", ORDERS[:: len(ORDERS) - 1] if SHORT else ORDERS, ids="-".join)
def test_containers_start_again_on_what_they_had(staying, agent, runtime, order):
    killer = killing.Killer(agent, 1, (0, 0))
    grants, before = agent.present(), ids(staying)
    killer.kill(list(order))
    assert ids(staying) == before  # who ran goes on
    for pod in staying.pods():
        (seen,) = runtime.seen(pod["metadata"]["uid"])
        runtime.stop(seen.id, 1, kill=True)
    for units in SIZES:
        runs_again(staying, agent, units, before)
    assert agent.present() == grants


def test_after_the_node_itself_has_started_again_containers_have_what_they_had(staying, agent):
    grants, before = agent.present(), ids(staying)
    agent.stop(signal.SIGKILL)
    socket = killing.KUBELET_SOCKET.stat().st_ctime
    killing.cluster("stop", "kubelet")
    end_all_tasks()
    killing.cluster("stop", "containerd")
    shutil.rmtree(agent.folder / "run")  # what lies in memory is gone
    for file in agent.specifications.glob("pyvgpu.io-grant-*"):
        file.unlink()
    killing.cluster("start", "containerd")
    agent.begin()
    killing.cluster("start", "kubelet")
    agent.wait(lambda: killing.serves_since(socket))
    agent.wait_for_offers()
    refused = [units for units in SIZES if was_refused(staying, units)]
    for units in refused:
        replace(staying, units)
    for units in SIZES:
        runs_again(staying, agent, units, before)
    assert refused or agent.present() == grants


def damaged(content):
    """Return kubelet's checkpoint with a wrong checksum, so that kubelet does not believe it."""
    document = json.loads(content)
    return json.dumps({**document, "Checksum": document["Checksum"] ^ 1}).encode()


LOSSES = {"gone": None, "damaged": damaged}


@pytest.mark.parametrize("how", LOSSES)
def test_a_kubelet_that_loses_its_checkpoint_takes_nothing_from_containers_that_run(
    staying, agent, how
):
    grants, before = agent.present(), ids(staying)
    has_its_own(staying)
    socket, registered = killing.KUBELET_SOCKET.stat().st_ctime, agent.registrations()
    killing.cluster("stop", "kubelet")
    file = killing.KUBELET_SOCKET.with_name(state.FILE)
    spoil = LOSSES[how]
    if spoil is None:
        file.unlink()
    else:
        file.write_bytes(spoil(file.read_bytes()))
    killing.cluster("start", "kubelet")
    agent.wait(lambda: killing.serves_since(socket))
    agent.wait(lambda: agent.registrations() >= registered + 2)
    agent.wait_for_offers()
    # New pods run meanwhile, and are given no more than there is.
    staying.create("pods", rig.pod("new", container("a", 100, 0)))
    new = staying.until("pods", "new", rig.has_ended)
    assert rig.phase(new) == "Succeeded", new["status"]
    assert grants <= agent.present()
    has_its_own(staying)
    assert {it for it in ids(staying) if it in before} == before
    for pod in staying.pods():
        path = staying.path("pods", pod["metadata"]["name"])
        staying.server.call("DELETE", path, body={"gracePeriodSeconds": 0})
    agent.until_idle()  # and what is over is collected


def has_its_own(space):
    """See what a new process in each container that runs is told."""
    for units in SIZES:
        command = ["kubectl", "--namespace", space.name, "exec", f"p{units}", "--", "/client"]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        assert f"total {units * UNIT}\n" in done.stdout


def was_refused(space, units):
    """Wait until a pod goes on; whether kubelet has failed it, as it does before it knows us."""
    ended_or_runs = space.until(
        "pods",
        f"p{units}",
        lambda it: rig.has_ended(it) or rig.state(it, "a")["restartCount"],
    )
    if not rig.has_ended(ended_or_runs):
        return False
    assert ended_or_runs["status"]["reason"] == "UnexpectedAdmissionError"
    return True


def replace(space, units):
    """Do what the owner of a pod does that has failed."""
    space.server.call("DELETE", space.path("pods", f"p{units}"), body={"gracePeriodSeconds": 0})
    assert space.until_gone("pods", f"p{units}")
    create(space, units)


def end_all_tasks():
    """Kill what runs in containers, the pods' own processes too."""
    listed = subprocess.run(["ctr", "tasks", "list", "--quiet"], capture_output=True, text=True)
    for task in listed.stdout.split():
        subprocess.run(["ctr", "tasks", "kill", "--signal", "9", task], capture_output=True)
