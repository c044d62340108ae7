"""Short constructors of pods and nodes for scheduler tests."""

from allocator_nodes import GIB, device

from pyvgpu import names
from pyvgpu.allocator import annotations, datatypes

UNIT = 256 << 20
KEY = b"k" * 32
UNITS_OF_A_GIB = GIB // UNIT


def container(name="main", vcore=50, size=8, **more):
    """Return a container with these limits, *size* in GiB; an amount of None is left out."""
    asked = {names.VCORE_RESOURCE: vcore, names.VMEMORY_RESOURCE: size}
    if size is not None:
        asked[names.VMEMORY_RESOURCE] = size * UNITS_OF_A_GIB
    limits = {key: str(number) for key, number in asked.items() if number is not None}
    return {"name": name, "resources": {"limits": limits, "requests": limits}, **more}


def pod(name="one", *containers, init=(), notes=None, uid=None, **spec):
    """Return a pod as the API server stores it."""
    return {
        "metadata": {
            "namespace": "team",
            "name": name,
            "uid": uid or f"uid-{name}",
            "creationTimestamp": "2026-11-22T03:00:00Z",
            "annotations": notes or {},
        },
        "spec": {
            "containers": list(containers) or [container()],
            "initContainers": list(init),
            **spec,
        },
        "status": {"phase": "Pending"},
    }


def bind(thing, node, shares, key=KEY):
    """Bind a pod as the scheduler does: with its sealed device choice."""
    uid = thing["metadata"]["uid"]
    sealed = annotations.seal(annotations.DeviceChoice(uid, node, shares), key)
    thing["metadata"]["annotations"] = {
        **thing["metadata"]["annotations"],
        names.DEVICES_ANNOTATION: sealed,
    }
    thing["spec"]["nodeName"] = node
    return thing


def published(count=2, devices=None, placed=None, **fields):
    """Return the annotation of a node that has *count* devices."""
    found = devices or tuple(device(index, **fields) for index in range(count))
    return annotations.Published(UNIT, found, placed=placed or {})


def share(device_number, vcore=50, size=8):
    return datatypes.NodeShare(device(device_number).uuid, vcore, size * GIB)
