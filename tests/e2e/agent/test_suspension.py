"""Pods are suspended in a real cluster: their memory leaves the device and comes back."""

import json
import re

import agents
import pytest
import rig
from agents import UNIT, container

from pyvgpu import names

pytestmark = [pytest.mark.e2e, pytest.mark.alone]

HOLDER = "trap 'exit 0' TERM; /holder 512 100 & wait"
NOTEBOOKS = 3


@pytest.fixture
def suspending(running, suspend_rules):
    """The agent with --suspend, without any grant."""
    running.become("--suspend")
    running.until_idle()
    return running


def create(space, name, script=HOLDER, vcore=20, units=8, **more):
    pod = rig.pod(name, container("a", vcore, units, script), restartPolicy="Always", **more)
    space.create("pods", pod)


def until_said(space, agent, name, word):
    space.until("pods", name, lambda pod: rig.runs(pod, "a"))
    agent.wait(lambda: word in agents.logs(space, name, "a"))


def counted(space, name):
    """Return the last line of a program's log: how often it has compared its memory."""
    return agents.logs(space, name, "a").splitlines()[-1]


def request(space, name, value):
    agents.annotate(space.path("pods", name), {names.SUSPEND_ANNOTATION: value})


def answer(pod):
    return json.loads(
        pod["metadata"].get("annotations", {}).get(names.SUSPENSION_ANNOTATION, "{}")
    )


def suspend(space, name):
    request(space, name, "keep")
    return answer(space.until("pods", name, lambda pod: answer(pod).get("state") == "suspended"))


def used(agent):
    """Return the bytes in use on all devices, as the agent's metrics say."""
    lines = agent.ask("/metrics").splitlines()
    return sum(
        float(line.split()[-1]) for line in lines if line.startswith("pyvgpu_device_memory_used_b")
    )


def reasons(space, name):
    """Return the reasons of a pod's events."""
    return {
        event["reason"]
        for event in space.server.items(space.path("events"), {})[0]
        if event["involvedObject"]["name"] == name
    }


def suspended_in_metrics(agent):
    """Return the pods that are suspended as the agent's metrics say."""
    suspended = r'^pyvgpu_container_suspended{.*pod="([^"]*)".*} 1\.0$'
    found = re.findall(suspended, agent.ask("/metrics"), re.MULTILINE)
    return sorted(found)


def test_suspended_pod_leaves_the_device_and_continues_unchanged(space, suspending):
    empty = used(suspending)
    create(space, "held")
    until_said(space, suspending, "held", "intact")
    suspending.wait(lambda: used(suspending) > empty)
    found = suspend(space, "held")
    assert found["requested"] == "keep"
    assert found["hostBytes"] > 2 * UNIT
    suspending.wait(lambda: used(suspending) == empty)
    before = counted(space, "held")
    create(space, "other", "/client; sleep 1000", vcore=50, units=16)
    until_said(space, suspending, "other", "returned 1")
    assert counted(space, "held") == before  # it waits in its call
    suspending.wait(lambda: suspended_in_metrics(suspending) == ["held"])  # they are sampled
    request(space, "held", None)
    suspending.wait(lambda: counted(space, "held") != before)
    assert "damaged" not in agents.logs(space, "held", "a")
    space.until("pods", "held", lambda pod: not answer(pod))
    suspending.wait(lambda: {"VGPUSuspended", "VGPUResumed"} <= reasons(space, "held"))


def test_container_without_room_in_its_memory_limit_is_refused(space, suspending):
    pod = rig.pod("small", container("a", 20, 8, HOLDER))
    pod["spec"]["containers"][0]["resources"]["limits"]["memory"] = "600Mi"
    space.create("pods", pod)
    until_said(space, suspending, "small", "intact")
    before = counted(space, "small")
    request(space, "small", "keep")
    said = space.until("pods", "small", lambda pod: answer(pod).get("message"))
    message = answer(said)["message"]
    assert message.startswith("container a: it needs ")
    suspending.wait(lambda: counted(space, "small") != before)


def test_agent_and_pod_are_killed_while_it_is_suspended(space, suspending):
    create(space, "held")
    until_said(space, suspending, "held", "intact")
    suspend(space, "held")
    suspending.stop(9)
    suspending.start("--suspend")
    before = counted(space, "held")
    request(space, "held", None)
    suspending.wait(lambda: counted(space, "held") != before)
    suspend(space, "held")
    space.server.call("DELETE", space.path("pods", "held"))
    suspending.until_idle()


def test_idle_notebooks_take_turns_on_the_device(space, suspending):
    """All of them hold memory; at any time one has it on the device."""
    pods = [f"notebook-{number}" for number in range(NOTEBOOKS)]
    for name in pods:
        create(space, name, HOLDER.replace("512", "256"), vcore=10)
    for name in pods:
        until_said(space, suspending, name, "intact")
        suspend(space, name)
    for name in pods:
        before = counted(space, name)
        request(space, name, None)
        suspending.wait(lambda name=name, before=before: counted(space, name) != before)
        suspend(space, name)
    for name in pods:
        assert "damaged" not in agents.logs(space, name, "a")
