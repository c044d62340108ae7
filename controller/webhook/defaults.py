"""Defaults of pods with devices: memory of a share, and the scheduler."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.allocator import device_selector, free_capacity, requests
from pyvgpu.controller.scheduler import pod_request
from pyvgpu.kube import objects

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyvgpu.allocator import datatypes
    from pyvgpu.controller.webhook import drafts
    from pyvgpu.kube.objects import Object

DEFAULT_SCHEDULER = "default-scheduler"  # Kubernetes' default of schedulerName
_PARTS = ("initContainers", "containers")


@dataclasses.dataclass(frozen=True, slots=True)
class DefaultMemory:
    """Inputs for the default memory of a share."""

    unit: int  # bytes of one vmemory
    devices: Sequence[datatypes.NodeDevice] = ()  # one of each known kind
    fallback: int = 0  # bytes while no device is known; 0: no default

    def part(self, percent: int, selector: datatypes.Selector) -> int | None:
        """Return *percent* of the smallest device that *selector* allows, in units.

        None without known devices and fallback.
        """
        device = smallest(self.devices, selector)
        if device is None:
            return -(-self.fallback // self.unit) or None
        least = -(-device.least_bytes // self.unit)
        return max(device.memory_bytes * percent // 100 // self.unit, least)


def smallest(
    devices: Iterable[datatypes.NodeDevice], selector: datatypes.Selector
) -> datatypes.NodeDevice | None:
    """Return the device with the least memory that *selector* allows."""
    return min(allowed(devices, selector), key=lambda device: device.memory_bytes, default=None)


def allowed(
    devices: Iterable[datatypes.NodeDevice], selector: datatypes.Selector
) -> list[datatypes.NodeDevice]:
    """Return the kinds that *selector* allows; UUIDs and NUMA nodes do not restrict kinds."""
    nothing: frozenset[str] = frozenset()
    plain = dataclasses.replace(selector, uuids=nothing, not_uuids=nothing, numa=None)
    return [device for device in devices if not free_capacity.unfit(device, plain)]


def fill(draft: drafts.Draft, memory: DefaultMemory) -> None:
    """Set the memory of shares without vmemory; UsageError without a default."""
    selection = device_selector.read(objects.section(draft.document, "metadata", "annotations"))
    for part, place, container in containers(draft.document):
        pair = _pair(container)
        if pair is None or any(pair[1] in amount for amount in amounts(container)):
            continue
        vcore, _ = pod_request.needs(container, memory.unit)
        count = selection.count_of(str(container.get("name")))
        devices = _shares(vcore, count)
        if not devices:
            continue
        units = memory.part(vcore // devices, selection.selector)
        if units is None:
            raise errors.UsageError(
                f"container {container.get('name')}: {pair[0]} {vcore} without {pair[1]}: no "
                f"device is known yet, so the memory cannot be derived from the vcore; valid "
                f"would be {pair[1]} 16, and an administrator can set --default-vmemory"
            )
        put(draft, (part, place), {pair[1]: units * devices})


def schedule(draft: drafts.Draft, schedulers: Sequence[str]) -> None:
    """Set the first of *schedulers* if the pod names none."""
    spec = draft.document["spec"]
    if schedulers and spec.get("schedulerName", DEFAULT_SCHEDULER) == DEFAULT_SCHEDULER:
        draft.put(schedulers[0], "spec", "schedulerName")


def containers(pod: Object) -> Iterator[tuple[str, int, Object]]:
    """Yield the containers that may request devices: their list, their index and themselves."""
    spec = objects.section(pod, "spec")
    for part in _PARTS:
        listed = spec.get(part) or ()
        for place, container in enumerate(listed):
            if isinstance(container, dict):
                yield part, place, container


def amounts(container: Object) -> tuple[Object, Object]:
    """Return a container's limits and requests."""
    resources = objects.section(container, "resources")
    return objects.section(resources, "limits"), objects.section(resources, "requests")


def put(draft: drafts.Draft, where: tuple[str, int], changes: dict[str, int]) -> None:
    """Set a container's limits and requests: extended resources must have both."""
    container = draft.document["spec"][where[0]][where[1]]
    if not container.get("resources"):
        draft.put({}, "spec", *where, "resources")
    texts = {name: str(value) for name, value in changes.items()}
    for section in ("limits", "requests"):
        draft.set_entries(texts, "spec", *where, "resources", section)


def _pair(container: Object) -> tuple[str, str] | None:
    """Return the resource names of compute and memory that a container uses."""
    for vcore, vmemory in pod_request.RESOURCES:
        if any(vcore in amount for amount in amounts(container)):
            return vcore, vmemory
    return None


def _shares(vcore: int, count: int | None) -> int:
    """Return on how many devices it is a share that needs memory; 0 if it is not a share."""
    try:
        requests.read(vcore, 0, count)
    except errors.UsageError:
        pass
    else:
        return 0  # whole devices
    devices = count or 1
    try:
        requests.read(vcore, devices, count)
    except errors.UsageError:
        return 0  # invalid for another reason than the memory
    return devices
