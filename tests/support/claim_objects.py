"""Short constructors of ResourceSlices, DeviceClasses, ResourceClaims and pods with claims."""

from __future__ import annotations

from typing import Any

GROUP = "/apis/resource.k8s.io/v1"
DRIVER = "pyvgpu.io"


def device(number: int, memory: str = "16Gi", **more: Any) -> dict[str, Any]:
    """Return the device GPU-<number> of a ResourceSlice."""
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
    """Return the ResourceSlice of a node; each node is a pool."""
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
    """Return a DeviceClass; without *expressions* it selects all devices of the driver."""
    said = expressions or (f'device.driver == "{DRIVER}"',)
    return {
        "metadata": {"name": name},
        "spec": {"selectors": [{"cel": {"expression": expression}} for expression in said]},
    }


def request(vcore: int | None, vmemory: str | None, **more: Any) -> dict[str, Any]:
    """Return a request of class vgpu; an amount of None is left out."""
    said = {"vcore": vcore, "vmemory": vmemory}
    wanted = {key: str(value) for key, value in said.items() if value is not None}
    asked = {"deviceClassName": "vgpu", "allocationMode": "ExactCount", "count": 1, **more}
    if wanted:
        asked["capacity"] = {"requests": wanted}
    return {"name": "vgpu", "exactly": asked}


def claim(name: str, *requests: dict[str, Any], namespace: str = "team") -> dict[str, Any]:
    """Return a claim without an allocation."""
    metadata = {"namespace": namespace, "name": name, "uid": f"uid-{name}"}
    return {"metadata": metadata, "spec": {"devices": {"requests": list(requests)}}}


def got(
    made: dict[str, Any], pod: str, *results: tuple[str, int, str | None, str | None]
) -> dict[str, Any]:
    """Return *made* allocated to a pod; *results* are (node, device number, vcore, vmemory)."""
    listed = []
    for node, number, vcore, vmemory in results:
        said = {"vcore": vcore, "vmemory": vmemory}
        listed.append(
            {
                "driver": DRIVER,
                "request": "vgpu",
                "pool": node,
                "device": f"gpu-{number}",
                "consumedCapacity": {
                    key: amount for key, amount in said.items() if amount is not None
                },
            }
        )
    users = [{"resource": "pods", "name": pod, "uid": f"uid-{pod}"}] if pod else []
    status = {"allocation": {"devices": {"results": listed}}, "reservedFor": users}
    return {**made, "status": status}


def pod(
    name: str, *entries: dict[str, Any], statuses: tuple[tuple[str, str], ...] = (), **meta: Any
) -> dict[str, Any]:
    """Return a pending pod; *statuses* pair its claim entries with the generated claims."""
    made = [{"name": one, "resourceClaimName": two} for one, two in statuses]
    return {
        "metadata": {"namespace": "team", "name": name, "uid": f"uid-{name}", **meta},
        "spec": {
            "resourceClaims": list(entries),
            "containers": [{"name": "main", "resources": {}}],
        },
        "status": {"phase": "Pending", "resourceClaimStatuses": made},
    }
