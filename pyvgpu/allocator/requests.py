"""Container requests: validation, and kubelet's rules for init containers and sidecars."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyvgpu import errors, quantity
from pyvgpu.allocator import datatypes

if TYPE_CHECKING:
    from collections.abc import Iterable


def read(
    vcore: int, vmemory: int, count: int | None = None, *, least: int = 1
) -> datatypes.ContainerNeed:
    """Return the need for *vcore* and *vmemory* (bytes) of one container.

    *count*, if it is given, is the number of devices over which they are spread evenly. *least* is
    the minimum of a useful share: the overhead of a context, and some room. UsageError names
    valid values.
    """
    if vcore == 0 and vmemory > 0:
        raise errors.UsageError(
            "vmemory without vcore: a share of a device needs some of its time too, from 1 to 99 "
            "vcore, such as 50; or ask for a multiple of 100 vcore, a whole device"
        )
    if vcore < 1:
        raise errors.UsageError(
            f"vcore {vcore}: must be from 1 to 99 for a share of one device, or a multiple of 100 "
            "for whole devices, such as 50"
        )
    if count is not None:
        return _spread(vcore, vmemory, count, least)
    if vcore % quantity.WHOLE_DEVICE == 0:
        devices = vcore // quantity.WHOLE_DEVICE
        return datatypes.ContainerNeed(quantity.WHOLE_DEVICE, -(-vmemory // devices), devices)
    if vcore > quantity.WHOLE_DEVICE:
        whole = vcore // quantity.WHOLE_DEVICE * quantity.WHOLE_DEVICE
        raise errors.UsageError(
            f"vcore {vcore}: above 100 it must be a multiple of 100, for whole devices; "
            f"valid would be {whole} or {whole + quantity.WHOLE_DEVICE}"
        )
    return datatypes.ContainerNeed(vcore, _memory(vcore, vmemory, least))


def _spread(vcore: int, vmemory: int, count: int, least: int) -> datatypes.ContainerNeed:
    if count < 1 or vcore % count or vcore > count * quantity.WHOLE_DEVICE:
        raise errors.UsageError(
            f"vcore {vcore} on {count} devices: must be the same whole number from 1 to 100 of "
            f"each, such as {50 * max(count, 1)}"
        )
    if vcore == count * quantity.WHOLE_DEVICE:
        return datatypes.ContainerNeed(quantity.WHOLE_DEVICE, -(-vmemory // count), count)
    return datatypes.ContainerNeed(
        vcore // count, _memory(vcore, vmemory, least * count) // count, count
    )


def _memory(vcore: int, vmemory: int, least: int) -> int:
    if vmemory < 1:
        raise errors.UsageError(
            f"vcore {vcore} without vmemory: a share of a device needs memory of it too, at least "
            "1 unit of vmemory; or ask for a multiple of 100 vcore, a whole device"
        )
    if vmemory < least:
        raise errors.UsageError(
            f"vmemory of {quantity.format_size(vmemory)}: a share needs at least "
            f"{quantity.format_size(least)}, for the CUDA context itself and some room for the "
            "program"
        )
    return vmemory


def phases(containers: Iterable[datatypes.Container]) -> tuple[tuple[str, ...], ...]:
    """Return the sets of containers that run concurrently: one per init container, and a last.

    Kubelet's rule: an init container runs beside the sidecars that were started before it, the
    app containers beside all sidecars.
    """
    found: list[tuple[str, ...]] = []
    running: list[str] = []
    apps: list[str] = []
    for container in containers:
        if container.kind is datatypes.ContainerKind.INIT:
            found.append((*running, container.name))
        elif container.kind is datatypes.ContainerKind.SIDECAR:
            running.append(container.name)
        else:
            apps.append(container.name)
    return (*found, (*running, *apps))


def effective(containers: Iterable[datatypes.Container]) -> tuple[int, int]:
    """Return the vcore and the bytes that kubelet counts for a pod: the maximum of all phases.

    For whole devices the bytes are those requested, not those allocated.
    """
    named = {container.name: container.need for container in containers}
    sums = [
        (
            sum(named[name].vcore * named[name].count for name in phase),
            sum(named[name].vmemory * named[name].count for name in phase),
        )
        for phase in phases(containers)
    ]
    return max(vcore for vcore, _ in sums), max(size for _, size in sums)
