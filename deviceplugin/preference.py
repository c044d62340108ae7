"""Which ids kubelet shall take: those of the device that the allocator would give now.

Ids are counters, and any will do. But where they follow the devices, a device that falls sick
takes its own ids out of order and hardly any others. Nothing is decided by it: that is done when
it is known for whom. Pure.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING

from pyvgpu import errors, quantity
from pyvgpu.allocator import facts, place, requests, rooms
from pyvgpu.deviceplugin import ids
from pyvgpu.deviceplugin.ids import Kind

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from pyvgpu.deviceplugin import answers


@dataclasses.dataclass(frozen=True, slots=True)
class Offered:
    """What there is."""

    node: facts.Node
    everything: Sequence[str]  # all ids of what is asked for, in the order of the devices
    # Those in use of which kubelet has lost what it knew, so that it takes them for free.
    lost: Collection[str] = frozenset()


def preferred(
    kind: Kind, asked: answers.Choice, offered: Offered, packing: facts.Packing, unit: int
) -> tuple[str, ...]:
    """Return the ids to take: first those of the devices that would be given, then the others."""
    node, everything = offered.node, offered.everything
    need = _need(kind, asked.size, node, unit)
    found = None
    if need is not None:
        pod = facts.Pod((facts.Container("", need),), packing=packing)
        found = place.find(rooms.of(node), pod)
    chosen = {it.uuid for it in found[""]} if found else set()
    best: list[Sequence[str]] = []
    first = 0
    for device in node.devices:
        size = quantity.WHOLE_DEVICE if kind is Kind.VCORE else device.memory_bytes // unit
        if device.uuid in chosen:
            best.append(everything[first : first + size])
        first += size
    order = [it for it in itertools.chain(*best, everything) if it not in offered.lost]
    return ids.preferred(asked.available, asked.must, asked.size, order)


def _need(kind: Kind, size: int, node: facts.Node, unit: int) -> facts.Need | None:
    """Return what so many ids may be for; of the other resource the least that there can be."""
    least = min((it.least_bytes for it in node.devices), default=1)
    if kind is Kind.VMEMORY:
        return facts.Need(1, size * unit) if size else None
    try:
        return requests.read(size, least)
    except errors.UsageError:
        return None
