"""Pods with a sidecar, and manual operations on them without the sidecar controller."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import rig

if TYPE_CHECKING:
    from pyvgpu.controller.sidecar import cri

MAIN = "sleep 1"


def stop(runtime: cri.RuntimeClient, pod: dict[str, Any], name: str, seconds: float = 30) -> None:
    """Stop a container through the container runtime, without kubelet's knowledge.

    It is killed after *seconds*: use 1 for a container that ignores SIGTERM.
    """
    found = {one.name: one for one in runtime.newest(pod["metadata"]["uid"])}
    runtime.stop(found[name].id, seconds, kill=True)


def main_is_done(pod: dict[str, Any]) -> bool:
    """Return whether the main container has succeeded while the sidecar still runs."""
    return rig.exit_code(pod, "main") == 0 and rig.runs(pod, "side")


def started(space: rig.Space, *containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """Create a pod; return it when its main container is done and its sidecar is ready."""
    space.create("pods", rig.pod("p", *containers, **spec))
    return _when_ready(space, space.until("pods", "p", main_is_done))


def started_job(space: rig.Space, template: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """Do the same with a Job; return its first pod."""
    space.create("jobs", rig.job("j", template, **spec))
    pod = space.until_any("pods", "batch.kubernetes.io/job-name=j", main_is_done)
    return _when_ready(space, pod)


def _when_ready(space: rig.Space, pod: dict[str, Any]) -> dict[str, Any]:
    """Return *pod* when its sidecar has set its trap, if it sets one.

    A container counts as running before its shell has read the script.
    """
    (side,) = (entry for entry in pod["spec"]["containers"] if entry["name"] == "side")
    if side.get("command", [""])[-1].startswith("trap"):
        space.first_line(pod["metadata"]["name"], "side")
    return pod


def swap(space: rig.Space, pod: dict[str, Any], **annotations: str) -> None:
    """Set the sidecar's image to fast-exit and change annotations, in one JSON patch."""
    name = pod["metadata"]["name"]
    changes = [
        {"op": "replace", "path": f"/metadata/annotations/{key}", "value": value}
        for key, value in annotations.items()
    ]
    place = [container["name"] for container in pod["spec"]["containers"]].index("side")
    at = f"/spec/containers/{place}"
    space.patch(
        name,
        {"op": "test", "path": "/metadata/uid", "value": pod["metadata"]["uid"]},
        {"op": "test", "path": f"{at}/name", "value": "side"},
        {"op": "replace", "path": f"{at}/image", "value": rig.FAST_EXIT},
        *changes,
    )


def moved(script: str, **more: Any) -> dict[str, Any]:
    """Return a sidecar that takes its argv[0] from an annotation."""
    side = rig.container("side", script, **more)
    field = {"fieldRef": {"fieldPath": "metadata.annotations['program']"}}
    side["command"] = ["$(PROGRAM)", *side["command"][1:]]
    side["env"] = [{"name": "PROGRAM", "valueFrom": field}]
    return side


def with_program(pod: dict[str, Any]) -> dict[str, Any]:
    """Return a pod with the annotation that such a sidecar needs to start."""
    pod["metadata"]["annotations"] = {"program": "/bin/sh"}
    return pod
