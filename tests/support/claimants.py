"""A kubelet-less node with DRA devices in the e2e cluster, and pods with claims for it.

Only kube-scheduler uses the node: it binds pods there, and no kubelet starts them. So tests can
watch claims being allocated whatever API offers the devices of the cluster's own node.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import claim_objects as make
import gpu_pods as gpu
import rig

from pyvgpu.kube import apiserver

if TYPE_CHECKING:
    from collections.abc import Iterator

NODE = "claims-node"
GIB = 1 << 30
DEVICES = 2  # of 16 GiB


@contextlib.contextmanager
def node() -> Iterator[None]:
    """Create the node and its ResourceSlice for the length of the block."""
    api = rig.as_admin().server
    room = {"cpu": "64", "memory": "256Gi", "pods": "100"}
    ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "fake"}
    labels = {"kubernetes.io/hostname": NODE}
    status = {"capacity": room, "allocatable": room, "conditions": [ready]}
    body = {"metadata": {"name": NODE, "labels": labels}, "status": status}
    made = api.call("POST", "/api/v1/nodes", body=body)
    own = make.slice_of(NODE, *map(_device, range(DEVICES)))
    owner = {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": made["metadata"]["uid"]}
    own["metadata"] = {"name": f"{NODE}-slice", "ownerReferences": [owner]}
    api.call("POST", f"{make.GROUP}/resourceslices", body=own)
    try:
        yield
    finally:
        api.call("DELETE", f"{make.GROUP}/resourceslices/{NODE}-slice")
        api.call("DELETE", f"/api/v1/nodes/{NODE}")


def _device(number: int) -> dict[str, Any]:
    """Return a device as the agent publishes one."""
    found = make.device(number, allowMultipleAllocations=True)
    for name, (most, least) in {"vcore": ("100", "1"), "vmemory": ("16Gi", "256Mi")}.items():
        step = "1" if name == "vcore" else "1Mi"
        valid = {"min": least, "max": most, "step": step}
        policy = {"default": most, "validRange": valid}
        found["capacity"][name] = {"value": most, "requestPolicy": policy}
    return found


def pod(name: str, *containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """Return a pod for that node."""
    made = rig.pod(
        name,
        *containers,
        nodeSelector={"kubernetes.io/hostname": NODE},
        tolerations=[{"operator": "Exists"}],
        **spec,
    )
    return made


def container(name: str, vcore: int | None, vmemory: int | None = None) -> dict[str, Any]:
    """Return a container with extended-resource limits; *vmemory* in units of 256 MiB."""
    return rig.container(
        name, "sleep 1000", resources=gpu.container(name, vcore, vmemory)["resources"]
    )


def limited(name: str, amounts: dict[str, str]) -> dict[str, Any]:
    """Return a container with these limits."""
    return rig.container(name, "sleep 1000", resources={"limits": amounts})


def claim_names(pod: dict[str, Any]) -> dict[str, str]:
    """Return the names of a pod's generated claims, by the names of its claim entries."""
    listed = pod["status"].get("resourceClaimStatuses") or ()
    return {
        status["name"]: status["resourceClaimName"]
        for status in listed
        if status.get("resourceClaimName")
    }


def consumed(claim: dict[str, Any]) -> list[tuple[str, str | None, str | None]]:
    """Return the name, vcore and vmemory of each device allocated to a claim."""
    results = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ())
    return [
        (
            result["device"],
            *(result.get("consumedCapacity", {}).get(k) for k in ("vcore", "vmemory")),
        )
        for result in results
    ]


def annotate(space: rig.Space, changes: dict[str, str]) -> None:
    """Annotate the namespace itself, as its administrator does."""
    body = {"metadata": {"annotations": changes}}
    path = f"/api/v1/namespaces/{space.name}"
    space.server.call("PATCH", path, body=body, kind=apiserver.MERGE_PATCH)
