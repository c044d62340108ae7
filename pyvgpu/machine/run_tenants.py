"""Oversubscribed runs of a device as tenants of the policy, from the machine's reservations."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from pyvgpu import oversubscription, quantity
from pyvgpu.machine import tenant_record
from pyvgpu.oversubscription import MovableTenant, TenantState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyvgpu import region
    from pyvgpu.machine.holders import LiveReservation

STALE_SECONDS = 15.0  # without a decision of a supervisor, which decides each second


def pool_of(uuid: str, memory: int, live: Sequence[LiveReservation]) -> oversubscription.Pool:
    """Return what of a device of *memory* bytes is left for oversubscribed runs."""
    fixed = [x for x in live if not is_tenant(x)]
    reserved = sum(
        size
        for x in fixed
        for limits, size in zip(x.limits.devices, x.reserved, strict=True)
        if limits.uuid == uuid
    )
    percent = sum(x.reserved_vcore for x in fixed if any(y.uuid == uuid for y in x.limits.devices))
    return oversubscription.Pool(memory - reserved, quantity.WHOLE_DEVICE - percent)


def is_tenant(reservation: LiveReservation) -> bool:
    """Return whether the policy may move the run: not one that a user has suspended."""
    record = reservation.record
    return record is not None and not (
        record.is_manual and reservation.limits.suspension.suspended
    )


def left_host_memory(own: LiveReservation, live: Sequence[LiveReservation]) -> int | None:
    """Return the bytes that the run *own* may still take by its bound; None: it has none.

    Runs of other devices may be on their way to host memory, or back, at the same time.
    """
    if own.record is None or own.record.host_memory is None:
        return None
    taken = sum(
        sum(x.held or ())
        for x in live
        if x.run_id != own.run_id
        and (x.limits.suspension.gated or (x.record is not None and x.record.moving_since))
    )
    return max(0, own.record.host_memory - taken)


def tenants_of(
    uuid: str,
    live: Sequence[LiveReservation],
    activities: dict[str, region.Activity] | None = None,
) -> tuple[MovableTenant, ...]:
    """Return the tenants of a device; without *activities*, by run id, none is idle."""
    return tuple(
        _tenant(reservation, None if activities is None else activities.get(reservation.run_id))
        for reservation in live
        if is_tenant(reservation) and reservation.limits.devices[0].uuid == uuid
    )


def attended(
    tenants: Sequence[MovableTenant], own: str, live: Sequence[LiveReservation], now: float
) -> tuple[MovableTenant, ...]:
    """Return the tenants, of which none waits for a supervisor that would not move its run.

    Each supervisor moves its own run only, and may be stopped, as by Ctrl-Z, also in the middle of
    a move. *own* is the run id of the caller.
    """
    seen = {x.run_id: x.record.seen for x in live if x.record is not None}
    return tuple(
        tenant
        if tenant.key == own or not 0 < seen[tenant.key] < now - STALE_SECONDS
        else _unattended(tenant)
        for tenant in tenants
    )


def _unattended(tenant: MovableTenant) -> MovableTenant:
    since = -math.inf if tenant.state is TenantState.MOVING else tenant.since
    return dataclasses.replace(tenant, since=since, refused_until=math.inf)


def _tenant(reservation: LiveReservation, activity: region.Activity | None) -> MovableTenant:
    record, limits = reservation.record, reservation.limits.devices[0]
    assert record is not None  # noqa: S101 - the caller has checked it
    held = reservation.held[0] if reservation.held else 0
    found = tenant_record.tenant_of(
        reservation.run_id,
        record,
        tenant_record.TenantReservation(
            max(limits.vmemory, min(held, limits.memory_total)),
            reservation.holder.vcore,
            float(limits.vcore),
            reservation.limits.priority,
        ),
        tenant_record.state_of(reservation.limits.suspension),
        activity,
    )
    mark = reservation.limits.suspension
    if mark.suspended and mark.kept and not record.moving_since:
        # Its resumption did not end: it has its room, and its supervisor tries again.
        return dataclasses.replace(
            found, state=TenantState.RUNNING, wanted=None, refused_until=math.inf
        )
    return found
