"""Pods with DRA claims in the e2e cluster, and the ResourceSlices that the driver publishes."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import agents
import rig

from pyvgpu.kube import apiserver

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

CLASS = "rig"  # selects all devices
# Part of the spec of every pod with claims. Without a token kubelet may request the claim before
# the API server knows that the pod is on its node, and then retries only after a minute; with a
# token it first waits for that, which needs the same knowledge.
TOKEN = {"automountServiceAccountToken": True}
_GROUP = "/apis/resource.k8s.io/v1"
_SLICES = f"{_GROUP}/resourceslices"
_CLASSES = f"{_GROUP}/deviceclasses"


@contextlib.contextmanager
def device_class(name: str = CLASS, **attributes: str) -> Iterator[None]:
    """Create a DeviceClass of devices with these attributes for the length of the block."""
    said = ['device.driver == "pyvgpu.io"'] + [
        f'device.attributes["pyvgpu.io"].{key} == "{value}"' for key, value in attributes.items()
    ]
    made = {
        "metadata": {"name": name},
        "spec": {"selectors": [{"cel": {"expression": " && ".join(said)}}]},
    }
    api = rig.as_admin().server
    api.call("POST", _CLASSES, body=made)
    try:
        yield
    finally:
        api.call("DELETE", f"{_CLASSES}/{name}")


def slices() -> list[dict[str, Any]]:
    """Return the ResourceSlices of this driver."""
    found = rig.as_admin().server.items(_SLICES, {"fieldSelector": "spec.driver=pyvgpu.io"})[0]
    return list(found)


def published(node: str = "") -> dict[str, list[str]]:
    """Return the keys of the taints of each published device, by its UUID.

    Of all nodes, or of one *node*.
    """
    return {
        device["attributes"]["uuid"]["string"]: [each["key"] for each in device.get("taints", ())]
        for one in slices()
        if node in ("", one["spec"].get("nodeName"))
        for device in one["spec"].get("devices", ())
    }


def become(agent: agents.Agent, *options: str) -> agents.Agent:
    """Run *agent* with these options; return it when its devices are published.

    The slices of the previous agent stay for a while.
    """
    if agent.make_way(*options):
        agent.begin(*options)
    own = {device.uuid for device in agent.machine.devices}
    agent.wait(lambda: (found := published(agent.place.node)) and found.keys() <= own)
    return agent


def registrations(agent: agents.Agent) -> int:
    """Return how often kubelet has registered the driver."""
    return agent.log.read_text().count("kubelet has registered the DRA driver")


def request(
    vcore: int | None = None,
    vmemory: str | None = None,
    name: str = "vgpu",
    kind: str = CLASS,
    **more: Any,
) -> dict[str, Any]:
    """Return a request of a claim."""
    wanted = {"vcore": vcore and str(vcore), "vmemory": vmemory}
    asked = {key: value for key, value in wanted.items() if value}
    exactly = {"deviceClassName": kind, **more}
    return {
        "name": name,
        "exactly": {**exactly, **({"capacity": {"requests": asked}} if asked else {})},
    }


def template(name: str, *requests: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return a ResourceClaimTemplate."""
    devices = {"requests": list(requests), **more}
    return {"metadata": {"name": name}, "spec": {"spec": {"devices": devices}}}


def claim(name: str, *requests: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return a claim."""
    return {"metadata": {"name": name}, "spec": {"devices": {"requests": list(requests), **more}}}


def container(name: str, script: str = "", *, part: str = "", **more: Any) -> dict[str, Any]:
    """Return a client container that uses the pod's claim, or its request *part*."""
    made = agents.container(name, 0, 0, script, **more)
    used = {"name": "own", **({"request": part} if part else {})}
    return {**made, "resources": {"claims": [used]}}


def pod(name: str, *containers: dict[str, Any], of: str, claim: str = "", **spec: Any) -> Any:
    """Return a pod with a claim from the template *of*, or with the existing *claim*."""
    own = {"resourceClaimName": claim} if claim else {"resourceClaimTemplateName": of}
    more = {**TOKEN, **spec}
    return rig.pod(name, *containers, resourceClaims=[{"name": "own", **own}], **more)


def start(
    space: rig.Space, name: str, script: str, *requests: dict[str, Any], **spec: Any
) -> None:
    """Create a one-container pod whose claim has these requests."""
    space.create("resourceclaimtemplates", template(name, *requests))
    space.create("pods", pod(name, container("main", script), of=name, **spec))


def claim_of(pod: Mapping[str, Any]) -> str:
    """Return the name of the claim that was generated for a pod."""
    (status,) = pod["status"]["resourceClaimStatuses"]
    return str(status["resourceClaimName"])


def merge(path: str, body: Mapping[str, Any]) -> None:
    """Merge-patch the object at *path*."""
    rig.as_admin().server.call("PATCH", path, body=body, kind=apiserver.MERGE_PATCH)
