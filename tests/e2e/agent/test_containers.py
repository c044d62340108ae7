"""Containers of every kind see their own quota, or no driver at all."""

import hashlib
import subprocess

import agents
import pytest
import rig
from agents import UNIT, container, said

from pyvgpu import shim
from pyvgpu.simulation import simulator

pytestmark = pytest.mark.e2e

RESTRICTED = {  # stricter than the Pod Security Standard of that name
    "runAsNonRoot": True,
    "runAsUser": 1_000_650_000,
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


def run(space, *containers, **spec):
    """Run a pod until it has terminated, with any result."""
    space.create("pods", rig.pod("p", *containers, **spec))
    return space.until("pods", "p", rig.has_ended)


def path(*folders):
    """Return the container fields that make the loader search these folders first."""
    return {"env": [{"name": "LD_LIBRARY_PATH", "value": ":".join(folders)}]}


@pytest.mark.parametrize(
    ("script", "more"),
    [
        pytest.param("/client", {"securityContext": RESTRICTED}, id="restricted"),
        pytest.param("env -i /client", {}, id="no environment"),
        pytest.param("/client", path("/opt"), id="a path of its own"),
        pytest.param("/client", path("/usr/local/pyvgpu/origin"), id="the originals"),
        # Images keep a newer driver here; the driver in this image enforces no quota.
        pytest.param("/client", path("/usr/local/cuda/compat"), id="compat"),
        pytest.param("/client", path("/usr/local/cuda-12.4/compat"), id="compat, its own name"),
        pytest.param("/client", {"image": agents.RED_HAT}, id="libraries in lib64"),
    ],
)
def test_container_has_its_quota(space, agent, script, more):
    if "env -i" in script:  # it removes the variable by which the simulator finds its machine
        (variable,) = agent.machine.environment.items()
        script = script.replace("env -i", f"env -i {'='.join(variable)}")
    ended = run(space, container("a", 30, 8, f"{script} > /dev/termination-log 2>&1", **more))
    found = said(ended, "a")
    assert (int(found["total"]) / UNIT, found["refused"]) == (8, "2")


def test_container_without_devices_in_the_same_pod_has_no_driver(space, agent):
    plain = container("b", 0, 0)
    ended = run(space, container("a", 30, 8), plain)
    assert int(said(ended, "a")["total"]) == 8 * UNIT
    assert "libcuda.so.1: cannot open" in rig.state(ended, "b")["state"]["terminated"]["message"]


def test_ephemeral_container_has_no_driver(space, agent):
    space.create("pods", rig.pod("p", container("a", 30, 8, "/client; sleep 60")))
    space.until("pods", "p", lambda current: rig.runs(current, "a"))
    debug = {
        "name": "debug",
        "image": agents.CLIENT,
        "command": ["/bin/sh", "-c", "/client > /dev/termination-log 2>&1"],
        "targetContainerName": "a",
    }
    add = {"op": "add", "path": "/spec/ephemeralContainers", "value": [debug]}
    space.patch("p", add, part="/ephemeralcontainers")

    def ended(pod):
        found = pod["status"].get("ephemeralContainerStatuses") or [{"state": {}}]
        return found[0]["state"].get("terminated")

    pod = space.until("pods", "p", ended)
    assert "libcuda.so.1: cannot open" in ended(pod)["message"]


def test_nvml_shows_a_container_its_own_quota(space, agent):
    ended = run(space, container("a", 30, 8, "/nvml-client > /dev/termination-log"))
    text = rig.state(ended, "a")["state"]["terminated"]["message"]
    seen = {line.split()[1]: line.split()[2:] for line in text.splitlines() if "nvml" in line}
    count, total, used = map(int, seen["full"])
    assert (count, total) == (1, 8 * UNIT)
    assert 7 * UNIT < used <= 8 * UNIT
    assert seen["end"] == ["1", str(8 * UNIT), "0"]


def test_exec_in_a_pod_has_the_quota_of_its_container(space, agent):
    space.create("pods", rig.pod("p", container("a", 30, 8, "while true; do sleep 0.1; done")))
    space.until("pods", "p", lambda pod: rig.runs(pod, "a"))
    command = ["kubectl", "--namespace", space.name, "exec", "p", "--", "/client"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert f"total {8 * UNIT}\n" in text
    assert "refused 2\n" in text


@pytest.mark.parametrize(
    ("vcore", "units", "library"),
    [
        pytest.param(30, 8, shim.shim_library(), id="a share has the shim"),
        pytest.param(
            100,
            0,
            shim.simulator_libraries() / f"libcuda.so.{simulator.DRIVER_RELEASE}",
            id="else the driver",
        ),
    ],
)
def test_containers_library_is(space, idle, vcore, units, library):
    files = " ".join(f"/usr/lib{suffix}/libcuda.so.1" for suffix in ("64", f"/{agents.TRIPLET}"))
    script = f"/bin/busybox sha256sum {files} /usr/local/pyvgpu/lib64/libcuda.so.1"
    ended = run(space, container("a", vcore, units, f"{script} > /dev/termination-log"))
    text = rig.state(ended, "a")["state"]["terminated"]["message"]
    found = [line.split()[0] for line in text.splitlines()]
    assert found == 3 * [hashlib.sha256(library.read_bytes()).hexdigest()]


def test_mounted_device_nodes_cannot_be_opened_without_a_grant(space, agent):
    script = "(: < /nodes/nvidia0) > /dev/termination-log 2>&1"
    plain = rig.container("a", script, volumeMounts=[{"name": "nodes", "mountPath": "/nodes"}])
    nodes = {"name": "nodes", "hostPath": {"path": str(agent.root / "dev")}}
    ended = run(space, plain, volumes=[nodes])
    said = rig.state(ended, "a")["state"]["terminated"]["message"]
    assert "Operation not permitted" in said
