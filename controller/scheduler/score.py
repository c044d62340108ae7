"""Score a node that fits a pod: 0 to 10, the scale of scheduler extenders.

*binpack* fills devices that are shared already, then nodes that are in use, so that whole devices
and whole nodes stay free for pods that need them. *spread* is its opposite. *topology* scores how
near to each other the devices are that the pod would get; for a single device, whether linked
groups stay whole, like binpack.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from pyvgpu.allocator import codes, nearness, pod_placement

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyvgpu.allocator import datatypes, free_capacity


def by_nearness(free: Sequence[free_capacity.FreeCapacity], pod: datatypes.Pod) -> int:
    """Return 10 for devices that are all linked by NVLink, 2 less for each level farther apart."""
    placed = pod_placement.find(free, pod)
    if placed is None:
        return 0
    table = nearness.table(tuple(room.device for room in free))
    at = {room.device.uuid: position for position, room in enumerate(free)}
    furthest = max(
        nearness.worst(table, [at[share.uuid] for share in shares])
        for shares in itertools.chain(placed.values())
    )
    return max(0, codes.BEST - 2 * furthest)
