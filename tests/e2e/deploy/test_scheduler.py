"""The shipped scheduler extender and agents, beside the other components.

kube-scheduler reaches the leader through its Service, and a pod that it binds gets the devices
chosen for it: the agent reads the key from its Secret.
"""

import subprocess

import agent_set
import agents
import charted
import extenders
import pytest
import rig
import shipped as made
import waiting
from agents import NODE, container, said

from pyvgpu import names
from pyvgpu.controller.scheduler.shell import leader_label, session
from pyvgpu.kube import apiserver

pytestmark = [pytest.mark.e2e, pytest.mark.alone, pytest.mark.timeout(400)]

PATCH = "scheduler.mode=patch"
SEES = "{ /client; echo nodes $(cd /dev; echo nvidia?); } > /dev/termination-log"


def parts_of_it(verb, *options):
    """Apply or delete the chart's scheduler objects, which are in two namespaces."""
    text = charted.listed(charted.part(["scheduler/"], PATCH))
    command = ["kubectl", verb, *options, "-f", "-"]
    done = subprocess.run(command, input=text, check=True, capture_output=True, text=True)
    return done.stdout


def replicas(ours):
    """Return the scheduler's pods, except terminating ones."""
    found, _ = ours.server.items(ours.path("pods"), {"labelSelector": "app=scheduler"})
    return [pod for pod in found if not pod["metadata"].get("deletionTimestamp")]


def leaders(ours):
    """Return the names of the pods that the Service selects."""
    return [
        replica["metadata"]["name"]
        for replica in replicas(ours)
        if replica["metadata"]["labels"].get(leader_label.LABEL) == leader_label.LEADS
    ]


def logs():
    return made.kubectl("logs", "--selector=app=scheduler", "--tail=-1", "--prefix")


@pytest.fixture(scope="module")
def scheduler(shipped, tmp_path_factory):
    """Install it as docs/scheduler.md says."""
    parts_of_it("apply")
    config = tmp_path_factory.mktemp("scheduler") / "kube-scheduler.json"
    try:
        made.kubectl("rollout", "status", "--timeout=150s", "deployment/scheduler")
        waiting.wait_until(lambda: len(leaders(shipped)) == 1, rig.SECONDS, logs)
        address = shipped.read("services", extenders.PLACE.name)["spec"]["clusterIP"]
        extenders.write_scheduler(config, prefix=f"https://{address}/scheduler")
        extenders.restart_scheduler(config)
        yield shipped
    finally:
        extenders.restart_scheduler(None)
        print(logs())
        parts_of_it("delete", "--ignore-not-found")
    # The other components of its namespace stay.
    status = shipped.read("deployments", "webhook")["status"]
    assert status["availableReplicas"] == status["replicas"]


@pytest.fixture(scope="module")
def agent(scheduler, tmp_path_factory):
    """Install agents that use the scheduler's choices; yield their node."""
    folder = tmp_path_factory.mktemp("agent")
    agents.make_image(folder)
    node = agents.Agent(folder)
    parts = agent_set.AgentSet(node)
    try:
        parts.install(PATCH)
        yield node
        node.wait(lambda: not node.present())
    finally:
        print(parts.story())
        parts.remove()


def chosen(pod, name="a"):
    """Return the device that was chosen for a container of a bound pod."""
    (share,) = extenders.choice(pod).containers[name]
    return share.uuid


def test_pods_get_their_chosen_devices_also_from_the_next_leader(space, scheduler, agent):
    at = {device.uuid: f"nvidia{index}" for index, device in enumerate(agent.machine.devices)}
    space.create("pods", rig.pod("stays", container("a", 60, 8, "sleep 1000")))
    held = chosen(space.until("pods", "stays", lambda current: rig.runs(current, "a")))
    space.create("pods", rig.pod("sees", container("a", 60, 8, SEES)))
    other = space.until("pods", "sees", rig.has_ended)
    assert {held, chosen(other)} == set(at)
    assert said(other, "a")["nodes"] == at[chosen(other)]

    (first,) = leaders(scheduler)
    now = {"gracePeriodSeconds": 0}
    scheduler.server.call("DELETE", scheduler.path("pods", first), body=now)
    for n in range(4):  # created while there is no leader
        space.create("pods", rig.pod(f"p-{n}", container("a", 20, 2, SEES)))
    space.create("pods", rig.pod("whole", container("a", 100, 4, SEES)))
    for n in range(4):
        pod = space.until("pods", f"p-{n}", rig.has_ended)
        assert said(pod, "a")["nodes"] == at[chosen(pod)]
    assert chosen(space.until("pods", "whole", rig.has_ended)) != held
    (second,) = leaders(scheduler)
    assert second != first
    waiting.wait_until(lambda: len(replicas(scheduler)) == 2, rig.SECONDS, logs)
    assert rig.runs(space.read("pods", "stays"), "a")
    for text in (logs(), agent_set.kubectl("logs", "--selector=app=agent", "--tail=-1")):
        assert " 403 " not in text
        assert "Traceback" not in text


def test_choice_by_anything_but_the_scheduler_is_refused(space, agent):
    """Also with the right to bind pods: the API server refuses to let users write a choice."""
    pod = rig.pod("p", container("a", 30, 2, "sleep 1000"), schedulerName="absent")
    space.create("pods", pod)
    binding = {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": NODE}}
    forged = {
        **binding,
        "metadata": {"name": "p", "annotations": {names.DEVICES_ANNOTATION: "{}"}},
    }
    path = space.path("pods", "p") + "/binding"
    with pytest.raises(
        apiserver.ServerError,
        match="only the components that ValidatingAdmissionPolicy pyvgpu-state lists may write",
    ):
        space.server.call("POST", path, body=forged)
    space.server.call("POST", path, body=binding)
    space.until_event("p", "VGPURefused", "it has no pyvgpu.io/devices")
    assert not rig.runs(space.read("pods", "p"), "a")


def test_reapplying_keeps_the_key_and_the_certificate(scheduler):
    before = extenders.key(), scheduler.read("secrets", extenders.PLACE.name)["data"]
    assert "deployment.apps/scheduler unchanged" in parts_of_it("apply")
    assert (extenders.key(), scheduler.read("secrets", extenders.PLACE.name)["data"]) == before


def test_scheduler_may_only_label_its_own_pods(scheduler, tmp_path):
    config = tmp_path / "scheduler"
    rig.write_kubeconfig(config, made.NAMESPACE, "scheduler")
    account = apiserver.connect(str(config))

    def change(pod, part, key, value="x"):
        body = {"metadata": {part: {key: value}}}
        path = scheduler.path("pods", pod["metadata"]["name"])
        account.call("PATCH", path, {"dryRun": "All"}, body, apiserver.MERGE_PATCH)

    own, (other, *_) = replicas(scheduler)[0], made.webhooks(scheduler)
    change(own, "labels", leader_label.LABEL)
    change(own, "annotations", session.WOKEN_ANNOTATION)
    for pod, part, key in (
        (other, "labels", leader_label.LABEL),
        (own, "labels", "app"),
        (own, "labels", "mine"),
        (own, "annotations", names.DEVICES_ANNOTATION),
    ):
        with pytest.raises(apiserver.ServerError, match="only its own pods|only the components"):
            change(pod, part, key)
    with pytest.raises(apiserver.ServerError, match="403"):
        account.call("GET", made.PLACE.secret)
