"""Slices, classes, claims and pods with claims, as the API server gives them, from few words."""

from __future__ import annotations

from typing import Any

GROUP = "/apis/resource.k8s.io/v1"
DRIVER = "pyvgpu.io"


def device(number: int, memory: str = "16Gi", **more: Any) -> dict[str, Any]:
    """Return a device of a slice: GPU-<number>."""
    return {
        "name": f"gpu-{number}",
        "attributes": {"uuid": {"string": f"GPU-{number}"}, "model": {"string": "Tesla T4"}},
        "capacity": {
            "vcore": {"value": "100"},
            "vmemory": {"value": memory, "requestPolicy": {"validRange": {"min": "256Mi"}}},
        },
        **more,
    }


def slice_of(node: str, *devices: dict[str, Any], generation: int = 1) -> dict[str, Any]:
    """Return the slice of a node, which is a pool of its own."""
    return {
        "metadata": {"name": f"{node}-{generation}"},
        "spec": {
            "driver": DRIVER,
            "nodeName": node,
            "pool": {"name": node, "generation": generation, "resourceSliceCount": 1},
            "devices": list(devices),
        },
    }


def device_class(name: str, *expressions: str) -> dict[str, Any]:
    """Return a class; of the driver alone, if nothing is said."""
    said = expressions or (f'device.driver == "{DRIVER}"',)
    return {
        "metadata": {"name": name},
        "spec": {"selectors": [{"cel": {"expression": it}} for it in said]},
    }


def request(vcore: int | None, vmemory: str | None, **more: Any) -> dict[str, Any]:
    """Return a request of class vgpu; what is None is not said."""
    said = {"vcore": vcore, "vmemory": vmemory}
    wanted = {key: str(value) for key, value in said.items() if value is not None}
    asked = {"deviceClassName": "vgpu", "allocationMode": "ExactCount", "count": 1, **more}
    if wanted:
        asked["capacity"] = {"requests": wanted}
    return {"name": "vgpu", "exactly": asked}


def claim(name: str, *requests: dict[str, Any], namespace: str = "team") -> dict[str, Any]:
    """Return a claim that has nothing yet."""
    metadata = {"namespace": namespace, "name": name, "uid": f"uid-{name}"}
    return {"metadata": metadata, "spec": {"devices": {"requests": list(requests)}}}


def got(
    made: dict[str, Any], pod: str, *results: tuple[str, int, str | None, str | None]
) -> dict[str, Any]:
    """Return a claim that a pod has: for each device its node, number, vcore and vmemory."""
    listed = []
    for node, number, vcore, vmemory in results:
        said = {"vcore": vcore, "vmemory": vmemory}
        listed.append(
            {
                "driver": DRIVER,
                "request": "vgpu",
                "pool": node,
                "device": f"gpu-{number}",
                "consumedCapacity": {key: it for key, it in said.items() if it is not None},
            }
        )
    users = [{"resource": "pods", "name": pod, "uid": f"uid-{pod}"}] if pod else []
    status = {"allocation": {"devices": {"results": listed}}, "reservedFor": users}
    return {**made, "status": status}


def pod(
    name: str, *entries: dict[str, Any], statuses: tuple[tuple[str, str], ...] = (), **meta: Any
) -> dict[str, Any]:
    """Return a pod that waits; *statuses* are names of claims that were made for it."""
    made = [{"name": one, "resourceClaimName": two} for one, two in statuses]
    return {
        "metadata": {"namespace": "team", "name": name, "uid": f"uid-{name}", **meta},
        "spec": {
            "resourceClaims": list(entries),
            "containers": [{"name": "main", "resources": {}}],
        },
        "status": {"phase": "Pending", "resourceClaimStatuses": made},
    }
