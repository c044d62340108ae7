"""Preferred ids for kubelet: those of the device that the allocator would choose now.

Ids only count, and any will do. But if they correspond to the devices, an unhealthy device makes
its own ids unhealthy and hardly any others. This decides nothing: devices are chosen when the pod
is known. Pure.
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
    """The node's state and the ids of the requested resource."""

    node: facts.Node
    everything: Sequence[str]  # all ids of the resource, in the order of the devices
    # Ids in use that kubelet takes for free, since it has lost its checkpoint.
    lost: Collection[str] = frozenset()


def preferred(
    kind: Kind, asked: answers.Choice, offered: Offered, packing: facts.Packing, unit: int
) -> tuple[str, ...]:
    """Return the ids to take: first those of the devices that would be chosen, then others."""
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
    """Return a request with *size* ids of this kind, and the minimum of the other resource."""
    least = min((it.least_bytes for it in node.devices), default=1)
    if kind is Kind.VMEMORY:
        return facts.Need(1, size * unit) if size else None
    try:
        return requests.read(size, least)
    except errors.UsageError:
        return None
