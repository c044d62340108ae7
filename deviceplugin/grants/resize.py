"""Change the quota of a running container within its original allocation; pure.

Kubelet accounts for the ids that the container got when it was created, and may allocate all
others to other containers. So vcore and vmemory can be lowered, and raised again up to those ids,
but no further: capacity that is free beyond them may be allocated at any moment. Idle time is
different: the policy says whether it may be used, and policy and limit can change at any time.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from pyvgpu import errors, names, quantity, quota, share
from pyvgpu.allocator import datatypes, elastic, isolation
from pyvgpu.machine import quota_socket

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyvgpu import device
    from pyvgpu.deviceplugin.grants import Grant


def with_time_sharing(
    grant: Grant, time_sharing: elastic.TimeSharing | None, priority: quota.Priority | None = None
) -> Grant:
    """Return *grant* as its pod's annotations set it; UsageError if they are not possible.

    Removed annotations lose their effect; the administrator's settings stay.
    """
    if grant.whole or not grant.bound:
        return grant  # there is no quota to change
    isolation.check_time_sharing(grant.isolation, time_sharing, priority)
    usual = grant.claim or elastic.TimeSharing()
    if priority is not None:
        grant = dataclasses.replace(grant, priority=priority, prioritized=True)
    elif grant.prioritized:
        grant = dataclasses.replace(grant, priority=usual.priority, prioritized=False)
    if time_sharing is None:
        plain = dataclasses.replace(
            grant, policy=usual.policy, ceiling=usual.ceiling, annotated=False
        )
        return plain if grant.annotated else grant
    most = max(one.vcore for one in grant.shares)
    if time_sharing.ceiling is not None and time_sharing.ceiling < most:
        raise errors.UsageError(
            f"{names.VCORE_LIMIT_ANNOTATION} '{time_sharing.ceiling}': must be from the "
            f"container's own {most} vcore to {quantity.WHOLE_DEVICE}, such as "
            f"{quantity.WHOLE_DEVICE}"
        )
    return dataclasses.replace(
        grant, policy=time_sharing.policy, ceiling=time_sharing.ceiling, annotated=True
    )


def changed(
    grant: Grant, wanted: quota.QuotaChange, devices: Mapping[str, device.Device], unit: int
) -> Grant:
    """Return *grant* as *wanted* changes it, the same on each of its devices.

    *unit* is the bytes of one id of vmemory. UsageError, with valid values, if it is not possible.
    """
    if not grant.bound:
        raise errors.UsageError(f"grant {grant.id}: it is not bound to a container yet")
    if grant.whole:
        raise errors.UsageError(
            f"{grant.label}: has whole devices, which have no quota; only a share can be changed"
        )
    _check_allocated(grant, wanted, unit)
    shares = []
    for one in grant.shares:
        if one.uuid not in devices:
            raise errors.UnavailableError(f"{grant.label}: its device {one.uuid} is missing")
        after = share.change(grant.share_of(one, devices[one.uuid]), wanted)
        shares.append(datatypes.NodeShare(one.uuid, after.vcore, after.vmemory))
    return dataclasses.replace(
        grant,
        shares=tuple(shares),
        policy=after.policy,
        ceiling=after.ceiling,
        priority=after.priority,
    )


def _check_allocated(grant: Grant, wanted: quota.QuotaChange, unit: int) -> None:
    """Refuse a quota above the container's original allocation."""
    vcore, vmemory = grant.allocated(unit)
    if wanted.vcore is not None and wanted.vcore > vcore:
        raise errors.UsageError(
            f"vcore {wanted.vcore}: {grant.label} was created with {vcore}, and the rest is "
            f"reserved for others; valid would be --vcore {vcore}, or --policy elastic "
            f"--vcore-limit {wanted.vcore} for idle time"
        )
    if wanted.vmemory is not None and wanted.vmemory > vmemory:
        raise errors.UsageError(
            f"vmemory {quantity.format_exact(wanted.vmemory)}: {grant.label} was created with "
            f"{quantity.format_exact(vmemory)}, and the rest is reserved for others; valid would "
            f"be --vmemory {quantity.format_exact(vmemory)}"
        )


def describe(grant: Grant) -> str:
    """Describe a container's quota in a line."""
    first = grant.shares[0]
    where = first.uuid if len(grant.shares) == 1 else f"each of {len(grant.shares)} devices"
    limit = grant.ceiling or quantity.WHOLE_DEVICE
    held = quota_socket.ChangedQuota(
        first.vcore, limit, first.vmemory, grant.policy, where, priority=grant.priority
    )
    return f"{grant.label}: {held.text}"
