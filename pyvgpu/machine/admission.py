"""Admission check: whether a device has room for a new reservation beside the existing ones.

Pure: pyvgpu.machine.reservations holds the lock of the registry, and enters what fits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyvgpu import errors, oversubscription, quantity, quota, share
from pyvgpu.machine import run_tenants

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyvgpu.machine.holders import LiveReservation, RunRequest


def choose(request: RunRequest, live: Sequence[LiveReservation]) -> share.Share:
    """Return the first share of the request that fits beside the *live* reservations."""
    refusals: list[errors.PyVgpuError] = []
    for device in request.devices:
        try:
            wanted = share.fit(request.quota, device)
            check_isolation(wanted, request.user, live)
            check(wanted, request.vcore, live)
        except errors.PyVgpuError as exc:
            refusals.append(exc)
        else:
            return wanted
    # Prefer a temporary reason: no room now, rather than never.
    refusals.sort(key=lambda exc: isinstance(exc, errors.UsageError))
    if len(refusals) == 1:
        raise refusals[0]
    raise type(refusals[0])(f"{refusals[0]} (and none of the other devices has room either)")


def choose_oversubscribed(
    request: RunRequest, ratio: float, live: Sequence[LiveReservation]
) -> tuple[share.Share, bool]:
    """Return the first share with room, else the first within *ratio*; and whether it has room."""
    refusals: list[errors.PyVgpuError] = []
    later: share.Share | None = None
    for device in request.devices:
        try:
            wanted = share.fit(request.quota, device)
            check_isolation(wanted, request.user, live)
            _check_ratio(wanted, request.vcore, ratio, live)
            later = later or wanted
            check(wanted, request.vcore, live)
        except errors.PyVgpuError as exc:
            refusals.append(exc)
        else:
            return wanted, True
    if later is not None:
        return later, False
    raise sorted(refusals, key=lambda exc: isinstance(exc, errors.UsageError))[0]


def _check_ratio(
    wanted: share.Share, vcore: int, ratio: float, live: Sequence[LiveReservation]
) -> None:
    device = wanted.device
    pool = run_tenants.pool_of(device.uuid, device.memory_bytes, live)
    tenants = run_tenants.tenants_of(device.uuid, live)
    if wanted.vmemory > pool.memory or vcore > pool.vcore:
        raise errors.UnavailableError(
            f"vmemory {quantity.format_size(wanted.vmemory)}, vcore {vcore}: {device.label} has "
            f"{quantity.format_size(max(0, pool.memory))} and {max(0, pool.vcore)} vcore for runs "
            "with --oversubscribe, where each has to fit alone; other runs reserve the rest"
        )
    if not oversubscription.admits(pool, tenants, wanted.vmemory, vcore, ratio):
        raise errors.UnavailableError(
            f"vmemory {quantity.format_size(wanted.vmemory)}, vcore {vcore}: {device.label} has "
            f"{quantity.format_size(max(0, pool.memory))} and {max(0, pool.vcore)} vcore for runs "
            f"with --oversubscribe, and --oversubscribe {ratio:g} allows {ratio:g} times as much "
            f"for all; {len(tenants)} have "
            f"{quantity.format_size(sum(x.memory for x in tenants))} and "
            f"{sum(x.vcore for x in tenants)} vcore"
        )


def check(wanted: share.Share, vcore: int, live: Sequence[LiveReservation]) -> None:
    """Raise UnavailableError if *wanted*, with *vcore* reserved, does not fit."""
    check_memory(wanted, live)
    check_time(wanted, vcore, live)


def check_isolation(wanted: share.Share, user: int, live: Sequence[LiveReservation]) -> None:
    """Raise UnavailableError if runs of the device have another isolation, or user under MPS.

    The clients of an MPS server and other processes take turns, so that neither kind would get
    what its quota says. A server serves one user at a time, and lets others wait.
    """
    mps = quota.Isolation.MPS
    for reservation in live:
        for limits in reservation.limits.devices:
            if limits.uuid != wanted.device.uuid or mps not in (
                limits.isolation,
                wanted.isolation,
            ):
                continue
            if limits.isolation is not wanted.isolation:
                raise errors.UnavailableError(
                    f"sharing {wanted.isolation.name.lower()}: {reservation.name} uses "
                    f"{wanted.device.label} with sharing {limits.isolation.name.lower()}; it must "
                    "be the same for all runs of a device"
                )
            if reservation.uid != user:
                raise errors.UnavailableError(
                    f"sharing mps: {reservation.name} uses {wanted.device.label}, and an MPS "
                    "server serves one user at a time"
                )


def check_memory(
    wanted: share.Share, live: Sequence[LiveReservation], *, advise: bool = True
) -> None:
    """Raise UnavailableError if the memory of *wanted* does not fit beside *live*.

    The message names the holders; with *advise* also an option of `pyvgpu run` that would fit.
    """
    found = [
        (reservation.name, limits, reserved)
        for reservation in live
        for limits, reserved in zip(reservation.limits.devices, reservation.reserved, strict=True)
        if limits.uuid == wanted.device.uuid and not reservation.limits.suspension.released
    ]
    free = share.usable_bytes(wanted.device, wanted.isolation) - sum(
        reserved for _, _, reserved in found
    )
    if wanted.vmemory > free:
        holders = ", ".join(
            f"{name} {quantity.format_size(reserved)}" + _beyond(limits.vmemory, reserved)
            for name, limits, reserved in found
        )
        raise errors.UnavailableError(
            f"vmemory {quantity.format_size(wanted.vmemory)}: {wanted.device.label} has "
            f"{quantity.format_size(max(free, 0))} of "
            f"{quantity.format_size(wanted.device.memory_bytes)} free, the rest is reserved: "
            f"{holders}" + (_valid_memory(wanted, free) if advise else "")
        )


def check_time(
    wanted: share.Share, vcore: int, live: Sequence[LiveReservation], *, advise: bool = True
) -> None:
    """Raise UnavailableError if *vcore* of the device of *wanted* is not free beside *live*."""
    found = [
        reservation
        for reservation in live
        if any(limits.uuid == wanted.device.uuid for limits in reservation.limits.devices)
    ]
    idle = quantity.WHOLE_DEVICE - sum(reservation.reserved_vcore for reservation in found)
    if vcore > idle:
        holders = ", ".join(
            f"{reservation.name} {reservation.reserved_vcore}"
            for reservation in found
            if reservation.reserved_vcore
        )
        raise errors.UnavailableError(
            f"vcore {vcore}: {wanted.device.label} has {max(idle, 0)} of "
            f"{quantity.WHOLE_DEVICE} free, the rest is reserved: {holders}"
            + (f"; valid would be --vcore {idle}" if idle > 0 and advise else "")
        )


def _beyond(quota: int, reserved: int) -> str:
    return "" if reserved <= quota else f" (held; its quota is {quantity.format_size(quota)})"


def _valid_memory(wanted: share.Share, free: int) -> str:
    if free < wanted.device.context_bytes + share.LEAST_ROOM_BYTES:
        return ""
    return f"; valid would be --vmemory {quantity.format_exact(quantity.round_down(free))}"
