"""Explain why a pod does not fit on a node, device by device."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.allocator import facts, free_capacity

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

FOR_NOW = " for now: "  # in a refusal, before the reasons: the pod may fit later


@dataclasses.dataclass(frozen=True, slots=True)
class Reason:
    """Why one device does not fit."""

    uuid: str  # empty: not about one device
    label: str
    container: str  # that does not fit; empty: all
    text: str

    def __str__(self) -> str:
        return f"{self.label} {self.text}".strip()


class Refused(errors.UnavailableError):
    """The pod does not fit; *reasons* has a line for each device."""

    def __init__(self, reasons: Iterable[Reason]) -> None:
        self.reasons = tuple(reasons)
        super().__init__("; ".join(map(str, self.reasons)))


def reasons(node: facts.Node, pod: facts.Pod) -> tuple[Reason, ...]:
    """Return why *pod* does not fit on *node*, after :func:`place.find` has failed."""
    if not node.devices:
        return (Reason("", "", "", "the node has no device"),)
    free = free_capacity.of(node)
    for container in pod.containers:
        found = tuple(_alone(node, free, pod, container))
        serving = len(free) - len(found)
        if serving < container.need.count:
            return (*_lacking(container, serving), *found)
    return tuple(_together(node, free, pod))


def _alone(
    node: facts.Node,
    free: Sequence[free_capacity.Room],
    pod: facts.Pod,
    container: facts.Container,
) -> Iterator[Reason]:
    """Yield the devices that do not fit *container*, even if it were the pod's only one."""
    for room in free:
        text = free_capacity.unfit(room.device, pod.selector) or free_capacity.short(
            room, container.need, _held_of(node, room.device)
        )
        if text:
            yield Reason(room.device.uuid, room.device.label, container.name, text)


def _lacking(container: facts.Container, serving: int) -> Iterator[Reason]:
    if container.need.count > 1:
        fit = "1 fits" if serving == 1 else f"{serving} fit"
        text = f"{container.name} asks for {container.need.count} devices, only {fit}"
        yield Reason("", "", container.name, text)


def _together(
    node: facts.Node, free: Sequence[free_capacity.Room], pod: facts.Pod
) -> Iterator[Reason]:
    """Yield the free capacity, if each container fits alone."""
    if len(pod.containers) > 1:
        yield Reason(
            "", "", "", "each container fits alone, but no placement was found for all together"
        )
    elif pod.nearness is not facts.Nearness.PREFERRED:
        wanted = (
            "linked by NVLink" if pod.nearness is facts.Nearness.NVLINK else "of one NUMA node"
        )
        count = pod.containers[0].need.count
        yield Reason("", "", "", f"there are no {count} devices with room that are all {wanted}")
    for room in free:
        text = free_capacity.unfit(room.device, pod.selector)
        if not text:
            held = _held_of(node, room.device)
            text = f"has {room.text} free" + (f" ({free_capacity.holders(held)})" if held else "")
        yield Reason(room.device.uuid, room.device.label, "", text)


def _held_of(node: facts.Node, device: facts.Device) -> list[facts.Holding]:
    return [holding for holding in node.held if holding.share.uuid == device.uuid]
