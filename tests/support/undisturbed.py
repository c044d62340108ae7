"""A pod with a share that runs during upgrades, and checks that nothing disturbs it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import agents
import charts
import rig
from agents import NODE, UNIT, container
from waiting import wait_until

from pyvgpu.deviceplugin.kubelet import device_ids
from pyvgpu.simulation import simulator

if TYPE_CHECKING:
    from rig import Space

UNITS = 16  # memory units of the pod
HELD = 1 << 30  # bytes that its process holds
STAYS = "trap 'exit 0' TERM; /stays & while true; do sleep 0.1; done"
Object = dict[str, Any]
Running = tuple[Object, set[tuple[str, str, str]]]  # the pod, and its processes

_PROCESSES = "for process in /proc/[0-9]*; do read -r stat < $process/stat && echo $stat; done"


def has_devices(
    resources: tuple[device_ids.Resource, device_ids.Resource] = device_ids.OURS,
    vcore: int = 0,
    units: int = 0,
) -> None:
    """Wait until both simulated devices are allocatable, except for these amounts."""
    memory = sum(device.memory_bytes // UNIT for device in simulator.parse_machine("h100:2"))
    counts = (str(200 - vcore), str(memory - units))
    wanted = dict(zip((resource.name for resource in resources), counts, strict=True))
    rig.until_node(NODE, lambda node: wanted.items() <= node["status"]["allocatable"].items())


def start(space: Space) -> Running:
    """Start the pod; return it with its processes once it holds memory."""
    has_devices()
    space.create(
        "pods", rig.pod("stays", container("a", 30, UNITS, STAYS), restartPolicy="Always")
    )
    pod = space.until("pods", "stays", lambda current: rig.runs(current, "a"))
    wait_until(lambda: "[0, " in agents.logs(space, "stays", "a"))
    return pod, _processes(space)


def check(space: Space, running: Running) -> None:
    """Check that the pod's processes are the same as before, and still limited to their share."""
    before, known = running
    now = space.read("pods", before["metadata"]["name"])
    assert now["metadata"]["uid"] == before["metadata"]["uid"]
    found, first = rig.state(now, "a"), rig.state(before, "a")
    assert (found["containerID"], found["restartCount"]) == (first["containerID"], 0)
    assert rig.runs(now, "a")
    assert _processes(space) == known
    assert len(known) == 2
    said = dict(line.split(" ", 1) for line in _inside(space, "/client").splitlines())
    assert (int(said["total"]), said["wrong"]) == (UNITS * UNIT, "0")
    assert 0 < int(said["taken"]) < UNITS * UNIT - HELD
    assert said["refused"] != "0"


def run_beside(space: Space, name: str, vcore: int, units: int) -> Object:
    """Run a pod that allocates all it can; check that it got no more than its share."""
    space.create("pods", rig.pod(name, container("a", vcore, units)))
    ended = space.until("pods", name, rig.has_ended)
    said = agents.said(ended, "a")
    assert (int(said["total"]), said["wrong"]) == (units * UNIT, "0"), ended["status"]
    assert said["refused"] != "0"
    return ended


def _inside(space: Space, *command: str) -> str:
    """Return the output of a command in the pod's container."""
    asked = ("exec", "--namespace", space.name, "stays", "--container", "a", "--", *command)
    return charts.run("kubectl", *asked)


def _processes(space: Space) -> set[tuple[str, str, str]]:
    """Return the names, pids and start times of the long-running processes."""
    rows = [line.split() for line in _inside(space, "sh", "-c", _PROCESSES).splitlines()]
    return {(row[1], row[0], row[21]) for row in rows if row[1] == "(stays)" or row[0] == "1"}
