"""Pods of another system's group, from their filter to their bind: all are bound, or none.

kube-scheduler sends the bind requests of a group when it has found a node for each of its pods.
The first of these choices may be old by then, and other pods have taken the devices. So a bind
waits until those of all pods that were accepted have arrived, and every one of them has its
devices; if one has none, all are refused, and kube-scheduler tries the group again.

The extender does not know the size of a group: a pod that was accepted, but is not to be bound
now, is awaited for a limited time, and after that no more until it is filtered again. A pod that
is bound, gone or being deleted is not awaited. After a restart nothing is known of a group, and
each pod is bound when its request arrives.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.controller.scheduler.node_info import Certainty

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyvgpu.controller.scheduler import cache, pod_request
    from pyvgpu.controller.scheduler.node_info import Reservation

log = logging.getLogger(__name__)

AWAIT_SECONDS = 5.0  # that a bind waits for those of the other pods of its group
LONGEST_SECONDS = 30.0  # that devices are reserved while pods of a group are being filtered
BIND_SECONDS = 20.0  # that they are reserved for binds that have all arrived


@dataclasses.dataclass(slots=True)
class _PodGroup:
    """Pods of one group that kube-scheduler may bind together, by uid."""

    accepted: dict[str, pod_request.PodRequest] = dataclasses.field(default_factory=dict)
    arrived: dict[str, str] = dataclasses.field(default_factory=dict)  # the node of its bind
    begun: set[str] = dataclasses.field(default_factory=set)  # may be bound
    refused: dict[str, str] = dataclasses.field(default_factory=dict)  # why its bind is
    since: float = 0.0  # when the first devices were reserved
    until: float = 0.0  # when binds stop to wait
    in_vain: bool = False  # a pod did not fit while the others held devices


class Groups:
    """Groups of other systems; the caller holds the lock of the cache."""

    def __init__(self, known: cache.Cache) -> None:
        self._cache = known
        self._groups: dict[str, _PodGroup] = {}

    def accept(self, pod: pod_request.PodRequest, now: float) -> None:
        """Note that *pod* fits a node, and keep the devices of its group reserved.

        Not for longer if the group did not fit while it held them: then they have to expire.
        """
        group = self._groups.setdefault(pod.group, _PodGroup())
        held = self._held(group)
        if not held:
            group.since, group.in_vain = now, False
        group.accepted[pod.uid] = pod
        for old in (group.refused, group.arrived):
            old.pop(pod.uid, None)
        group.begun.discard(pod.uid)
        if not group.in_vain:
            until = min(now + self._cache.settings.expect_seconds, group.since + LONGEST_SECONDS)
            _extend(self._held(group), until)

    def refuse(self, pod: pod_request.PodRequest) -> None:
        """Note that *pod* fits no node; it stays awaited if it was accepted among other nodes."""
        if pod.group in self._groups:
            self._groups[pod.group].in_vain = True

    def arrive(self, pod: pod_request.PodRequest, node: str, now: float) -> float | None:
        """Note a bind request of *pod* for *node*; return None if it may be bound now.

        Otherwise the time until which it waits at most. UnavailableError if its group is not
        bound, since one of its pods has no devices.
        """
        group = self._groups.setdefault(pod.group, _PodGroup())
        if pod.uid in group.refused:
            raise errors.UnavailableError(f"pod {pod.key}: {group.refused.pop(pod.uid)}")
        if pod.uid in group.begun:
            return None
        if not group.arrived:
            group.until = now + AWAIT_SECONDS
        group.arrived[pod.uid] = node
        group.accepted[pod.uid] = pod
        _extend(self._held(group), group.until)
        awaited = self._awaited(group)
        if not self._holds(pod, node, group.until):
            text = f"not bound, since pod {pod.key} of its group has no room on {node} any more"
            self._refuse_all(group, awaited, text)
            return self.arrive(pod, node, now)
        if awaited and now < group.until:
            return group.until
        if awaited:
            log.warning(
                "bound pods of group %s without %s", pod.group, ", ".join(awaited.values())
            )
        waiting = self._waiting(group)
        lost = [
            uid
            for uid, where in group.arrived.items()
            if uid in waiting and not self._is_held(uid, where)
        ]
        if lost:
            names = ", ".join(group.accepted[uid].key for uid in lost)
            self._refuse_all(
                group, awaited, f"not bound, since {names} of its group lost its room"
            )
            return self.arrive(pod, node, now)
        _extend(self._held(group), now + BIND_SECONDS)
        group.begun |= group.arrived.keys()
        group.arrived.clear()
        group.accepted.clear()
        return None

    def forget(self) -> None:
        """Forget pods that are bound or gone."""
        if not self._groups:  # as in most clusters; the cache may have thousands of pods
            return
        waiting = {pod.uid for pod in self._cache.pods.values() if pod.group and pod.waits}
        for name, group in list(self._groups.items()):
            for known in (group.accepted, group.arrived, group.refused):
                for uid in known.keys() - waiting:
                    del known[uid]
            group.begun &= waiting
            if not (group.accepted or group.arrived or group.refused or group.begun):
                del self._groups[name]

    def _waiting(self, group: _PodGroup) -> dict[str, pod_request.PodRequest]:
        """Return the accepted pods that are still to be bound."""
        return {
            uid: pod
            for uid, pod in group.accepted.items()
            if (seen := self._cache.seen(pod)) is not None and seen.waits
        }

    def _awaited(self, group: _PodGroup) -> dict[str, str]:
        """Return the keys of the pods whose bind has not arrived, by uid."""
        return {
            uid: pod.key
            for uid, pod in self._waiting(group).items()
            if uid not in group.arrived and self._state(uid) is not Certainty.BINDING
        }

    def _state(self, uid: str) -> Certainty | None:
        reservation = self._cache.find(uid)
        return reservation.state if reservation else None

    def _held(self, group: _PodGroup) -> list[Reservation]:
        """Return the reservations of the group that expire."""
        found = (self._cache.find(uid) for uid in group.accepted)
        return [one for one in found if one is not None and one.state is Certainty.EXPECTED]

    def _is_held(self, uid: str, node: str) -> bool:
        reservation = self._cache.find(uid)
        return reservation is not None and reservation.node == node

    def _holds(self, pod: pod_request.PodRequest, node: str, until: float) -> bool:
        """Return whether *pod* has devices on *node*; reserve them if it has not."""
        reservation = self._cache.find(pod.uid)
        if reservation is not None and reservation.state in (Certainty.BINDING, Certainty.BOUND):
            return True  # whether to the same node is for the bind to say
        try:
            shares = self._cache.choose_devices(pod, node)
        except errors.UnavailableError:
            return False
        if not self._is_held(pod.uid, node):
            self._cache.store_expiring(
                self._cache.build_reservation(pod, node, shares, Certainty.EXPECTED, until)
            )
        return True

    def _refuse_all(self, group: _PodGroup, awaited: Iterable[str], text: str) -> None:
        """Refuse the binds that have arrived and those that will, and free their devices."""
        uids = {*group.arrived, *awaited}
        for uid in uids:
            if self._state(uid) is Certainty.EXPECTED:
                self._cache.release(uid)
            group.accepted.pop(uid, None)
        group.arrived.clear()
        group.refused |= dict.fromkeys(uids, text)


def _extend(reservations: Iterable[Reservation], until: float) -> None:
    for reservation in reservations:
        reservation.until = max(reservation.until, until)
