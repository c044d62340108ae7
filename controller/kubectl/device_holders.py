"""Device allocations of a cluster's pods, read from Kubernetes objects; pure.

The scheduler's placements are in annotations of pods, the agents' own in annotations of nodes, and
those of DRA in claims. Signatures are not verified, because this module allocates nothing.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pyvgpu import errors, names, quota
from pyvgpu.allocator import annotations as notes
from pyvgpu.allocator import datatypes, isolation, suspensions
from pyvgpu.controller.claims import dra_objects
from pyvgpu.controller.scheduler import node_annotation_reader, pod_request
from pyvgpu.kube import objects

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyvgpu.kube.objects import Object


@dataclasses.dataclass(frozen=True, slots=True)
class ClusterObjects:
    """The objects read of a cluster; kinds that we may not list are empty."""

    pods: Sequence[Object]
    nodes: Sequence[Object] = ()
    slices: Sequence[Object] = ()
    claims: Sequence[Object] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class HeldShare:
    """The allocation of one container, or one claim, on one device."""

    namespace: str
    pod: str
    container: str  # empty for a claim, which belongs to the pod
    node: str
    device: str  # such as gpu0; empty, like model, if we may not read the node
    uuid: str
    model: str
    vcore: int
    vmemory: int  # bytes
    policy: str  # hard, elastic
    priority: str  # low, normal, high
    state: str  # running, suspended
    isolation: str  # quota, hardware, whole-device

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Its key in the agents' metrics; for a claim, the container is unknown."""
        return self.namespace, self.pod, self.container, self.uuid


@dataclasses.dataclass(frozen=True, slots=True)
class ClusterDevices:
    """The devices of a cluster and their allocations."""

    devices: Mapping[str, Mapping[str, datatypes.NodeDevice]]  # by node, by UUID
    parts: Sequence[HeldShare]  # in the order of namespace, pod, container, node, device


def read(found: ClusterObjects) -> ClusterDevices:
    """Return the devices, and what the *found* pods hold of them."""
    slices = dra_objects.slices(found.slices)
    published = dra_objects.nodes(slices) | {
        str(objects.section(node, "metadata").get("name")): known
        for node in found.nodes
        if (known := node_annotation_reader.read(node).published) is not None
    }
    there = {
        name: {device.uuid: device for device in known.devices}
        for name, known in published.items()
    }
    placed = {uid: shares for known in published.values() for uid, shares in known.placed.items()}
    parts = [part for pod in found.pods for part in _of_pod(pod, there, placed)]
    parts += _of_claims(found, slices, there)
    parts.sort(key=lambda part: (part.namespace, part.pod, part.container, part.node, part.device))
    return ClusterDevices(there, parts)


def _of_pod(
    pod: Object,
    there: Mapping[str, Mapping[str, datatypes.NodeDevice]],
    placed: Mapping[str, notes.Shares],
) -> Iterator[HeldShare]:
    meta, spec = objects.section(pod, "metadata"), objects.section(pod, "spec")
    phase = objects.section(pod, "status").get("phase")
    node, uid = str(spec.get("nodeName") or ""), str(meta.get("uid"))
    if not node or phase in pod_request.OVER:
        return
    shares = _chosen(objects.section(meta, "annotations"), uid, node) or placed.get(uid) or {}
    for container, those in shares.items():
        for share in those:
            yield _part(meta, container, node, share, there)


def _chosen(noted: Object, uid: str, node: str) -> notes.Shares:
    text = noted.get(names.DEVICES_ANNOTATION)
    if not isinstance(text, str):
        return {}
    try:
        return notes.show(text, uid, node).containers
    except errors.DataError:
        return {}


def _of_claims(
    found: ClusterObjects,
    slices: Sequence[Object],
    there: Mapping[str, Mapping[str, datatypes.NodeDevice]],
) -> Iterator[HeldShare]:
    pods = {str(objects.section(pod, "metadata").get("uid")): pod for pod in found.pods}
    for tenant in dra_objects.tenants(slices, found.claims):
        pod = pods.get(tenant.uid)
        if pod is None:
            continue
        for holding in tenant.held or ():
            meta = objects.section(pod, "metadata")
            yield _part(meta, "", tenant.node, holding.share, there)


def _part(
    meta: Object,
    container: str,
    node: str,
    share: datatypes.NodeShare,
    there: Mapping[str, Mapping[str, datatypes.NodeDevice]],
) -> HeldShare:
    device = there.get(node, {}).get(share.uuid)
    return HeldShare(
        namespace=str(meta.get("namespace")),
        pod=str(meta.get("name")),
        container=container,
        node=node,
        device="" if device is None else device.label,
        uuid=share.uuid,
        model="" if device is None else device.model,
        vcore=share.vcore,
        vmemory=share.vmemory,
        policy=_policy(objects.section(meta, "annotations")),
        priority=_priority(objects.section(meta, "annotations")),
        state=suspensions.answer(objects.section(meta, "annotations")).state.value,
        isolation=isolation.of_share(share, mps=device is not None and device.mps).value,
    )


def _policy(noted: Object) -> str:
    said = noted.get(names.VCORE_POLICY_ANNOTATION)
    limits = (names.VCORE_LIMIT_ANNOTATION, names.GAIA_LIMIT_ANNOTATION)
    elastic = quota.TimePolicy.ELASTIC.name.lower()
    if said is None and any(noted.get(limit) for limit in limits):
        return elastic
    return elastic if said == elastic else quota.TimePolicy.HARD.name.lower()


def _priority(noted: Object) -> str:
    said = str(noted.get(names.PRIORITY_ANNOTATION))
    known = {priority.name.lower() for priority in quota.Priority}
    return said if said in known else quota.Priority.NORMAL.name.lower()
