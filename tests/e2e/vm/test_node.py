"""Shares on a node with cgroup v2, kubelet's systemd cgroup driver, and the usual folders."""

import json

import agents
import charts
import pytest
import rig
import sidecars
from agents import UNIT, container
from waiting import wait_until

from pyvgpu import names
from pyvgpu.machine import memory_limit

pytestmark = pytest.mark.e2e

NODE = "/api/v1/nodes/node-1"
MACHINES = "/var/lib/pyvgpu/simulated/machines"  # of the agent, on the node
UNITS = 8
QUOTA = UNITS * UNIT
LIMIT = QUOTA + memory_limit.MARGIN_BYTES  # the driver's own
STAYS = "trap 'exit 0' TERM; /stays & while true; do sleep 1; done"
HELD = 64  # MiB of device memory that a container holds, and compares each second
HOLDS = f"trap 'exit 0' TERM; /holder {HELD} 1000 & wait"
# Amounts that put a pod into each of kubelet's classes, and the slice of the class.
CPU_AND_MEMORY = {"cpu": "100m", "memory": "64Mi"}
CLASSES = {
    "BestEffort": ({}, "kubepods-besteffort"),
    "Burstable": ({"requests": CPU_AND_MEMORY}, "kubepods-burstable"),
    "Guaranteed": ({"limits": CPU_AND_MEMORY, "requests": CPU_AND_MEMORY}, "kubepods"),
}


def cgroup_of(machine, pod):
    """Return the path of the cgroup of a pod's container, as its first process sees it."""
    identity = rig.state(pod, "a")["containerID"].removeprefix("containerd://")
    script = f"ctr --namespace k8s.io tasks list | awk '$1 == \"{identity}\" {{ print $2 }}'"
    (process,) = machine.shell(script).split()
    return machine.shell(f"cat /proc/{process}/cgroup").strip().removeprefix("0::")


def starts(space, name, part, **more):
    """Create a pod; return it once its container runs."""
    made = rig.pod(name, part, **more)
    space.create("pods", made)
    return space.until("pods", name, lambda pod: rig.runs(pod, "a"))


def suspension(pod):
    noted = pod["metadata"].get("annotations", {}).get(names.SUSPENSION_ANNOTATION, "{}")
    return json.loads(noted)


def compared(space, name):
    """Return how often a program has compared its memory, which must be unchanged."""
    lines = agents.logs(space, name, "a").splitlines()
    assert not any("damaged" in line for line in lines)
    return sum("intact" in line for line in lines)


def holds(space, name, memory):
    """Start a pod whose container may use so much host memory; return when it works."""
    part = container("a", 20, UNITS, HOLDS)
    part["resources"]["limits"]["memory"] = memory
    starts(space, name, part)
    wait_until(lambda: compared(space, name), rig.SECONDS)
    agents.annotate(space.path("pods", name), {names.SUSPEND_ANNOTATION: "keep"})


def test_node_is_of_its_kind(machine):
    assert machine.shell("stat -f -c %T /sys/fs/cgroup").strip() == "cgroup2fs"
    assert machine.shell("ps -o comm= 1").strip() == "systemd"
    found = charts.run("kubectl", "get", "--raw", f"{NODE}/proxy/configz")
    assert json.loads(found)["kubeletconfig"]["cgroupDriver"] == "systemd"


def test_container_gets_its_share(space):
    """Its image's own driver would enforce no quota, so the driver itself has a limit for it."""
    own = {"env": [{"name": "LD_LIBRARY_PATH", "value": "/opt/own"}]}
    space.create(
        "pods", rig.pod("p", container("held", 30, UNITS), container("own", 20, 8, **own))
    )
    ended = space.until("pods", "p", rig.has_ended)
    for name, total in (("held", QUOTA), ("own", LIMIT)):
        said = agents.said(ended, name)
        assert (int(said["total"]), said["wrong"]) == (total, "0"), ended["status"]
        assert 0 < int(said["taken"]) <= total
        assert said["refused"] == "2"  # CUDA_ERROR_OUT_OF_MEMORY


@pytest.mark.parametrize("quality", CLASSES)
def test_process_without_a_grant_is_attributed_to_its_pod(space, machine, quality):
    """Only its cgroup names its pod: it has no grant, and uses the driver of its image."""
    starts(space, "holder", container("a", 20, UNITS, STAYS))  # else the device has no grant
    folder = machine.shell(f"dirname {MACHINES}/*/machine.conf").strip()
    resources, parent = CLASSES[quality]
    part = container("a", 0, 0, "exec /bare")
    part |= {
        "resources": resources,
        "env": [{"name": names.SIMULATED_MACHINE_VARIABLE, "value": folder}],
        "volumeMounts": [{"name": "machine", "mountPath": folder}],
    }
    pod = starts(
        space, "foreign", part, volumes=[{"name": "machine", "hostPath": {"path": folder}}]
    )
    assert pod["status"]["qosClass"] == quality
    uid = pod["metadata"]["uid"].replace("-", "_")
    assert f"/{parent}-pod{uid}.slice/cri-containerd-" in cgroup_of(machine, pod)
    event = space.until_event("foreign", "VGPUQuotaBypassed", "without a grant for it")
    assert event["involvedObject"]["uid"] == pod["metadata"]["uid"]


def test_suspension_needs_room_in_the_memory_limit_of_the_pod(space, machine):
    holds(space, "small", "200Mi")  # it needs the device memory and 256 MiB
    seen = space.until("pods", "small", lambda pod: suspension(pod).get("message"))
    uid = seen["metadata"]["uid"].replace("-", "_")
    said = suspension(seen)["message"]
    assert said.startswith("container a: it needs 320MiB of host memory, and the memory limit of ")
    assert f"kubepods-burstable-pod{uid}.slice has " in said
    before = compared(space, "small")
    wait_until(lambda: compared(space, "small") > before, rig.SECONDS)


def test_suspended_pod_continues_unchanged(space):
    holds(space, "held", "1Gi")
    space.until("pods", "held", lambda pod: suspension(pod).get("state") == "suspended")
    before = compared(space, "held")
    agents.annotate(space.path("pods", "held"), {names.SUSPEND_ANNOTATION: None})
    wait_until(lambda: compared(space, "held") > before, rig.SECONDS)
    space.until("pods", "held", lambda pod: not suspension(pod))


def test_job_completes_though_its_marked_sidecar_ignores_signals(space):
    template = rig.pod("p", rig.container("main", "sleep 1"), sidecars.sidecar(rig.IGNORES_TERM))
    space.create("jobs", rig.job("j", template, backoffLimit=0))
    done = space.until("jobs", "j", lambda job: rig.condition(job, "Complete"))
    assert (done["status"]["succeeded"], done["status"].get("failed", 0)) == (1, 0)
