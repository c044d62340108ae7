"""Synthetic cluster for benchmarks/scheduler.py, as listed by an API server: nodes and pods."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

from allocator import machine

from pyvgpu import names
from pyvgpu.allocator import annotations, datatypes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

GIB = 1 << 30
UNIT = 256 << 20
KEY = b"of a benchmark, not secret." * 2
DEVICES = 8
PAGE = 500  # objects, as the API server lists them
NEWS = "news\n"  # the line after which a watch begins
MOST_NEWS = 20_000
SMALL = (1, 1)  # fits on nearly full devices
SIZES = ((10, 4), (10, 8), (20, 8), (25, 16), (30, 20), (50, 30))  # vcore and GiB of shares


def name_of(number: int) -> str:
    """Return the name of a node."""
    return f"gpu-node-{number:05d}"


def node(number: int) -> dict[str, Any]:
    """Return a node with eight devices that are linked to each other, two of each switch."""
    devices = tuple(_of(device, number) for device in machine(DEVICES))
    text = annotations.publish(annotations.Published(UNIT, devices))
    return {
        "metadata": {
            "name": name_of(number),
            "uid": f"{number:08x}-0000-4000-8000-000000000000",
            "annotations": {names.NODE_DEVICES_ANNOTATION: text},
            "labels": {"kubernetes.io/hostname": name_of(number)},
        },
        "status": {"conditions": [{"type": "Ready", "status": "True"}] * 5},
    }


def _of(device: datatypes.NodeDevice, number: int) -> datatypes.NodeDevice:
    def named(uuid: str) -> str:
        return f"GPU-{number:08x}-{uuid[13:]}"[:36] + uuid[8:12]

    links = {named(uuid): link for uuid, link in device.links.items()}
    return datatypes.NodeDevice(
        named(device.uuid),
        device.index,
        device.memory_bytes,
        device.model,
        numa=device.numa,
        links=links,
        least_bytes=640 << 20,
    )


def pod(number: int, vcore: int, size: int, **spec: Any) -> dict[str, Any]:
    """Return a pod that requests a share, *size* in GiB, with the usual other fields."""
    limits = {
        "cpu": "4",
        "memory": "16Gi",
        names.VCORE_RESOURCE: str(vcore),
        names.VMEMORY_RESOURCE: str(size * GIB // UNIT),
    }
    return {
        "metadata": {
            "namespace": f"team-{number % 50}",
            "name": f"worker-{number}",
            "uid": f"{number:08x}-1111-4000-8000-{number:012x}",
            "creationTimestamp": "2026-11-22T03:00:00Z",
            "labels": {"app": "worker", "job-name": f"job-{number % 1000}"},
            "annotations": {},
        },
        "spec": {
            "containers": [
                {
                    "name": "main",
                    "image": "registry.example/worker:1",
                    "resources": {"limits": limits, "requests": limits},
                    "env": [{"name": f"VARIABLE_{at}", "value": "x" * 20} for at in range(10)],
                    "volumeMounts": [{"name": "token", "mountPath": "/var/run/secrets"}],
                },
                {"name": "side", "image": "registry.example/side:1"},
            ],
            "volumes": [{"name": "token", "projected": {"sources": [{}, {}, {}]}}],
            "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists"}] * 2,
            **spec,
        },
        "status": {"phase": "Running" if "nodeName" in spec else "Pending"},
    }


def pods(nodes: int, count: int) -> Iterator[dict[str, Any]]:
    """Yield *count* pods on *nodes* nodes, each on a device with room for it."""
    draw = random.Random(8)
    uuids = [[_of(device, number).uuid for device in machine(DEVICES)] for number in range(nodes)]
    left = [[[datatypes.WHOLE, 80] for _ in range(DEVICES)] for _ in range(nodes)]
    for number in range(count):
        at = number % nodes
        size = draw.choice(SIZES)
        device = _room(draw, left[at], size)
        if device is None:
            size = SMALL
            device = _room(draw, left[at], size)
        if device is not None:
            left[at][device][0] -= size[0]
            left[at][device][1] -= size[1]
            yield bound(number, name_of(at), uuids[at][device], size)


def _room(draw: random.Random, left: list[list[int]], size: tuple[int, int]) -> int | None:
    fitting = [at for at, free in enumerate(left) if free[0] >= size[0] and free[1] >= size[1]]
    return draw.choice(fitting) if fitting else None


def bound(number: int, node: str, uuid: str, size: tuple[int, int]) -> dict[str, Any]:
    """Return a pod with its choice, sealed."""
    vcore, gib = size
    found = pod(number, vcore, gib, nodeName=node)
    share = datatypes.NodeShare(uuid, vcore, gib * GIB)
    choice = annotations.DeviceChoice(found["metadata"]["uid"], node, {"main": (share,)})
    found["metadata"]["annotations"][names.DEVICES_ANNOTATION] = annotations.seal(choice, KEY)
    return found


def news(known: list[dict[str, Any]], count: int) -> Iterator[str]:
    """Yield watch events of pods that end and are replaced by others."""
    draw = random.Random(9)
    for number in range(count // 2):
        at = draw.randrange(len(known))
        meta, spec = known[at]["metadata"], known[at]["spec"]
        yield json.dumps({"type": "DELETED", "key": f"{meta['namespace']}/{meta['name']}"})
        choice = json.loads(meta["annotations"][names.DEVICES_ANNOTATION])
        (share,) = choice["containers"]["main"]
        size = share["vcore"], share["bytes"] // GIB
        known[at] = bound(10_000_000 + number, spec["nodeName"], share["uuid"], size)
        yield json.dumps({"type": "ADDED", "object": known[at]})


def write(path: Path, nodes: int, count: int) -> None:
    """Write lists of nodes and pods, and the watch events after them."""
    known: list[dict[str, Any]] = []
    draw = random.Random(7)

    def kept() -> Iterator[dict[str, Any]]:
        for found in pods(nodes, count):
            if draw.randrange(count) < MOST_NEWS // 4:  # some will have watch events
                known.append(found)
            yield found

    with path.open("w") as file:
        for page in pages(node(number) for number in range(nodes)):
            file.write(page + "\n")
        for page in pages(kept()):
            file.write(page + "\n")
        file.write(NEWS)
        for line in news(known, MOST_NEWS):
            file.write(line + "\n")


def pages(things: Iterator[dict[str, Any]]) -> Iterator[str]:
    """Yield lists of objects as text, as the API server sends them."""
    page: list[dict[str, Any]] = []
    for thing in things:
        page.append(thing)
        if len(page) == PAGE:
            yield json.dumps({"items": page})
            page = []
    yield json.dumps({"items": page})
