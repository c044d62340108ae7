"""Say why a pod has no place on a node: for each device, in words."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.allocator import facts, rooms

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

FOR_NOW = " for now: "  # in a refusal, before the reasons: the pod waits until they are others


@dataclasses.dataclass(frozen=True, slots=True)
class Reason:
    """Why one device does not serve."""

    uuid: str  # empty: it is not about one device
    label: str
    container: str  # for which it was looked at; empty: for all
    text: str

    def __str__(self) -> str:
        return f"{self.label} {self.text}".strip()


class Refused(errors.UnavailableError):
    """There is no place; *reasons* has a line for each device."""

    def __init__(self, reasons: Iterable[Reason]) -> None:
        self.reasons = tuple(reasons)
        super().__init__("; ".join(map(str, self.reasons)))


def reasons(node: facts.Node, pod: facts.Pod) -> tuple[Reason, ...]:
    """Return why *pod* has no place on *node*; it must have been looked for."""
    if not node.devices:
        return (Reason("", "", "", "the node has no device"),)
    free = rooms.of(node)
    for container in pod.containers:
        found = tuple(_alone(node, free, pod, container))
        serving = len(free) - len(found)
        if serving < container.need.count:
            return (*_lacking(container, serving), *found)
    return tuple(_together(node, free, pod))


def _alone(
    node: facts.Node, free: Sequence[rooms.Room], pod: facts.Pod, container: facts.Container
) -> Iterator[Reason]:
    """Give the devices that would not do for *container* if there were no other in the pod."""
    for room in free:
        text = rooms.unfit(room.device, pod.selector) or rooms.short(
            room, container.need, _held_of(node, room.device)
        )
        if text:
            yield Reason(room.device.uuid, room.device.label, container.name, text)


def _lacking(container: facts.Container, serving: int) -> Iterator[Reason]:
    if container.need.count > 1:
        text = f"{container.name} asks for {container.need.count} devices, {serving} would do"
        yield Reason("", "", container.name, text)


def _together(node: facts.Node, free: Sequence[rooms.Room], pod: facts.Pod) -> Iterator[Reason]:
    """Give what is free where each container alone would have a place."""
    if len(pod.containers) > 1:
        yield Reason(
            "", "", "", "each container has a place alone, none was found for all together"
        )
    elif pod.nearness is not facts.Nearness.PREFERRED:
        wanted = (
            "linked by NVLink" if pod.nearness is facts.Nearness.NVLINK else "of one NUMA node"
        )
        count = pod.containers[0].need.count
        yield Reason("", "", "", f"there are no {count} devices with room that are all {wanted}")
    for room in free:
        text = rooms.unfit(room.device, pod.selector)
        if not text:
            held = _held_of(node, room.device)
            text = f"has {room.text} free" + (f" ({rooms.who(held)})" if held else "")
        yield Reason(room.device.uuid, room.device.label, "", text)


def _held_of(node: facts.Node, device: facts.Device) -> list[facts.Holding]:
    return [holding for holding in node.held if holding.share.uuid == device.uuid]
