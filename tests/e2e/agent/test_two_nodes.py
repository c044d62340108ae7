"""Two real nodes with an agent each: pods get devices of their own node."""

import os
import subprocess
from pathlib import Path

import agents
import pytest
import rig
from agents import UNIT, container, said

pytestmark = [pytest.mark.e2e, pytest.mark.alone]

SECOND = Path(__file__).parents[1] / "cluster" / "second"
STAYS = "/client; trap 'exit 0' TERM; while true; do sleep 0.1; done"


@pytest.fixture(scope="module")
def other(running, tmp_path_factory):
    """The agent of a second node, with one device of another model."""
    folder = Path(os.environ["CLUSTER_RUN"]) / "node2"
    pid = subprocess.run([SECOND, "up"], check=True, stdout=subprocess.PIPE, text=True).stdout
    try:
        subprocess.run([SECOND, "image", running.folder / "client.tar"], check=True)
        place = agents.Place(
            "node-2",
            "node2/kubelet",
            folder / "cdi",
            ("nsenter", f"--target={pid.strip()}", "--mount"),
        )
        made = agents.Agent(tmp_path_factory.mktemp("other"), "a100:1", place)
        try:
            made.start()
            yield made
            made.until_idle()
        finally:
            made.stop()
    finally:
        subprocess.run([SECOND, "down"], check=True)


def on(agent, name, vcore, units, script=STAYS):
    """Return a pod for the node of an agent."""
    where = {"kubernetes.io/hostname": agent.place.node}
    return rig.pod(name, container("a", vcore, units, script), nodeSelector=where)


def uuids(agent):
    return {device.uuid for device in agent.machine.devices}


def test_pods_have_devices_of_their_own_node(space, agent, other):
    for number in range(3):
        for one in (agent, other):
            name = f"{one.place.node}-{number}"
            space.create("pods", on(one, name, 20, 4 + 4 * number))
    for number in range(3):
        for one in (agent, other):
            name = f"{one.place.node}-{number}"
            space.until("pods", name, lambda pod: rig.runs(pod, "a"))
            one.wait(lambda name=name: "returned 1" in agents.logs(space, name, "a"))
            assert f"total {(4 + 4 * number) * UNIT}\n" in agents.logs(space, name, "a")
    for one in (agent, other):
        found = [limits for grant in one.present() for limits in one.limits(grant)]
        assert sorted(limit.vmemory // UNIT for limit in found) == [4, 8, 12]
        assert {limit.uuid for limit in found} <= uuids(one)
    assert not uuids(agent) & uuids(other)


def test_whole_device_is_one_of_its_node(space, agent, other):
    for one in (agent, other):
        script = "/client > /dev/termination-log 2>&1"
        space.create("pods", on(one, one.place.node, 100, 0, script))
    for one in (agent, other):
        ended = space.until("pods", one.place.node, rig.has_ended)
        assert int(said(ended, "a")["total"]) == one.machine.devices[0].memory_bytes
