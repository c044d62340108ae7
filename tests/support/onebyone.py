"""Reference implementation of node filtering and scoring: examines devices one by one."""

import math

from pyvgpu.allocator import free_capacity, pod_placement
from pyvgpu.controller.scheduler import index, pod_request


def evaluate(info, pod):
    """Return why *pod* does not fit on a node, None if it fits; no pod: an invalid request."""
    if not info.unit:
        return index.RefusalReason.DAMAGED if info.trouble else index.RefusalReason.UNKNOWN
    if pod is None:
        return index.RefusalReason.NONSENSE
    if pod_placement.find(info.free, pod) is not None:
        return None
    may = [room for room in info.free if not free_capacity.unfit(room.device, pod.selector)]
    if not may:
        return index.RefusalReason.CLOSED
    found = None
    for need in (container.need for container in pod.containers):
        large = [
            room
            for room in may
            if need.vmemory <= room.device.memory_bytes
            and (need.whole or need.vmemory >= room.device.least_bytes)
        ]
        if len(large) < need.count:
            return index.RefusalReason.FEWER if large else index.RefusalReason.SMALL
        serving = [room for room in large if has_room(room, need)]
        if len(serving) < need.count and found is None:
            found = index.RefusalReason.FEW if serving else index.RefusalReason.TAKEN
    if found is None:
        found = (
            index.RefusalReason.TOGETHER if len(pod.containers) > 1 else index.RefusalReason.APART
        )
    return found


def has_room(room, need):
    if need.whole:
        return not room.tenants and need.vmemory <= room.device.memory_bytes
    return (
        room.device.least_bytes <= need.vmemory <= min(room.vmemory, room.device.memory_bytes)
        and need.vcore <= room.vcore
    )


def score(info, pod, policy):
    """Return the score, 0 to 10, of a node on which *pod* fits."""
    if policy is pod_request.NodePolicy.TOPOLOGY and any(
        container.need.count > 1 for container in pod.containers
    ):
        return index.score_nearness(info.free, pod)
    spread = policy is pod_request.NodePolicy.SPREAD
    need = max(
        (container.need for container in pod.containers),
        key=lambda asked: (asked.vcore, asked.vmemory),
    )
    used = [
        1 - min(room.vcore / room.device.reservable, room.vmemory * 100 / _most(room.device))
        for room in info.free
    ]
    fitting = [
        (room, part)
        for room, part in zip(info.free, used, strict=True)
        if has_room(room, need) and not free_capacity.unfit(room.device, pod.selector)
    ]
    spare = [part for room, part in fitting if _fits_physically(room, need)]
    crowded = bool(fitting) and not spare
    if crowded:
        device = min(part for _, part in fitting)
    else:
        device = (min if spread else max)(spare, default=0.0)
    full = min(1.0, 0.6 * device + 0.4 * sum(used) / len(used))
    found = math.ceil(10 * round(full, 6))
    if crowded:
        return (10 - found) // 5
    found = 10 - found if spread else found
    return (
        3 + found * 7 // 10 if any(room.device.reservable > 100 for room, _ in fitting) else found
    )


def _most(device):
    """Return hundred times the bytes that shares may reserve."""
    return device.memory_bytes * device.reservable


def _fits_physically(room, need):
    if need.whole:
        return True
    vcore = room.device.reservable - room.vcore + need.vcore
    size = _most(room.device) // 100 - room.vmemory + need.vmemory
    return vcore <= 100 and size <= room.device.memory_bytes
