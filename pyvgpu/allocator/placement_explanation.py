"""Explain why a pod does not fit on a node, device by device."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.allocator import datatypes, free_capacity, mig_placement

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

FOR_NOW = " for now: "  # in a refusal, before the reasons: the pod may fit later


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceReason:
    """Why one device does not fit."""

    uuid: str  # empty: not about one device
    label: str
    container: str  # that does not fit; empty: all
    text: str

    def __str__(self) -> str:
        return f"{self.label} {self.text}".strip()


class Refused(errors.UnavailableError):
    """The pod does not fit; *reasons* has a line for each device."""

    def __init__(self, reasons: Iterable[DeviceReason]) -> None:
        self.reasons = tuple(reasons)
        super().__init__("; ".join(map(str, self.reasons)))


def reasons(node: datatypes.NodeDevices, pod: datatypes.Pod) -> tuple[DeviceReason, ...]:
    """Return why *pod* does not fit on *node*, after :func:`place.find` has failed."""
    if not node.devices:
        return (DeviceReason("", "", "", "the node has no device"),)
    free = free_capacity.of(node)
    for container in pod.containers:
        found = tuple(_alone(node, free, pod, container))
        serving = len(free) - len(found)
        if serving < container.need.count:
            return (*_lacking(container, serving), *found)
    return tuple(_together(node, free, pod))


def _alone(
    node: datatypes.NodeDevices,
    free: Sequence[free_capacity.FreeCapacity],
    pod: datatypes.Pod,
    container: datatypes.Container,
) -> Iterator[DeviceReason]:
    """Yield the devices that do not fit *container*, even if it were the pod's only one."""
    for room in free:
        text = free_capacity.unfit(room.device, pod.selector) or _short(
            room, pod, container.need, _held_of(node, room.device)
        )
        if text:
            yield DeviceReason(room.device.uuid, room.device.label, container.name, text)


def _short(
    room: free_capacity.FreeCapacity,
    pod: datatypes.Pod,
    need: datatypes.ContainerNeed,
    held: Sequence[datatypes.Holding],
) -> str:
    if pod.selector.mig:
        text = mig_placement.short(room.device.profiles, room.places, pod.selector.mig, need)
        return text + (f" ({free_capacity.holders(held)})" if text and held else "")
    return free_capacity.short(room, need, held)


def _lacking(container: datatypes.Container, serving: int) -> Iterator[DeviceReason]:
    if container.need.count > 1:
        fit = "1 fits" if serving == 1 else f"{serving} fit"
        text = f"{container.name} asks for {container.need.count} devices, only {fit}"
        yield DeviceReason("", "", container.name, text)


def _together(
    node: datatypes.NodeDevices, free: Sequence[free_capacity.FreeCapacity], pod: datatypes.Pod
) -> Iterator[DeviceReason]:
    """Yield the free capacity, if each container fits alone."""
    if len(pod.containers) > 1:
        yield DeviceReason(
            "", "", "", "each container fits alone, but no placement was found for all together"
        )
    elif pod.nearness is not datatypes.Nearness.PREFERRED:
        wanted = (
            "linked by NVLink" if pod.nearness is datatypes.Nearness.NVLINK else "of one NUMA node"
        )
        count = pod.containers[0].need.count
        yield DeviceReason(
            "", "", "", f"there are no {count} devices with room that are all {wanted}"
        )
    for room in free:
        text = free_capacity.unfit(room.device, pod.selector)
        if not text:
            held = _held_of(node, room.device)
            text = f"has {room.text} free" + (f" ({free_capacity.holders(held)})" if held else "")
        yield DeviceReason(room.device.uuid, room.device.label, "", text)


def _held_of(node: datatypes.NodeDevices, device: datatypes.NodeDevice) -> list[datatypes.Holding]:
    return [holding for holding in node.held if holding.share.uuid == device.uuid]
