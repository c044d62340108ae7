"""A Node object without a machine or kubelet: tests write the status of its pods."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import rig

from pyvgpu import names
from pyvgpu.kube import apiserver

if TYPE_CHECKING:
    from collections.abc import Iterator

NODE = "paper-1"
AT = "2026-11-21T10:00:00Z"
LABELS = {names.SIDECAR_LABEL: "managed"}


@contextlib.contextmanager
def node() -> Iterator[None]:
    """Create the node, which has the fast-exit image and no sidecar node agent."""
    api = rig.as_admin().server
    api.call("POST", "/api/v1/nodes", body={"metadata": {"name": NODE}})
    images = [{"names": [rig.FAST_EXIT], "sizeBytes": 1}]
    body = {"status": {"images": images, "nodeInfo": {"kubeletVersion": "v1.36.3"}}}
    api.call("PATCH", f"/api/v1/nodes/{NODE}/status", body=body, kind=apiserver.MERGE_PATCH)
    try:
        yield
    finally:
        api.call("DELETE", f"/api/v1/nodes/{NODE}")


def pod(name: str, *containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """Return a pod on the node with the label that the controller watches."""
    made = rig.pod(name, *containers, nodeName=NODE, **spec)
    made["metadata"]["labels"] = dict(LABELS)
    return made


def sidecar(name: str = "side", **more: Any) -> dict[str, Any]:
    """Return a marked container that uses its image's ENTRYPOINT."""
    env = [{"name": names.SIDECAR_VARIABLE, "value": "true"}]
    return {"name": name, "image": rig.BUSYBOX, "imagePullPolicy": "Never", "env": env, **more}


def running(name: str) -> dict[str, Any]:
    """Return the status of a running container."""
    return _status(name, running={"startedAt": AT})


def ended(name: str, code: int, at: str | None = AT) -> dict[str, Any]:
    """Return the status of a terminated container."""
    return _status(name, terminated={"exitCode": code, "finishedAt": at})


def waiting(name: str, reason: str) -> dict[str, Any]:
    """Return the status of a waiting container."""
    return _status(name, waiting={"reason": reason})


def say(space: rig.Space, pod: str, *statuses: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Write a pod's status, as kubelet would."""
    body = {"status": {"phase": "Running", "containerStatuses": list(statuses), **more}}
    path = space.path("pods", pod) + "/status"
    return space.server.call("PATCH", path, body=body, kind=apiserver.MERGE_PATCH)


def _status(name: str, **state: Any) -> dict[str, Any]:
    return {
        "name": name,
        "image": rig.BUSYBOX,
        "imageID": "",
        "ready": False,
        "restartCount": 0,
        "containerID": f"containerd://{name}",
        "state": state,
    }
