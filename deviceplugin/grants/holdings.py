"""The devices' allocated capacity, by grants, in the allocator's terms and in kubelet's ids.

Containers of a pod that never run at the same time may hold the same ids; so a pod's holding of a
device is counted by its ids there, each once. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyvgpu import quantity
from pyvgpu.allocator import datatypes
from pyvgpu.deviceplugin.kubelet import device_ids
from pyvgpu.deviceplugin.kubelet.device_ids import ResourceKind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from pyvgpu.deviceplugin.grants import Grant, pod_identity


class Holdings:
    """Counts the holdings of bound grants, with a cache for pods whose grants are unchanged."""

    def __init__(self, unit: int) -> None:
        self._unit = unit  # bytes of one vmemory
        self._counted: dict[str, tuple[list[Grant], tuple[datatypes.Holding, ...]]] = {}

    def held(self, grants: Iterable[Grant]) -> tuple[datatypes.Holding, ...]:
        """Return the holdings of exactly these *grants*; thread-safe."""
        pods: dict[str, list[Grant]] = {}
        found: list[datatypes.Holding] = []
        for grant in grants:
            if grant.owner is None:
                continue
            if grant.over or grant.claim is not None:  # it has no ids
                shares = grant.claim.shares if grant.claim else grant.shares
                found += [datatypes.Holding(share, _pod(grant)) for share in shares]
            else:
                pods.setdefault(grant.owner.uid, []).append(grant)
        before = self._counted
        counted = self._counted = {
            uid: known
            if (known := before.get(uid)) is not None and known[0] == own
            else (own, tuple(_held_by_pod(own, self._unit)))
            for uid, own in pods.items()
        }
        return (*found, *(one for _, holdings in counted.values() for one in holdings))


def held(grants: Iterable[Grant], unit: int) -> tuple[datatypes.Holding, ...]:
    """Return the holdings of bound *grants*; a unit of vmemory is *unit* bytes."""
    return Holdings(unit).held(grants)


def _held_by_pod(own: list[Grant], unit: int) -> Iterator[datatypes.Holding]:
    holder = _pod(own[0])
    for uuid in dict.fromkeys(share.uuid for grant in own for share in grant.shares):
        there = [grant for grant in own if any(share.uuid == uuid for share in grant.shares)]
        whole = [
            share for grant in there if grant.whole for share in grant.shares if share.uuid == uuid
        ]
        if whole:
            # A device has one whole share, or a MIG instance for each container.
            for share in whole if whole[0].mig else whole[:1]:
                yield datatypes.Holding(share, holder)
            continue
        vcore, vmemory = (
            frozenset().union(*(_given(kind, grant, uuid) for grant in there))
            for kind in (ResourceKind.VCORE, ResourceKind.VMEMORY)
        )
        share = datatypes.NodeShare(
            uuid, min(len(vcore), quantity.WHOLE_DEVICE), max(len(vmemory) * unit, 1)
        )
        yield datatypes.Holding(share, holder)


def unhealthy(grant: Grant, devices: Iterable[datatypes.NodeDevice]) -> str:
    """Name a grant's unhealthy devices, and why; empty if all are healthy."""
    uuids = {share.uuid for share in grant.shares}
    return ", ".join(
        f"{device.uuid} ({device.unhealthy})"
        for device in devices
        if device.unhealthy and device.uuid in uuids
    )


def _pod(grant: Grant) -> str:
    return grant.owner.label.rpartition("/")[0] if grant.owner else ""


def kind_of(
    one: pod_identity.PodContainer, others: Iterable[pod_identity.PodContainer]
) -> datatypes.ContainerKind:
    """Return the kind of a container, by when it runs.

    PodResources omits ordinary init containers. A listed container that shares ids with an init
    container starts after that has ended; for any other this is not known, so if the pod has init
    containers, it counts as a sidecar.
    """
    if not one.listed:
        return datatypes.ContainerKind.INIT
    earlier = [other for other in others if not other.listed]
    if any(
        one.vcore & container.vcore or one.vmemory & container.vmemory for container in earlier
    ):
        return datatypes.ContainerKind.APP
    return datatypes.ContainerKind.SIDECAR if earlier else datatypes.ContainerKind.APP


def capacities(
    resource: device_ids.Resource,
    devices: Iterable[datatypes.NodeDevice],
    grants: Collection[Grant],
    unit: int,
) -> tuple[device_ids.ResourceCapacity, ...]:
    """Return the capacity of a resource on each device, and the ids allocated of it."""
    there: dict[str, list[Grant]] = {}
    for grant in grants:
        for share in grant.shares:
            there.setdefault(share.uuid, []).append(grant)
    return tuple(
        _capacity(resource, device, there.get(device.uuid, ()), unit) for device in devices
    )


def _capacity(
    resource: device_ids.Resource,
    device: datatypes.NodeDevice,
    there: Collection[Grant],
    unit: int,
) -> device_ids.ResourceCapacity:
    kind = resource.kind
    size = size_of(kind, device, unit)
    given = frozenset[str]().union(*(_given(kind, grant, device.uuid) for grant in there))
    own = frozenset(filter(resource.has, given))
    free = max(size - len(given), 0)
    left = sum(_left(kind, grant, device.uuid, unit) for grant in there if grant.over)
    left += sum(map(len, _by_pod(kind, there, device.uuid))) - len(given)
    whole = any(grant.whole and not grant.mig for grant in there)
    closed = free if whole else min(left, free)
    return device_ids.ResourceCapacity(
        size,
        own,
        closed=device.cordoned or bool(device.allocated_by),
        unhealthy=bool(device.unhealthy),
        taken=closed + len(given) - len(own),
        numa=device.numa,
    )


def size_of(kind: ResourceKind, device: datatypes.NodeDevice, unit: int) -> int:
    """Return how many ids of a resource a device has; *unit* is the bytes of one vmemory."""
    if kind is ResourceKind.VCORE:
        return device.reservable_vcore
    return device.reservable_bytes // unit


def _by_pod(kind: ResourceKind, there: Iterable[Grant], uuid: str) -> Iterable[set[str]]:
    """Return the ids of each pod; two share ids if kubelet has lost its checkpoint."""
    found: dict[str, set[str]] = {}
    for grant in there:
        if grant.owner is not None:
            found.setdefault(grant.owner.uid, set()).update(_given(kind, grant, uuid))
    return found.values()


def _given(kind: ResourceKind, grant: Grant, uuid: str) -> frozenset[str]:
    """Return the ids of a grant that count for its share of one device.

    The ids of a grant of several devices are divided among these, always in the same way.
    """
    own = grant.vcore_ids if kind is ResourceKind.VCORE else grant.vmemory_ids
    if len(grant.shares) == 1:
        return own
    place = next(i for i, share in enumerate(grant.shares) if share.uuid == uuid)
    return frozenset(sorted(own, key=device_ids.order)[place :: len(grant.shares)])


def _left(kind: ResourceKind, grant: Grant, uuid: str, unit: int) -> int:
    """Return the number of ids for the share of a device that an ended grant still holds."""
    share = next(candidate for candidate in grant.shares if candidate.uuid == uuid)
    return share.vcore if kind is ResourceKind.VCORE else -(-share.vmemory // unit)
