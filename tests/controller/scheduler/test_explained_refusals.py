"""`pyvgpu explain POD` for a pod that its node refuses to start, even without an extender."""

import dataclasses
import json

import pytest
import scheduling_api as make
import small_api

from pyvgpu import cli, names
from pyvgpu.allocator import annotations, datatypes

FULL = (
    "there is no room on this node for now: "
    "gpu0 needs 70 vcore, has 40 free (n/p0 60 vcore 2GiB); "
    "gpu1 needs 70 vcore, has 40 free (n/p1 60 vcore 2GiB)"
)
NODE = "/api/v1/nodes/node-1"


@pytest.fixture
def ask(cluster, tmp_path, capsys):
    """Run `pyvgpu explain` with an API server and a node whose devices have a tenant each."""
    api, connection = cluster
    written = tmp_path / "kubeconfig"
    small_api.write_kubeconfig(written, connection, namespace="n")
    place(api, "p0", "p1")
    for name in ("p0", "p1"):
        api.put(make.path(name), make.pod(name, 60, 8, nodeName="node-1"))

    def run(*arguments):
        code = cli.main(["explain", *arguments, "--kubeconfig", str(written)])
        return code, *capsys.readouterr()

    return run


def place(api, *tenants, devices=()):
    """Publish that the agent placed 60 vcore of each pod, one on each device."""
    has = devices or make.devices("node-1")
    placed = {
        f"uid-{name}": {"main": (datatypes.NodeShare(device.uuid, 60, 2 << 30),)}
        for name, device in zip(tenants, has, strict=False)
    }
    text = annotations.publish(annotations.Published(make.UNIT, has, placed=placed))
    noted = {names.NODE_DEVICES_ANNOTATION: text}
    api.put(NODE, {"metadata": {"name": "node-1", "annotations": noted}})


def refused(name="gap", text=FULL, vcore=70, key="containerStatuses", **spec):
    """Return a pod that kubelet does not start because the agent refused it."""
    made = make.pod(name, vcore, 8, nodeName="node-1", **spec)
    said = (
        "device plugin PreStartContainer rpc failed with err: rpc error: code = "
        f"FailedPrecondition desc = pyvgpu: {text}"
    )
    waiting = {"reason": "CreateContainerConfigError", "message": said}
    made["status"][key] = [{"name": "main", "state": {"waiting": waiting}}]
    return made


TABLE = [
    "NODE    DEVICE  CONTAINER  WHY NOT",
    "node-1  gpu0    main       needs 70 vcore, has 40 free (n/p0 60 vcore 2GiB)",
    "node-1  gpu1    main       needs 70 vcore, has 40 free (n/p1 60 vcore 2GiB)",
]


@pytest.mark.parametrize("key", ["containerStatuses", "initContainerStatuses"])
def test_of_a_pod_on_a_full_node_each_device_is_explained(cluster, ask, key):
    cluster[0].put(make.path("gap"), refused(key=key))
    code, out, err = ask("gap")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "pod n/gap: Pending on node-1",
        f"  container main: refused by node-1: {FULL}",
        "  nearest: node-1 gpu0 needs 70 vcore, has 40 free (n/p0 60 vcore 2GiB); it would fit if "
        "n/p0 ended, or if it asked for 40 vcore and 2GiB",
        "waits for: room on a device of node-1; kubelet tries again every 10 to 15 seconds",
        *TABLE,
    ]


def test_the_same_as_json(cluster, ask):
    cluster[0].put(make.path("gap"), refused())
    document = json.loads(ask("gap", "--json")[1])
    assert (document["pod"], document["node"], document["phase"]) == ("n/gap", "node-1", "Pending")
    assert (document["container"], document["refused"]) == ("main", FULL)
    assert document["waitsFor"].startswith("room on a device of node-1")
    (node,) = document["nodes"]
    assert [device["device"] for device in node["devices"]] == ["gpu0", "gpu1"]


def test_once_there_is_room_the_pod_waits_for_kubelet(cluster, ask):
    api, _ = cluster
    api.put(make.path("gap"), refused())
    place(api, "p0")
    assert ask("gap")[1].splitlines()[-1] == (
        "waits for: kubelet, which tries again every 10 to 15 seconds: there is room now"
    )


def test_if_all_devices_are_closed_the_pod_waits_for_an_open_one(cluster, ask):
    api, _ = cluster
    first, second = make.devices("node-1")
    other = "another device plugin (nvidia.com/gpu: 2)"
    closed = (
        dataclasses.replace(first, cordoned=True),
        dataclasses.replace(second, allocated_by=other),
    )
    place(api, devices=closed)
    text = f"there is no room on this node for now: gpu0 is cordoned; gpu1 is allocated by {other}"
    api.put(make.path("gap"), refused(text=text))
    assert (
        "waits for: a device of node-1 that takes new containers; kubelet tries again every 10 "
        "to 15 seconds"
    ) in ask("gap")[1].splitlines()


def test_other_waiting_pods_take_no_room(cluster, ask):
    api, _ = cluster
    api.put(make.path("gap"), refused())
    api.put(make.path("other"), refused("other"))
    assert ask("gap")[1].splitlines()[-3:] == TABLE


def test_an_impossible_request_waits_for_nothing(cluster, ask):
    text = "container main: vcore 70 without vmemory: a share needs some"
    cluster[0].put(make.path("gap"), refused(text=text))
    assert ask("gap")[1].splitlines()[:3] == [
        "pod n/gap: Pending on node-1",
        f"  container main: refused by node-1: {text}",
        f"waits for: {text}",
    ]


def test_a_pod_waits_for_the_devices_that_its_scheduler_chose(cluster, ask):
    api, _ = cluster
    text = "the devices chosen for it cannot be given for now: gpu0 has 40 vcore and 14GiB free"
    thing = refused(text=text, vcore=40)
    share = datatypes.NodeShare("GPU-node-1-0", 40, 2 << 30)
    choice = annotations.DeviceChoice("uid-gap", "node-1", {"main": (share,)})
    thing["metadata"]["annotations"] = {
        names.DEVICES_ANNOTATION: annotations.seal(choice, make.KEY)
    }
    api.put(make.path("gap"), thing)
    assert ask("gap")[1].splitlines()[-1] == (
        "waits for: room on the devices that its scheduler has chosen on node-1; kubelet tries "
        "again every 10 to 15 seconds"
    )


@pytest.mark.parametrize(
    ("path", "words"),
    [
        (NODE, "not known: node node-1: you may not read it"),
        ("/api/v1/pods", "not known: pods of node-1: you may not list them"),
    ],
)
def test_without_further_permissions_it_shows_the_nodes_refusal(cluster, ask, path, words):
    api, _ = cluster
    api.put(make.path("gap"), refused())
    api.forbidden = (path,)
    code, out, _ = ask("gap")
    assert code == 0
    assert f"  container main: refused by node-1: {FULL}" in out.splitlines()
    assert f"  {words}" in out.splitlines()
