"""Idle notebooks on a device that is too small for all of them at once, in a real cluster."""

import json
import signal
import subprocess
import time
from typing import NamedTuple

import agents
import pytest
import rig
from agents import container

from pyvgpu import names

pytestmark = [pytest.mark.e2e, pytest.mark.alone]

IDLE_SECONDS = 3
OPTIONS = (
    *("--suspend", "--oversubscribe", "2", "--oversubscribe-idle", str(IDLE_SECONDS)),
    *("--oversubscribe-slice", "3600", "--oversubscribe-moves", "60"),
)
VCORE, UNITS = 30, 8  # three pods fit on a device, by their vcore
ASLEEP, BUSY = 3_600_000, 50  # milliseconds between two pieces of work
NO_ROOM = "there is no room for it now: it needs"
HOLDER = "trap 'exit 0' TERM; /holder {mebibytes} {pause} & echo $! > /holder.pid; wait"


@pytest.fixture
def agent(running, suspend_rules):
    """An agent that oversubscribes its devices twofold, without any grant."""
    running.become(*OPTIONS)
    running.until_idle()
    return running


class Notebook(NamedTuple):
    """A pod that holds device memory on the first device."""

    space: rig.Space
    agent: agents.Agent
    name: str

    @property
    def lines(self):
        return agents.logs(self.space, self.name, "a").splitlines()

    @property
    def answer(self):
        noted = self.read()["metadata"].get("annotations") or {}
        return json.loads(noted.get(names.SUSPENSION_ANNOTATION, "{}"))

    @property
    def is_suspended(self):
        return self.answer.get("state") == "suspended"

    def read(self):
        return self.space.read("pods", self.name)

    def until_holding(self):
        self.space.until("pods", self.name, lambda pod: rig.runs(pod, "a"))
        self.agent.wait(lambda: "holds" in self.lines)

    def wake(self):
        """Let the program compare its memory once, without waiting for it."""
        command = ["kubectl", "exec", "-n", self.space.name, self.name, "--"]
        script = "kill -USR1 $(cat /holder.pid)"
        subprocess.run([*command, "sh", "-c", script], check=True, capture_output=True)

    def until_intact(self):
        """Wait until the program has compared its memory once more; it must be unchanged."""
        before = len(self.lines)
        self.wake()
        self.agent.wait(lambda: len(self.lines) > before)
        assert not any("damaged" in line for line in self.lines)

    def delete(self, grace=0):
        body = {"gracePeriodSeconds": grace}
        self.space.server.call("DELETE", self.space.path("pods", self.name), body=body)
        assert self.space.until_gone("pods", self.name)


def begin(space, agent, name, *, mebibytes=256, pause=ASLEEP, **annotations):
    """Create a pod whose program works after each *pause*, in milliseconds."""
    script = HOLDER.format(mebibytes=mebibytes, pause=pause)
    pod = rig.pod(name, container("a", VCORE, UNITS, script))
    (first, _) = agent.machine.devices
    pod["metadata"]["annotations"] = {
        names.DEVICE_UUIDS_ANNOTATION: first.uuid,
        **{f"{names.DOMAIN}/{key}": value for key, value in annotations.items()},
    }
    space.create("pods", pod)
    return Notebook(space, agent, name)


def start(space, agent, name, **more):
    made = begin(space, agent, name, **more)
    made.until_holding()
    return made


def values(agent, name, labels=""):
    """Return the values of a metric of the agent whose *labels* contain this text."""
    return [
        float(line.split()[-1])
        for line in agent.ask("/metrics").splitlines()
        if line.startswith(f"{name}{{") and labels in line
    ]


def waiting_pods(agent):
    return sum(values(agent, "pyvgpu_device_waiting_pods"))


def states(space):
    """Return the states of all pods, as `kubectl vgpu ps` shows them."""
    command = ["kubectl", "vgpu", "ps", "-n", space.name, "-o", "json"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return {row["pod"]: row["state"] for row in json.loads(done.stdout)["parts"]}


def test_newcomer_displaces_the_longest_idle_pod_and_no_other(space, agent):
    first = start(space, agent, "first")
    second = start(space, agent, "second")
    busy = start(space, agent, "busy", mebibytes=8, pause=BUSY)
    assert values(agent, "pyvgpu_device_reservable_ratio") == [2, 2]
    newcomer = start(space, agent, "newcomer")
    assert first.is_suspended
    assert not second.answer
    assert not busy.answer
    space.until_event("first", "VGPUSuspended", "it was idle, and others need the room")
    agent.wait(lambda: values(agent, "pyvgpu_container_suspended", 'pod="first"') == [1])
    assert sum(values(agent, "pyvgpu_oversubscription_moves_total", 'action="suspend"')) >= 1
    assert states(space) == {
        "first": "suspended",
        **dict.fromkeys(("second", "busy", "newcomer"), "running"),
    }

    newcomer.until_intact()  # it is the last to have worked
    first.wake()
    space.until("pods", "second", lambda _: second.is_suspended)  # the longest idle now
    agent.wait(lambda: any("intact" in line for line in first.lines))
    space.until_event("first", "VGPUResumed")
    assert not busy.answer

    newcomer.delete()  # so there is room, and none needs to be displaced
    second.until_intact()
    for notebook in (first, second, busy):
        notebook.until_intact()
    assert states(space) == dict.fromkeys(("first", "second", "busy"), "running")


def test_agent_killed_when_it_begins_to_make_room(space, agent):
    """Moving a pod takes no time here, so the kill may come before, during or after the move."""
    notebooks = [start(space, agent, f"n{number}", mebibytes=768) for number in range(3)]
    before = agent.log.stat().st_size
    newcomer = begin(space, agent, "newcomer")
    agent.wait(lambda: NO_ROOM in agent.log.read_text()[before:])
    agent.stop(signal.SIGKILL)
    agent.start(*OPTIONS)
    newcomer.until_holding()
    for notebook in (*notebooks, newcomer):
        notebook.until_intact()
    assert values(agent, "pyvgpu_device_waiting_pods") == [0, 0]


def test_suspended_pod_is_killed(space, agent):
    notebooks = [start(space, agent, f"n{number}") for number in range(3)]
    newcomer = start(space, agent, "newcomer")
    (moved,) = [x for x in notebooks if x.is_suspended]
    before = agent.present()
    moved.delete()
    agent.wait(lambda: len(agent.present()) == len(before) - 1)
    for notebook in (*notebooks, newcomer):
        if notebook is not moved:
            notebook.until_intact()
    assert waiting_pods(agent) == 0


def test_newcomer_waits_for_pods_that_work_and_fails_no_one(space, agent):
    busy = [start(space, agent, f"b{number}", mebibytes=8, pause=BUSY) for number in range(2)]
    spared = start(space, agent, "spared", suspend="never")
    newcomer = begin(space, agent, "newcomer")
    space.until_event("newcomer", "VGPUWaits", NO_ROOM)
    time.sleep(IDLE_SECONDS + 15)  # kubelet tries again after 10 to 15 s
    pod = newcomer.read()
    assert rig.phase(pod) == "Pending"
    assert "waiting" in rig.state(pod, "a")["state"]
    assert NO_ROOM in rig.state(pod, "a")["state"]["waiting"]["message"]
    for notebook in (*busy, spared):
        assert not notebook.answer
        notebook.until_intact()
    assert waiting_pods(agent) == 1
    before = agent.present()
    newcomer.delete()
    agent.wait(lambda: len(agent.present()) == len(before) - 1)
    agent.wait(lambda: waiting_pods(agent) == 0)

    patient = begin(space, agent, "patient")
    space.until_event("patient", "VGPUWaits", NO_ROOM)
    busy[0].delete()
    patient.until_holding()
    assert rig.phase(patient.read()) == "Running"
