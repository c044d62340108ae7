"""Pods with gpu-manager's resources, and pods with scheduler-chosen devices, in a real cluster."""

import contextlib

import agent_set
import pytest
import rig
from agents import NODE, UNIT, container, said

from pyvgpu import names
from pyvgpu.allocator import annotations, datatypes
from pyvgpu.deviceplugin.kubelet import device_ids

pytestmark = pytest.mark.e2e

KEY = b"k" * 32


@contextlib.contextmanager
def other(agent, *options, resources=device_ids.OURS):
    """Run the agent with these options; yield a namespace, and wait for its grants to end."""
    agent.become(*options, resources=resources)
    with rig.space() as space:
        yield space
    agent.until_idle()


@pytest.fixture
def gaia(running):
    profile = other(running, "--profile", "gaia", resources=device_ids.GAIA)
    with agent_set.rights_of("agent/gaia.yaml", "profile=gaia"), profile as space:
        yield space


@pytest.fixture
def scheduled(running, tmp_path):
    key = tmp_path / "key"
    key.write_bytes(KEY)
    with other(running, "--placement", "extender", "--placement-key", key) as space:
        yield space


def theirs(name, core, memory, script="", **more):
    """Return a container with gpu-manager's resources."""
    made = container(name, 0, 0, script, **more)
    made["resources"] = {
        "limits": {"tencent.com/vcuda-core": str(core), "tencent.com/vcuda-memory": str(memory)}
    }
    return made


# Reports a container's quota, its library path, and its device nodes.
SEES = (
    "{ /client; echo path $LD_LIBRARY_PATH; echo nodes $(cd /dev; echo nvidia?); }"
    " > /dev/termination-log"
)


def test_gpu_manager_pods_run_unchanged(gaia, running):
    share = rig.pod("share", theirs("a", 30, 8, SEES))
    share["metadata"]["annotations"] = {
        "tencent.com/vcuda-core-limit": "80",
        "tencent.com/predicate-gpu-idx-0": "1",
    }
    own = [{"name": "LD_LIBRARY_PATH", "value": "/my/libraries"}]
    gaia.create("pods", share)
    gaia.create("pods", rig.pod("own", theirs("a", 30, 4, SEES, env=own)))
    gaia.create("pods", rig.pod("whole", theirs("a", 100, 1)))
    ended = gaia.until("pods", "share", rig.has_ended)
    seen = said(ended, "a")
    assert int(seen["total"]) == 8 * UNIT
    assert seen["path"].split(":")[0] == "/usr/local/nvidia/lib64"
    assert seen["nodes"] == "nvidia1"
    noted = gaia.until(
        "pods", "share", lambda pod: "tencent.com/gpu-assigned" in pod["metadata"]["annotations"]
    )["metadata"]["annotations"]
    assert noted["tencent.com/gpu-assigned"] == "true"
    assert noted["tencent.com/predicate-gpu-idx-0"] == "1"
    assert noted["tencent.com/predicate-node"] == NODE
    seen = said(gaia.until("pods", "own", rig.has_ended), "a")
    assert (int(seen["total"]), seen["path"]) == (4 * UNIT, "/my/libraries")
    ended = gaia.until("pods", "whole", rig.has_ended)
    assert int(said(ended, "a")["total"]) == running.machine.devices[0].memory_bytes


GATE = "example.com/scheduler"  # scheduling gate until the pod's devices are chosen


def gated():
    return rig.pod("p", container("a", 30, 8, SEES), schedulingGates=[{"name": GATE}])


def choose(space, made, uuid, key=KEY):
    """Act as the scheduler extender: annotate a choice, and open the scheduling gate."""
    meta = made["metadata"]
    shares = {"a": (datatypes.NodeShare(uuid, 30, 8 * UNIT),)}
    text = annotations.seal(annotations.DeviceChoice(meta["uid"], NODE, shares), key)
    space.patch(
        meta["name"],
        {"op": "add", "path": "/metadata/annotations", "value": {names.DEVICES_ANNOTATION: text}},
        {"op": "remove", "path": "/spec/schedulingGates"},
    )


def test_pods_run_on_chosen_devices_and_others_are_evicted(scheduled, running):
    second = running.machine.devices[1].uuid
    choose(scheduled, scheduled.create("pods", gated()), second)
    scheduled.create("jobs", rig.job("forged", gated(), backoffLimit=0))
    scheduled.create("jobs", rig.job("absent", gated(), backoffLimit=0))
    forged, absent = (
        scheduled.until_any("pods", f"batch.kubernetes.io/job-name={name}", lambda _: True)
        for name in ("forged", "absent")
    )
    choose(scheduled, forged, second, b"o" * 32)
    open_gate = {"op": "remove", "path": "/spec/schedulingGates"}
    scheduled.patch(absent["metadata"]["name"], open_gate)
    seen = said(scheduled.until("pods", "p", rig.has_ended), "a")
    assert (int(seen["total"]), seen["nodes"]) == (8 * UNIT, "nvidia1")
    for job, made, words in (
        ("forged", forged, "is not sealed by this cluster's scheduler"),
        ("absent", absent, "it has no pyvgpu.io/devices"),
    ):
        scheduled.until_event(made["metadata"]["name"], "VGPURefused", words)
        scheduled.until("jobs", job, lambda current: rig.condition(current, "Failed"))
    node = scheduled.server.call("GET", f"/api/v1/nodes/{NODE}")
    text = node["metadata"]["annotations"][names.NODE_DEVICES_ANNOTATION]
    published = annotations.read_node(text)
    assert [device.uuid for device in published.devices] == [
        device.uuid for device in running.machine.devices
    ]
    assert not published.placed
