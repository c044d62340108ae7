"""Restarts of a node's servers in every order, and of the node: pods keep their grants."""

import itertools
import json
import os
import signal
import subprocess

import agents
import killing
import pytest
import rig
import waiting
from agents import UNIT, container

from pyvgpu.deviceplugin.kubelet import checkpoint_file

pytestmark = [pytest.mark.e2e, pytest.mark.alone]

STAYS = "/client; trap 'exit 0' TERM; while true; do sleep 0.1; done"
SIZES = (4, 8, 12)  # units of the pods that stay
SERVERS = ("agent", "kubelet", "containerd")
ORDERS = list(itertools.permutations(SERVERS))
SHORT = "PYVGPU_SOAK_PODS" not in os.environ  # every run of the suite tests two of the orders


@pytest.fixture
def staying(space, agent):
    """A namespace with pods that keep running."""
    for units in SIZES:
        create(space, units)
    for units in SIZES:
        space.until("pods", f"p{units}", lambda pod: rig.runs(pod, "a"))
        sees(space, agent, units)
    return space


def create(space, units):
    pod = rig.pod(f"p{units}", container("a", 20, units, STAYS), restartPolicy="Always")
    space.create("pods", pod)


def sees(space, agent, units):
    """Wait until the running container has logged its memory; check it."""
    agent.wait(lambda: "returned 1" in agents.logs(space, f"p{units}", "a"))
    assert f"total {units * UNIT}\n" in agents.logs(space, f"p{units}", "a")


def runs_again(space, agent, units, before):
    """Wait until a container other than those *before* runs; check its memory."""
    space.until(
        "pods",
        f"p{units}",
        lambda pod: rig.runs(pod, "a") and rig.state(pod, "a")["containerID"] not in before,
    )
    sees(space, agent, units)


def ids(space):
    return {rig.state(pod, "a").get("containerID") for pod in space.pods()}


@pytest.mark.parametrize("order", ORDERS[:: len(ORDERS) - 1] if SHORT else ORDERS, ids="-".join)
def test_restarted_containers_keep_their_grants(staying, agent, runtime, order):
    killer = killing.Killer(agent, 1, (0, 0))
    grants, before = agent.present(), ids(staying)
    killer.kill(list(order))
    assert ids(staying) == before  # running containers continue
    for pod in staying.pods():
        (seen,) = runtime.newest(pod["metadata"]["uid"])
        runtime.stop(seen.id, 1, kill=True)
    for units in SIZES:
        runs_again(staying, agent, units, before)
    assert agent.present() == grants


def test_containers_keep_their_grants_after_a_node_restart(staying, agent):
    grants, before = agent.present(), ids(staying)
    agent.stop(signal.SIGKILL)
    socket = killing.KUBELET_SOCKET.stat().st_ctime
    killing.cluster("stop", "kubelet")
    end_all_tasks()
    killing.cluster("stop", "containerd")
    waiting.until_removed(agent.folder / "run")  # tmpfs content is lost
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
    """Return kubelet's checkpoint with a wrong checksum, so that kubelet rejects it."""
    document = json.loads(content)
    return json.dumps({**document, "Checksum": document["Checksum"] ^ 1}).encode()


LOSSES = {"gone": None, "damaged": damaged}


@pytest.mark.parametrize("how", LOSSES)
def test_lost_kubelet_checkpoint_takes_nothing_from_running_containers(staying, agent, how):
    grants, before = agent.present(), ids(staying)
    has_its_own(staying)
    socket, registered = killing.KUBELET_SOCKET.stat().st_ctime, agent.registrations()
    killing.cluster("stop", "kubelet")
    file = killing.KUBELET_SOCKET.with_name(checkpoint_file.FILE)
    spoil = LOSSES[how]
    if spoil is None:
        file.unlink()
    else:
        file.write_bytes(spoil(file.read_bytes()))
    killing.cluster("start", "kubelet")
    agent.wait(lambda: killing.serves_since(socket))
    agent.wait(lambda: agent.registrations() >= registered + 2)
    agent.wait_for_offers()
    # New pods run meanwhile, without overcommitting a device.
    staying.create("pods", rig.pod("new", container("a", 100, 0)))
    new = staying.until("pods", "new", rig.has_ended)
    assert rig.phase(new) == "Succeeded", new["status"]
    assert grants <= agent.present()
    has_its_own(staying)
    assert {container_id for container_id in ids(staying) if container_id in before} == before
    for pod in staying.pods():
        path = staying.path("pods", pod["metadata"]["name"])
        staying.server.call("DELETE", path, body={"gracePeriodSeconds": 0})
    agent.until_idle()  # grants of deleted pods are collected


def has_its_own(space):
    """Check the memory that a new process in each running container sees."""
    for units in SIZES:
        command = ["kubectl", "--namespace", space.name, "exec", f"p{units}", "--", "/client"]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        assert f"total {units * UNIT}\n" in done.stdout


def was_refused(space, units):
    """Wait until a pod restarts or fails; return whether kubelet failed it.

    kubelet fails pods that it admits before our plugins have registered.
    """
    ended_or_runs = space.until(
        "pods",
        f"p{units}",
        lambda pod: rig.has_ended(pod) or rig.state(pod, "a")["restartCount"],
    )
    if not rig.has_ended(ended_or_runs):
        return False
    assert ended_or_runs["status"]["reason"] == "UnexpectedAdmissionError"
    return True


def replace(space, units):
    """Recreate a failed pod, as its owner would."""
    space.server.call("DELETE", space.path("pods", f"p{units}"), body={"gracePeriodSeconds": 0})
    assert space.until_gone("pods", f"p{units}")
    create(space, units)


def end_all_tasks():
    """Kill all containers, including the pods' sandboxes."""
    listed = subprocess.run(["ctr", "tasks", "list", "--quiet"], capture_output=True, text=True)
    for task in listed.stdout.split():
        subprocess.run(["ctr", "tasks", "kill", "--signal", "9", task], capture_output=True)
