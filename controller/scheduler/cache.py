"""Scheduler cache: nodes, pods and the reservations of devices.

It has three sources and queries none of them: what agents publish of their nodes, the API
server's pods, and our own reservations until the API server has them, too. So it can be rebuilt
from the API server alone at any moment, and two caches built from the same objects are equal.

A reservation begins before the bind request is sent, and ends when the pod is deleted, has
ended, or is known not to have been bound. A bind without an answer does not expire: after its
deadline it is in doubt, and the binder has to find out. One lock guards everything; nothing here
blocks.
"""

from __future__ import annotations

import dataclasses
import math
import threading
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.allocator import datatypes, placement_explanation, pod_placement
from pyvgpu.controller.scheduler import choices, pod_request
from pyvgpu.controller.scheduler.node_info import PASSING, Certainty, NodeInfo, Reservation

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from pyvgpu.allocator import annotations as notes

    Shares = Mapping[str, tuple[datatypes.NodeShare, ...]]


@dataclasses.dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """Options that an administrator may set."""

    policy: pod_request.NodePolicy = pod_request.NodePolicy.BINPACK  # of pods that name none
    expect_seconds: float = 5.0  # how long a pod's probable devices are kept free
    bind_seconds: float = 15.0  # after which an unanswered bind is in doubt
    nomination_seconds: float = 120.0  # how long devices stay reserved for a preempting pod
    resync_seconds: float = 3600.0  # between comparisons with the API server

    def packing(self, pod: pod_request.PodRequest) -> datatypes.Packing:
        """Return how *pod* chooses among the devices of a node."""
        spread = (pod.policy or self.policy) is pod_request.NodePolicy.SPREAD
        return pod.packing or (datatypes.Packing.SPREAD if spread else datatypes.Packing.BINPACK)


class Cache:
    """The scheduler cache; every method may be called by any thread."""

    def __init__(self, settings: SchedulerSettings | None = None) -> None:
        self.settings = settings or SchedulerSettings()
        self.lock = threading.RLock()
        self.nodes: dict[str, NodeInfo] = {}
        self.pods: dict[
            str, pod_request.PodRequest
        ] = {}  # by namespace/name; of pods that have ended only those of gangs that succeeded
        self.gangs: dict[str, dict[str, pod_request.PodRequest]] = {}  # their pods, by uid
        self._reservations: dict[str, Reservation] = {}  # by uid
        self._pending: dict[str, Reservation] = {}  # those that are not BOUND
        self._listeners: list[Callable[[str], None]] = []

    def listen(self, changed: Callable[[str], None]) -> None:
        """Call *changed* with the name of each node that changes."""
        self._listeners.append(changed)

    # Updates from the API server.

    def see_node(self, name: str, published: notes.Published | None, trouble: str = "") -> None:
        """Update a node; None: it publishes nothing, or nothing valid (*trouble*)."""
        with self.lock:
            info = self._node_info(name)
            info.update(published, trouble)
            self._forget_if_empty(info)
            self._changed(name)

    def forget_node(self, name: str) -> None:
        """Note that a node is gone; pods that are bound to it stay until they are deleted."""
        self.see_node(name, None)

    def see_pod(self, key: str, pod: pod_request.PodRequest | None) -> None:
        """Update the pod called *key*; None: it is gone, or requests none of our devices.

        If a known pod has this key and another uid, that pod is gone.
        """
        with self.lock:
            before = self.pods.get(key)
            if before is not None:
                if pod is None or pod.over or pod.uid != before.uid:
                    self._forget(before)
                elif before.gang != pod.gang:
                    self._leave_gang(before)
            # The rest of a gang depends on how its pods ended.
            if pod is None or (pod.over and not (pod.gang and pod.succeeded)):
                return
            self.pods[key] = pod
            if pod.gang:
                self.gangs.setdefault(pod.gang.name, {})[pod.uid] = pod
            reservation = self._reservations.get(pod.uid)
            if pod.over:
                return
            if pod.node:
                self._bound(pod, reservation)
            elif reservation is not None:
                reservation.pod = pod
                if pod.leaving and reservation.state in PASSING:
                    self._end(pod.uid)
                elif reservation.state is Certainty.BOUND:
                    self._doubt(reservation)

    # Reservations.

    def reserve(self, pod: pod_request.PodRequest, node: str, now: float) -> Shares:
        """Reserve devices of *node* for binding *pod* there; return the shares.

        Idempotent. placement_explanation.Refused, or UnavailableError, if that is impossible.
        """
        with self.lock:
            reservation = self._reservations.get(pod.uid)
            if reservation is not None and reservation.state in (
                Certainty.BINDING,
                Certainty.BOUND,
            ):
                if reservation.node != node or reservation.shares is None:
                    raise errors.UnavailableError(
                        f"{pod.key} is {reservation.state.value} on {reservation.node} already"
                    )
                if reservation.state is Certainty.BINDING:
                    reservation.until = now + self.settings.bind_seconds
                return reservation.shares
            shares = self._shares_if_still_fitting(reservation, node) or self.choose_devices(
                pod, node
            )
            until = now + self.settings.bind_seconds
            self._put(self.build_reservation(pod, node, shares, Certainty.BINDING, until))
            return shares

    def minors(self, node: str) -> Mapping[str, int]:
        """Return the driver's minor numbers of the devices of *node*, by UUID, where known."""
        with self.lock:
            info = self.nodes.get(node)
            return info.minors if info is not None else {}

    def choose_devices(self, pod: pod_request.PodRequest, node: str) -> Shares:
        """Return the shares that *pod* would get on *node*.

        placement_explanation.Refused if it does not fit; UnavailableError for an invalid request.
        """
        if pod.trouble:
            raise errors.UnavailableError(pod.trouble)
        with self.lock:
            info = self.nodes.get(node)
            if info is None or not info.unit:
                text = "the node has published no devices"
                raise placement_explanation.Refused(
                    [placement_explanation.DeviceReason("", "", "", text)]
                )
            wanted = info.wanted(pod, self.settings.packing(pod))
            found = pod_placement.find(info.without((pod.uid,)), wanted)
            if found is None:
                seen = datatypes.NodeDevices(info.devices, tuple(info.held((pod.uid,))))
                raise placement_explanation.Refused(
                    placement_explanation.reasons(seen, pod_request.called(pod, wanted))
                )
            return pod_request.named(pod, found)

    def build_reservation(
        self,
        pod: pod_request.PodRequest,
        node: str,
        shares: Shares,
        state: Certainty,
        until: float,
    ) -> Reservation:
        """Build the reservation of *shares*; nothing is stored."""
        kinds = {name: part.kind for name, part in zip(pod.names, pod.shape.parts, strict=True)}
        return Reservation(pod, node, state, choices.peak(kinds, shares, pod.key), shares, until)

    def store_expiring(self, reservation: Reservation) -> None:
        """Store a reservation that is EXPECTED or NOMINATED; it expires."""
        with self.lock:
            before = self._reservations.get(reservation.pod.uid)
            if before is None or before.state in PASSING:
                self._put(reservation)

    def seen(self, pod: pod_request.PodRequest) -> pod_request.PodRequest | None:
        """Return *pod* as it is known now; None if it is gone, or not known yet."""
        known = self.pods.get(pod.key)
        return known if known is not None and known.uid == pod.uid else None

    def find(self, uid: str) -> Reservation | None:
        """Return the reservation of a pod."""
        return self._reservations.get(uid)

    def release(self, uid: str) -> None:
        """Drop a reservation, unless BOUND. No request sent so far may still bind the pod."""
        with self.lock:
            reservation = self._reservations.get(uid)
            if reservation is not None and reservation.state is not Certainty.BOUND:
                self._end(uid)

    def expire(self, now: float) -> list[pod_request.PodRequest]:
        """Drop the reservations that have expired by *now*; return their pods."""
        with self.lock:
            late = [
                pending
                for pending in self._pending.values()
                if pending.until <= now and pending.state in PASSING
            ]
            for reservation in late:
                self._end(reservation.pod.uid)
            return [expired.pod for expired in late]

    def doubtful(self, now: float) -> list[Reservation]:
        """Return the reservations whose bind is past its deadline by *now*."""
        with self.lock:
            return [
                reservation
                for reservation in self._pending.values()
                if reservation.state is Certainty.BINDING and reservation.until <= now
            ]

    def differences(
        self,
        other: Cache,
        nodes: Collection[str] | None = None,
        pods: Collection[str] | None = None,
    ) -> list[str]:
        """Describe each difference from *other*, a cache built from the same objects.

        Only *nodes*, by name, and *pods*, by namespace/name, are compared; None: all of them.
        Answers wait meanwhile, so compare few at a time while the scheduler runs. Reservations
        that the API server does not know yet are ignored.
        """
        with self.lock, other.lock:
            names = self.nodes.keys() | other.nodes.keys() if nodes is None else nodes
            keys = self.pods.keys() | other.pods.keys() if pods is None else pods
            return sorted(self._differences(other, names, keys))

    # Internals.

    def _differences(
        self, other: Cache, nodes: Collection[str], pods: Collection[str]
    ) -> Iterator[str]:
        for name in nodes:
            one, two = self.nodes.get(name), other.nodes.get(name)
            if (one.devices if one else ()) != (two.devices if two else ()):
                yield f"node {name}: different devices"
            mine, theirs = (dict(info.placed) if info else {} for info in (one, two))
            for uid in mine | theirs:  # one by one: on a busy node some updates are in flight
                if mine.get(uid) != theirs.get(uid):
                    yield f"node {name}: pod {uid} placed differently by its agent"
        for key in pods:
            here, there = (self._settled(key), other._settled(key))
            if here != there:
                yield f"pod {key}: {here}, not {there}"

    def _settled(self, key: str) -> str:
        pod = self.pods.get(key)
        if pod is None:
            return "unknown"
        reservation = self._reservations.get(pod.uid)
        if reservation is None or reservation.state is not Certainty.BOUND:
            return f"{pod.uid} without a node"
        parts = sorted(
            f"{holding.share.uuid} {holding.share.vcore}/{holding.share.vmemory}"
            for holding in reservation.held or ()
        )
        return f"{pod.uid} on {reservation.node} with {', '.join(parts) or 'unknown devices'}"

    def _bound(self, pod: pod_request.PodRequest, reservation: Reservation | None) -> None:
        if (
            reservation is not None
            and reservation.state is Certainty.BOUND
            and (reservation.node, reservation.held) == (pod.node, pod.held)
        ):
            reservation.pod = pod
            return
        shares = None
        if (
            reservation is not None
            and reservation.node == pod.node
            and reservation.held == pod.held
        ):
            shares = reservation.shares
        self._put(Reservation(pod, pod.node, Certainty.BOUND, pod.held, shares))

    def _doubt(self, reservation: Reservation) -> None:
        """Put in doubt the bind of a pod that was bound and no longer is.

        That happens where the API server's data was restored from a backup.
        """
        reservation.state, reservation.until = Certainty.BINDING, -math.inf
        self._pending[reservation.pod.uid] = reservation

    def _shares_if_still_fitting(
        self, reservation: Reservation | None, node: str
    ) -> Shares | None:
        """Return the shares that are reserved already, if they still fit."""
        if reservation is None or reservation.node != node or reservation.shares is None:
            return None
        info, pod = self.nodes[node], reservation.pod
        if not info.unit:
            return None
        seen = datatypes.NodeDevices(info.devices, tuple(info.held((pod.uid,))))
        numbered = {str(at): reservation.shares[name] for at, name in enumerate(pod.names)}
        return (
            None if pod_placement.problem(seen, info.wanted(pod), numbered) else reservation.shares
        )

    def _put(self, reservation: Reservation) -> None:
        uid = reservation.pod.uid
        self._end(uid)
        self._reservations[uid] = reservation
        if reservation.state is not Certainty.BOUND:
            self._pending[uid] = reservation
        info = self._node_info(reservation.node)
        info.tenants[uid] = reservation
        info.changed()
        self._changed(reservation.node)

    def _end(self, uid: str) -> None:
        reservation = self._reservations.pop(uid, None)
        if reservation is None:
            return
        self._pending.pop(uid, None)
        info = self.nodes[reservation.node]
        del info.tenants[uid]
        info.changed()
        self._forget_if_empty(info)
        self._changed(reservation.node)

    def _forget(self, pod: pod_request.PodRequest) -> None:
        self._leave_gang(pod)
        del self.pods[pod.key]
        self._end(pod.uid)

    def _leave_gang(self, pod: pod_request.PodRequest) -> None:
        if pod.gang:
            members = self.gangs[pod.gang.name]
            del members[pod.uid]
            if not members:
                del self.gangs[pod.gang.name]

    def _node_info(self, name: str) -> NodeInfo:
        return self.nodes.setdefault(name, NodeInfo(name))

    def _forget_if_empty(self, info: NodeInfo) -> None:
        """Forget a node of which nothing is known and which has no pods."""
        if not (info.unit or info.trouble or info.tenants):
            del self.nodes[info.name]

    def _changed(self, name: str) -> None:
        for changed in self._listeners:
            changed(name)
