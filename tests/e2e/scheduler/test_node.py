"""Real pods on the real node get exactly the devices that the scheduler has chosen."""

import agents
import extenders
import pytest
import rig
from agents import NODE, UNIT, container, said

from pyvgpu import names
from pyvgpu.allocator import annotations, datatypes
from pyvgpu.kube import apiserver

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

SEES = "{ /client; echo nodes $(cd /dev; echo nvidia?); } > /dev/termination-log"


@pytest.fixture(scope="module")
def agent(tmp_path_factory, running):
    folder = tmp_path_factory.mktemp("agent")
    agents.make_image(folder)
    key = folder / "key"
    key.write_bytes(extenders.key())
    made = agents.Agent(folder)
    try:
        made.start("--placement", "extender", "--placement-key", key)
        yield made
        made.until_idle()  # else the files of its grants would stay for all later tests
    finally:
        made.stop()


def forged(uuid):
    share = datatypes.NodeShare(uuid, 1, UNIT)
    choice = annotations.DeviceChoice("any", NODE, {"a": (share,)})
    return {names.DEVICES_ANNOTATION: annotations.seal(choice, b"o" * 32)}


def test_pods_see_their_chosen_devices(space, agent):
    at = {device.uuid: index for index, device in enumerate(agent.machine.devices)}
    pods = [rig.pod(f"p{n}", container("a", 60, 8, SEES)) for n in range(2)]
    pods.append(rig.pod("small", container("a", 30, 4, SEES), container("b", 10, 2, SEES)))
    # A choice written by a user is ignored.
    pods[0]["metadata"]["annotations"] = forged(agent.machine.devices[1].uuid)
    for wanted in pods:
        space.create("pods", wanted)
    used = dict.fromkeys(at, 0)
    for wanted in pods:
        pod = space.until("pods", wanted["metadata"]["name"], rig.has_ended)
        for name, shares in extenders.choice(pod).containers.items():
            seen = said(pod, name)
            assert seen["nodes"] == " ".join(f"nvidia{at[share.uuid]}" for share in shares)
            assert int(seen["total"]) == sum(share.vmemory for share in shares)
            for share in shares:
                used[share.uuid] += share.vcore
    assert sorted(used.values()) == [60, 100]


def test_pod_with_its_own_node_name_and_forged_choice_is_refused(space, agent):
    pod = rig.pod("trick", container("a", 30, 4, SEES), nodeName=NODE)
    pod["metadata"]["annotations"] = forged(agent.machine.devices[0].uuid)
    space.create("pods", pod)
    space.until_event("trick", "VGPURefused", "is not sealed by this cluster's scheduler")


def resize(space, name, amounts):
    """Resize a running pod's container."""
    main = {"name": "a", "resources": {"limits": amounts, "requests": amounts}}
    path, body = space.path("pods", name) + "/resize", {"spec": {"containers": [main]}}
    kind = "application/strategic-merge-patch+json"
    return space.server.call("PATCH", path, body=body, kind=kind)


def test_waiting_pod_is_bound_soon_after_another_is_deleted(space, agent):
    for name in ("one", "two"):
        space.create("pods", rig.pod(name, container("a", 60, 8, "sleep 1000")))
        space.until("pods", name, lambda pod: rig.phase(pod) == "Running")
    space.create("pods", rig.pod("waits", container("a", 60, 8, "sleep 1000")))
    space.until(
        "pods",
        "waits",
        lambda pod: any(
            each["type"] == "PodScheduled" and each["status"] == "False"
            for each in pod["status"].get("conditions", ())
        ),
    )
    for resource in (names.VCORE_RESOURCE, names.VMEMORY_RESOURCE):
        with pytest.raises(
            apiserver.ServerError, match="only cpu and memory resources are mutable"
        ):
            resize(space, "one", {resource: "90"})
    space.server.call("DELETE", space.path("pods", "one"), body={"gracePeriodSeconds": 1})
    assert space.until_gone("pods", "one")
    # kube-scheduler alone would retry only after 5 min.
    space.until("pods", "waits", lambda pod: pod["spec"].get("nodeName"))
