"""How well a pod would be on a node that has room for it: 0 to 10, as schedulers add them up.

*binpack* fills devices that are shared already, then nodes that are in use, so that whole devices
and whole nodes stay free for those who need them. *spread* is its opposite. *topology* looks at
how near to each other the devices are that the pod would get; where it gets only one, at whether
that leaves groups whole, as binpack does.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

from pyvgpu.allocator import facts, nearness, place, rooms
from pyvgpu.controller.scheduler import asks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyvgpu.controller.scheduler.stands import Stand

BEST = 10
_OF_DEVICE = 0.6  # of a score; the rest is the whole node's


def of(stand: Stand, pod: facts.Pod, policy: asks.Policy) -> int:
    """Return the score of a node that has room for *pod*."""
    if policy is asks.Policy.TOPOLOGY and any(it.need.count > 1 for it in pod.containers):
        return _nearness(stand.free, pod)
    spread = policy is asks.Policy.SPREAD
    # Up, so that the least use makes a difference to none.
    points = math.ceil(BEST * round(_fullness(stand, pod, spread=spread), 6))
    return BEST - points if spread else points


def _fullness(stand: Stand, pod: facts.Pod, *, spread: bool) -> float:
    """Return how full the devices are that the largest container may get, and the node: 0 to 1."""
    need = pod.containers[0].need
    if len(pod.containers) > 1:
        need = max((it.need for it in pod.containers), key=lambda it: (it.vcore, it.vmemory))
    fitting = [
        used
        for room, used in zip(stand.free, stand.used, strict=True)
        if rooms.has(room.device, need, room.vcore, room.vmemory, untouched=not room.tenants)
        and not rooms.unfit(room.device, pod.selector)
    ]
    device = (min if spread else max)(fitting, default=0.0)
    whole = sum(stand.used) / len(stand.used)
    return min(1.0, _OF_DEVICE * device + (1 - _OF_DEVICE) * whole)


def _nearness(free: Sequence[rooms.Room], pod: facts.Pod) -> int:
    """Return 10 for devices that are all linked by NVLink, 2 less for each step away."""
    placed = place.find(free, pod)
    if placed is None:
        return 0
    table = nearness.table(tuple(room.device for room in free))
    at = {room.device.uuid: position for position, room in enumerate(free)}
    furthest = max(
        nearness.worst(table, [at[share.uuid] for share in shares])
        for shares in itertools.chain(placed.values())
    )
    return max(0, BEST - 2 * furthest)
