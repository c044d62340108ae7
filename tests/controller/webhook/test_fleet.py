"""Summary of all nodes, as they come and go."""

import threading

import pytest
import waiting

from pyvgpu.allocator import annotations, datatypes
from pyvgpu.controller.sidecar import controller_settings
from pyvgpu.controller.webhook.shell import fleet
from pyvgpu.kube import informer

UNIT = 256 << 20
GIB = 1 << 30


def device(index, gibibytes, **more):
    return datatypes.NodeDevice(
        f"GPU-{index}", index, gibibytes * GIB, "T4", numa=index % 2, **more
    )


def node(*devices, name="n", unit=UNIT, release="v1.36.3", text=None):
    published = annotations.publish(annotations.Published(unit, devices)) if text is None else text
    noted = {"pyvgpu.io/node-devices": published} if devices or text is not None else {}
    info = {"nodeInfo": {"kubeletVersion": release}, "images": [{"names": ["a"]}]}
    return {"metadata": {"name": name, "annotations": noted}, "status": info}


def sizes(found):
    return sorted(gpu.memory_bytes // GIB for gpu in found)


def test_devices_of_one_kind_are_merged():
    unhealthy = device(2, 16, unhealthy="lost", cordoned=True)
    found = fleet.kinds(node(device(0, 16), device(1, 16), unhealthy, device(3, 80)), UNIT)
    assert sizes(found) == [16, 80]


@pytest.mark.parametrize(
    "thing",
    [node(), node(text="garbage"), node(text='{"v": 2}'), node(device(0, 16), unit=GIB), {}],
)
def test_an_invalid_annotation_of_a_node_is_ignored(thing):
    assert fleet.kinds(thing, UNIT) == frozenset()


def test_nodes_are_watched(small, monkeypatch):
    monkeypatch.setattr(fleet, "AGAIN_SECONDS", 0.0)
    api, connection = small
    api.put("/api/v1/nodes/a", node(device(0, 16), name="a"))
    known = fleet.Fleet(
        connection, controller_settings.SidecarSettings(), UNIT, informer.Counting()
    )
    assert (known.synced, known.devices(), known.oldest_kubelet()) == (False, (), None)
    stop = threading.Event()
    threading.Thread(target=known.run, args=(stop,)).start()
    waiting.wait_until(lambda: known.synced)
    assert sizes(known.devices()) == [16]
    assert known.oldest_kubelet() == (1, 36)
    api.put("/api/v1/nodes/b", node(device(0, 80), name="b", release="v1.30.0"))
    waiting.wait_until(lambda: sizes(known.devices()) == [16, 80])
    assert known.oldest_kubelet() == (1, 30)
    api.delete("/api/v1/nodes/a")
    waiting.wait_until(lambda: sizes(known.devices()) == [80])
    stop.set()
