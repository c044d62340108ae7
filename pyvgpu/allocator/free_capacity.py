"""Free capacity of devices, and whether a device matches a pod's selector."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pyvgpu import names, quantity
from pyvgpu.allocator import capacity, codes, datatypes, mig_placement

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@dataclasses.dataclass(frozen=True, slots=True)
class FreeCapacity:
    """A device with its free capacity."""

    device: datatypes.NodeDevice
    vcore: int
    vmemory: int  # bytes; both may be below zero if the device is overcommitted
    tenants: int
    places: tuple[str, ...] = ()  # placements of MIG instances that exist or are reserved

    @property
    def untouched(self) -> bool:
        """Whether nothing of it is allocated."""
        return not self.tenants

    @property
    def text(self) -> str:
        """The free capacity, for display."""
        return text_of(max(self.vcore, 0), max(self.vmemory, 0))


def of(node: datatypes.NodeDevices) -> tuple[FreeCapacity, ...]:
    """Return the room on each device, in their order."""
    return tuple(
        FreeCapacity(device, vcore, vmemory, tenants, _places(device, node.held))
        for device, (vcore, vmemory, tenants) in zip(
            node.devices, _free(node.devices, node.held), strict=True
        )
    )


def _free(
    devices: Sequence[datatypes.NodeDevice], held: Iterable[datatypes.Holding]
) -> list[tuple[int, int, int]]:
    """Return the vcore and bytes of each device beside *held*, and the number of its shares."""
    used: dict[str, list[int]] = {device.uuid: [0, 0, 0] for device in devices}
    whole: set[str] = set()
    for holding in held:
        share = holding.share
        sums = used.get(share.uuid)
        if sums is not None:  # ignore shares of devices that are gone
            sums[0] += share.vcore
            sums[1] += share.vmemory
            sums[2] += 1
            if share.whole:
                whole.add(share.uuid)
    found = []
    for device in devices:
        vcore, vmemory, tenants = used[device.uuid]
        if device.uuid in whole:
            most_vcore, most_bytes = datatypes.WHOLE, device.memory_bytes
        else:
            most_vcore, most_bytes = device.reservable_vcore, device.reservable_bytes
        found.append((most_vcore - vcore, most_bytes - vmemory, tenants))
    return found


def _places(device: datatypes.NodeDevice, held: Sequence[datatypes.Holding]) -> tuple[str, ...]:
    if not device.profiles:
        return ()
    own = (one.share.mig for one in held if one.share.uuid == device.uuid and one.share.mig)
    return tuple(sorted((*device.taken, *own)))


_NO_INSTANCES = (
    "is not one on which pods get MIG instances (--dynamic-mig names those, in MIG mode)"
)
_INSTANCES_ONLY = (
    f"is for MIG instances, which pods request with {names.MIG_ANNOTATION} or "
    f"{names.ISOLATION_ANNOTATION}: hardware"
)
_NO_MPS = "is not one that MPS divides (--mps names those)"
_MPS_ONLY = f"is divided by MPS, which pods request with {names.ISOLATION_ANNOTATION}: mps"
_CORDONED, _ELSEWHERE = "is cordoned", "is allocated by "
CLOSED = (_CORDONED, _ELSEWHERE)  # prefixes of the reason why a device takes no new shares
_MOST = 1 << 62  # of a number
# Model, class, NUMA node and bytes of a device, whether it is a MIG device, whether MPS divides
# it, and its MIG profiles if it is for instances.
_Kind = tuple[str, str, int | None, int, bool, bool, tuple[datatypes.MigProfile, ...]]


def unfit(device: datatypes.NodeDevice, selector: datatypes.Selector) -> str:
    """Return why *device* takes no share of this pod, whatever is free of it; empty if it does."""
    shut = _shut(device)
    # Compare identity first: comparing two selectors takes longer than all of the above.
    if shut or (
        not _is_special(device) and (selector is datatypes.ANY or selector == datatypes.ANY)
    ):
        return shut
    if device.uuid in selector.not_uuids:
        return "is excluded by the pod"
    if selector.uuids and device.uuid not in selector.uuids:
        return "is none of the devices that the pod names"
    return _not_of_kind(_kind(device), selector)


def _is_special(device: datatypes.NodeDevice) -> bool:
    """Return whether *device* takes only shares of pods that request its isolation."""
    return device.mps or bool(device.profiles)


def _shut(device: datatypes.NodeDevice) -> str:
    """Return why *device* takes no new shares of any pod."""
    if device.unhealthy:
        return f"is unhealthy: {device.unhealthy}"
    if device.cordoned:
        return _CORDONED
    if device.allocated_by:
        return f"{_ELSEWHERE}{device.allocated_by}"
    return ""


def _kind(device: datatypes.NodeDevice) -> _Kind:
    return (
        device.model,
        device.compute_class,
        device.numa,
        device.memory_bytes,
        device.instance,
        device.mps,
        device.profiles,
    )


def _not_of_kind(kind: _Kind, selector: datatypes.Selector) -> str:
    model, compute_class, numa, memory_bytes, instance, mps, profiles = kind
    if selector.mps != mps:
        return _NO_MPS if selector.mps else _MPS_ONLY
    if bool(selector.mig) != bool(profiles):
        return _NO_INSTANCES if selector.mig else _INSTANCES_ONLY
    if selector.mig not in ("", mig_placement.SMALLEST, *(one.name for one in profiles)):
        return f"has no MIG profile {selector.mig}; it has {mig_placement.describe(profiles)}"
    if instance and not selector.instances:
        return "is a MIG device, of which a process sees only one, and several devices are asked"
    if _names(selector.not_models, model):
        return f"is a {model}, which the pod excludes"
    if selector.models and not _names(selector.models, model):
        return f"is a {model or 'nameless device'}, not {_either(selector.models)}"
    if selector.classes and compute_class not in selector.classes:
        return f"is of class {compute_class or 'none'}, not {_either(selector.classes)}"
    if selector.numa is not None and numa != selector.numa:
        return f"is of NUMA node {numa}, not {selector.numa}"
    if memory_bytes < selector.least_memory:
        return (
            f"has {quantity.format_size(memory_bytes)} in total, the pod requests a device of "
            f"at least "
            f"{quantity.format_size(selector.least_memory)}"
        )
    return ""


def has(
    device: datatypes.NodeDevice,
    need: datatypes.ContainerNeed,
    vcore: int,
    vmemory: int,
    *,
    untouched: bool,
) -> bool:
    """Return whether *need* fits on *device* with this much left; see short for the reason."""
    return capacity.serves(
        device.memory_bytes,
        device.least_bytes,
        vcore,
        vmemory,
        untouched,
        need.vcore,
        min(need.vmemory, _MOST),
    )


def used(room: FreeCapacity) -> float:
    """Return the allocated part of a device, of time or of memory, whichever is larger."""
    return _used(room.device, room.vcore, room.vmemory)


def _used(device: datatypes.NodeDevice, vcore: int, vmemory: int) -> float:
    return 1 - min(vcore / device.reservable_vcore, vmemory / device.reservable_bytes)


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceKinds:
    """What does not depend on the shares of devices: which pods they take."""

    devices: tuple[datatypes.NodeDevice, ...]
    kinds: tuple[_Kind, ...]
    numbers: tuple[int, ...]  # by device, for capacity.Capacity
    uuids: tuple[str, ...]

    @classmethod
    def of(cls, devices: Iterable[datatypes.NodeDevice]) -> DeviceKinds:
        """Return that of *devices*."""
        found, kinds = tuple(devices), dict[_Kind, int]()
        numbers = tuple(-1 if _shut(device) else _number(device, kinds) for device in found)
        return cls(found, tuple(kinds), numbers, tuple(device.uuid for device in found))

    def numbers_of(self, unit: int, held: Iterable[datatypes.Holding]) -> capacity.Capacity:
        """Return the free capacity beside *held*, of a node with units of *unit* bytes."""
        return self._numbers(unit, _free(self.devices, held))

    def _numbers(self, unit: int, free: Iterable[tuple[int, int, int]]) -> capacity.Capacity:
        """Return the same, from the free vcore, the free bytes and the tenants of each device."""
        cells = [
            (
                device.memory_bytes,
                device.least_bytes,
                vcore,
                vmemory,
                tenants,
                kind,
                int(_used(device, vcore, vmemory) * codes.FULL),
                device.reservable_vcore - datatypes.WHOLE,
                device.reservable_bytes - device.memory_bytes,
            )
            for device, kind, (vcore, vmemory, tenants) in zip(
                self.devices, self.numbers, free, strict=True
            )
        ]
        return capacity.Capacity(unit, cells, self.kinds, self.uuids)


def numbers(unit: int, free: Sequence[FreeCapacity]) -> capacity.Capacity:
    """Return the free capacity of a node with units of *unit* bytes, as plain numbers."""
    found = DeviceKinds.of(room.device for room in free)
    return found._numbers(unit, ((room.vcore, room.vmemory, room.tenants) for room in free))


def _number(device: datatypes.NodeDevice, kinds: dict[_Kind, int]) -> int:
    """Return the number of the device's kind; below -1 if it takes no pods but special ones."""
    number = kinds.setdefault(_kind(device), len(kinds))
    return -2 - number if _is_special(device) else number


def asked(pod: datatypes.Pod) -> capacity.Ask:
    """Return a pod's request, as plain numbers."""
    selector = pod.selector

    def allow(kinds: tuple[_Kind, ...]) -> bytes:
        return bytes(not _not_of_kind(kind, selector) and _serves(kind, pod) for kind in kinds)

    return capacity.Ask(
        (
            (
                container.need.vcore,
                min(container.need.vmemory, _MOST),
                min(container.need.count, _MOST),
            )
            for container in pod.containers
        ),
        None if selector == datatypes.ANY else allow,
        selector.uuids,
        selector.not_uuids,
        selector.mps or bool(selector.mig),
    )


def _serves(kind: _Kind, pod: datatypes.Pod) -> bool:
    """Return whether the kind has a MIG profile for each container, if the pod wants instances."""
    wanted = pod.selector.mig
    return not wanted or all(
        mig_placement.profile_for(kind[-1], wanted, container.need) for container in pod.containers
    )


def short(
    room: FreeCapacity, need: datatypes.ContainerNeed, held: Sequence[datatypes.Holding]
) -> str:
    """Return why *need* does not fit on the device of *room*; empty if it fits.

    *held* are the shares allocated on this device.
    """
    device = room.device
    if need.vmemory > device.memory_bytes:
        return (
            f"has {quantity.format_size(device.memory_bytes)} in all, "
            f"{quantity.format_size(need.vmemory)} of one device are asked"
        )
    if need.whole:
        return f"is requested as a whole, but is shared: {holders(held)}" if held else ""
    if need.vmemory < device.least_bytes:
        return (
            f"needs {quantity.format_size(device.least_bytes)} for a usable share, "
            f"{quantity.format_size(need.vmemory)} are asked"
        )
    if need.vcore > room.vcore:
        return f"needs {need.vcore} vcore, has {max(room.vcore, 0)} free ({holders(held)})"
    if need.vmemory > room.vmemory:
        return (
            f"needs {quantity.format_size(need.vmemory)}, has "
            f"{quantity.format_size(max(room.vmemory, 0))} free ({holders(held)})"
        )
    return ""


def _names(parts: frozenset[str], model: str) -> bool:
    return any(part.lower() in model.lower() for part in parts)


def _either(wanted: frozenset[str]) -> str:
    return " or ".join(sorted(wanted))


def holders(held: Sequence[datatypes.Holding]) -> str:
    """Format the holders of a device with their shares."""
    return ", ".join(
        f"{one.holder} {one.share.mig}"
        if one.share.mig
        else f"{one.holder} {one.share.vcore} vcore {quantity.format_size(one.share.vmemory)}"
        for one in held
    )


def text_of(vcore: int, vmemory: int) -> str:
    """Format a share of a device for display."""
    return f"{vcore} vcore and {quantity.format_size(vmemory)}"
