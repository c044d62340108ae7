"""The pods of one device as tenants of the policy of oversubscription (pyvgpu.oversubscription).

Pure. Pods with one share of one device, or several containers with shares of the same device, may
be moved. Pods with shares of several devices are never suspended, and neither are those whose
annotation says so. Whole devices, claims, and pods
that a user has suspended with their reservation are no tenants: they make the device smaller.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from pyvgpu import oversubscription, region
from pyvgpu.deviceplugin.grants import holdings
from pyvgpu.machine import tenant_record
from pyvgpu.oversubscription import TenantState

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyvgpu.allocator import datatypes
    from pyvgpu.deviceplugin.grants import Grant


@dataclasses.dataclass(frozen=True, slots=True)
class ObservedPod:
    """A pod with grants on the node."""

    uid: str
    grants: tuple[Grant, ...]
    suspensions: tuple[region.Suspension, ...]  # of the grants, in their order
    record: tenant_record.TenantRecord | None  # None: it is not admitted, and does not wait
    activity: region.Activity | None = None  # of all its grants; None: unknown, it counts as busy
    held: int = 0  # bytes in the ledgers of its grants
    asked: float = -math.inf  # when a container of it began to start, or its user resumed it
    is_manual: bool = False  # its user wants it suspended
    is_ending: bool = False  # it is being deleted
    is_never: bool = False  # its user wants it never suspended

    @property
    def uuids(self) -> frozenset[str]:
        """The devices of its grants."""
        return frozenset(share.uuid for grant in self.grants for share in grant.shares)

    @property
    def is_fixed(self) -> bool:
        """Whether it is no tenant: it has whole devices, a claim, or has ended."""
        return any(grant.whole or grant.claim or grant.over for grant in self.grants)

    @property
    def is_suspended(self) -> bool:
        """Whether all of it is suspended."""
        return all(mark.suspended for mark in self.suspensions)

    @property
    def keeps_reservation(self) -> bool:
        """Whether it is suspended without a release of its reservation."""
        return self.is_suspended and all(mark.kept for mark in self.suspensions)

    @property
    def state(self) -> TenantState:
        """The state of its memory."""
        if self.record is not None and self.record.is_new:
            return TenantState.SUSPENDED
        states = {tenant_record.state_of(mark) for mark in self.suspensions}
        return states.pop() if len(states) == 1 else TenantState.MOVING


def reserved(pod: ObservedPod, uuid: str, unit: int) -> tuple[int, int]:
    """Return the bytes and the vcore that a pod reserves of a device.

    *unit* is the bytes of one vmemory. Containers that never run at the same time share ids.
    """
    there = [x.share for x in holdings.held(pod.grants, unit) if x.share.uuid == uuid]
    memory = sum(share.vmemory for share in there)
    on_one = len(pod.uuids) == 1
    vcore = len(frozenset[str]().union(*(grant.vcore_ids for grant in pod.grants)))
    return memory, vcore if on_one and vcore else sum(share.vcore for share in there)


def pool_of(
    device: datatypes.NodeDevice, pods: Iterable[ObservedPod], unit: int
) -> oversubscription.Pool:
    """Return what of a device is left for the tenants."""
    memory, vcore = device.memory_bytes, 100
    for pod in pods:
        if device.uuid in pod.uuids and (pod.is_fixed or pod.keeps_reservation):
            taken, percent = reserved(pod, device.uuid, unit)
            memory, vcore = memory - taken, vcore - percent
    return oversubscription.Pool(memory, vcore)


def tenants_of(
    uuid: str, pods: Iterable[ObservedPod], unit: int
) -> tuple[oversubscription.MovableTenant, ...]:
    """Return the tenants of a device, by the uid of their pods."""
    return tuple(
        _tenant(pod, pod.record, uuid, unit)
        for pod in pods
        if pod.record is not None
        and uuid in pod.uuids
        and not pod.is_fixed
        and not (pod.is_suspended and (pod.is_manual or pod.keeps_reservation))
    )


def _tenant(
    pod: ObservedPod, record: tenant_record.TenantRecord, uuid: str, unit: int
) -> oversubscription.MovableTenant:
    memory, vcore = reserved(pod, uuid, unit)
    first = pod.grants[0]
    found = tenant_record.tenant_of(
        pod.uid,
        record,
        tenant_record.TenantReservation(
            max(memory, pod.held), vcore, float(max(vcore, 1)), first.priority
        ),
        pod.state,
        pod.activity,
    )
    wanted, refused_until = found.wanted, found.refused_until
    if (
        found.state is TenantState.SUSPENDED
        and pod.asked > record.suspended_at
        and not found.is_new
    ):
        wanted = pod.asked if wanted is None else min(wanted, pod.asked)
    fixed_now = len(pod.uuids) > 1 or pod.is_manual or pod.is_ending or pod.is_never
    if found.state is TenantState.RUNNING and fixed_now:
        refused_until = math.inf
    return dataclasses.replace(found, wanted=wanted, refused_until=refused_until)


def activity_of(found: Sequence[region.Activity]) -> region.Activity | None:
    """Return the latest activity of several containers; None if there are none."""
    if not found:
        return None
    return region.Activity(
        max(x.worked for x in found),
        max(x.wanted for x in found),
        any(x.waits for x in found),
    )
