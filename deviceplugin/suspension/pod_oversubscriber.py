"""Oversubscription of the node's devices by pods: the shell of its policy in the agent.

Kubelet and the scheduler let the reservations of a device exceed it by a fixed ratio. A container
starts only when its pod, and all others that are not suspended, fit physically; until then
PreStartContainer refuses it for now, and kubelet tries again. The policy
(pyvgpu.oversubscription) is that of `pyvgpu run --oversubscribe`; the moves are those of the pod
suspender, which follows :meth:`PodOversubscriber.wants_suspended`.

Quotas say which pods are suspended; a record for each pod in the run folder has its times and
moves. Both are lost when the node reboots: then all pods start again, those without room wait.

A device whose ratio was lowered to 1 stays in the policy's hands while it has pods from before.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
from typing import TYPE_CHECKING, Any

from pyvgpu import errors, names, oversubscription, quantity, region
from pyvgpu.allocator import suspensions
from pyvgpu.deviceplugin.grants import placement
from pyvgpu.deviceplugin.subscribers import Subscribers
from pyvgpu.deviceplugin.suspension import pod_tenants
from pyvgpu.machine import tenant_record
from pyvgpu.oversubscription import MoveAction, TenantState
from pyvgpu.volumes import atomic_files

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from pyvgpu.allocator import datatypes
    from pyvgpu.deviceplugin.agent_settings import Oversubscription
    from pyvgpu.deviceplugin.containers.store import GrantStore
    from pyvgpu.deviceplugin.grants import Grant
    from pyvgpu.deviceplugin.suspension.pod_tenants import ObservedPod
    from pyvgpu.machine.tenant_record import TenantRecord

log = logging.getLogger(__name__)

TENANTS = "tenants"  # the folder of the records, in the run folder
REFUSED_SECONDS = 30.0  # until the next attempt to move a pod that could not be moved
_MOST_PERIOD_SECONDS = 1.0
_RELEASED = region.Suspension(gated=True, suspended=True)


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """The node, as the oversubscriber sees it."""

    store: GrantStore
    grants: Callable[[], Mapping[str, Grant]]
    devices: Callable[[], Sequence[datatypes.NodeDevice]]
    metadata: Callable[[str], Mapping[str, Any] | None]  # of a pod, by its uid, if known
    folder: Path  # of the records
    unit: int  # bytes of one vmemory


class PodOversubscriber:
    """Decides which pods are suspended to make room for others, and which containers start."""

    def __init__(
        self,
        node: Node,
        configured: Oversubscription,
        moves: Callable[[str, str], None] = lambda *_: None,
        clock: Callable[[], float] = tenant_record.now,
    ) -> None:
        """Report each move: the device's UUID, and suspend or resume."""
        self._node = node
        self._rules = configured.rules
        self._wait_seconds = configured.wait_seconds
        self._began = moves
        self._clock = clock
        self._lock = threading.RLock()
        self._records: dict[str, TenantRecord] = {}  # by the pod's uid
        self._decided: dict[str, bool] = {}  # that it is suspended, likewise
        self._asked: dict[str, float] = {}  # when it last asked to go on, likewise
        self._adopted = False
        self._left: frozenset[str] = frozenset()  # UUIDs of devices that have pods with records
        self._due = threading.Event()
        self._stopped = threading.Event()
        self.changed: Subscribers[[str]] = Subscribers()  # a pod is to be suspended, or resumed

    # --- the grant manager ----------------------------------------------------------------------

    def admit(self, own: Sequence[Grant]) -> None:
        """Let a container with the grants *own* of one pod start; WaitsError without room.

        RefusedError if its pod can never have room, or has waited too long and has an owner.
        """
        owner = own[0].owner
        if owner is None:
            return
        with self._lock:
            self._adopt()
            devices = self._oversubscribed()
            if not devices:
                return
            pod = self._observed().get(owner.uid)
            if pod is None or pod.is_fixed:
                return
            there = [devices[uuid] for uuid in sorted(pod.uuids) if uuid in devices]
            if not there or (pod.is_manual and not _is_waiting(pod)):
                return
            self._check_alone(pod, there)
            now = self._clock()
            if pod.record is None:
                self._write(
                    owner.uid, tenant_record.TenantRecord(self._rules, since=now, is_new=True)
                )
            elif not pod.record.is_new:
                if pod.state is not TenantState.SUSPENDED:
                    return
                self._ask(pod)
            if self._start_if_next(owner.uid, there):
                if pod.is_manual:
                    self.changed(owner.uid)  # its program is to wait in cuInit
                return
        self._due.set()
        needs = " and ".join(self._need(pod, device) for device in there)
        if self._is_late(pod):
            raise placement.RefusedError(
                f"there was no room for it within {self._wait_seconds:g} s "
                f"(--oversubscribe-wait): it needs {needs}; its owner creates another pod, "
                "perhaps on another node",
                final=True,
            )
        raise placement.WaitsError(
            f"there is no room for it now: it needs {needs}; the agent suspends idle pods to make "
            "room, and the container starts when there is room"
        )

    def _check_alone(self, pod: ObservedPod, there: Sequence[datatypes.NodeDevice]) -> None:
        for device in there:
            memory, vcore = pod_tenants.reserved(pod, device.uuid, self._node.unit)
            if memory > device.memory_bytes or vcore > quantity.WHOLE_DEVICE:
                raise placement.RefusedError(
                    f"its containers together need {self._need(pod, device)}, which is more than "
                    "the device has; they cannot all run at once",
                    final=True,
                )

    def _is_late(self, pod: ObservedPod) -> bool:
        """Return whether a pod that has not started has waited too long, and can be replaced."""
        record = pod.record
        if not self._wait_seconds or record is None or not record.is_new:
            return False
        is_owned = bool((self._node.metadata(pod.uid) or {}).get("ownerReferences"))
        return is_owned and self._clock() - record.since >= self._wait_seconds

    def _need(self, pod: ObservedPod, device: datatypes.NodeDevice) -> str:
        memory, vcore = pod_tenants.reserved(pod, device.uuid, self._node.unit)
        return f"{quantity.format_size(memory)} and {vcore} vcore of {device.label}"

    def _ask(self, pod: ObservedPod) -> None:
        """Note that a suspended pod wants to go on, unless that is noted since its suspension."""
        if pod.record is not None and pod.asked <= pod.record.suspended_at:
            self._asked[pod.uid] = self._clock()

    def _start_if_next(self, uid: str, there: Sequence[datatypes.NodeDevice]) -> bool:
        """Let a new pod start if it is its turn on each of its devices."""
        if not self._records[uid].is_new:
            return False
        pods = tuple(self._observed().values())
        if not all(self._next_is(uid, device, pods) for device in there):
            return False
        record = dataclasses.replace(self._records[uid], is_new=False, since=self._clock())
        self._write(uid, record)
        return True

    def _next_is(
        self, uid: str, device: datatypes.NodeDevice, pods: Sequence[ObservedPod]
    ) -> bool:
        move = self._decide(device, pods)
        return move is not None and (move.action, move.key) == (MoveAction.RESUME, uid)

    # --- the pod suspender ----------------------------------------------------------------------

    def wants_suspended(self, uid: str) -> bool:
        """Return whether the pod is to be suspended, or to stay so, unless its user wants it."""
        with self._lock:
            self._adopt()
            if uid not in self._decided:
                pod = self._observed().get(uid)
                self._decided[uid] = pod is not None and _is_in_policys_hands(pod)
            return self._decided[uid]

    def oversubscribes(self, own: Sequence[Grant]) -> bool:
        """Return whether all devices of a pod's grants are oversubscribed."""
        there = {share.uuid for grant in own for share in grant.shares}
        return bool(there) and there <= self._oversubscribed().keys()

    def is_waiting(self, uid: str) -> bool:
        """Return whether a pod has not started yet, since it must have room first."""
        with self._lock:
            self._adopt()
            devices = self._oversubscribed()
            if not devices:
                return False
            pod = self._observed().get(uid)
            return (
                pod is not None
                and not pod.is_fixed
                and bool(pod.uuids & devices.keys())
                and _is_waiting(pod)
                and not self._is_used(pod)
            )

    def held(self, uid: str) -> None:
        """Record that its user wants a suspended pod to stay so, whatever the policy began."""
        with self._lock:
            record = self._records.get(uid)
            pod = self._observed().get(uid)
            if record is None or pod is None or not (pod.is_manual and pod.is_suspended):
                return
            if record.moving_since or not (record.is_manual or pod.keeps_reservation):
                self.ended(uid, MoveAction.SUSPEND, "", by_user=True)

    def ended(self, uid: str, action: MoveAction, error: str, *, by_user: bool) -> None:
        """Record that a suspension or resumption has ended; *error*: why it was refused.

        *by_user*: the pod's user had requested it.
        """
        with self._lock:
            record, now = self._records.get(uid), self._clock()
            if record is None:
                return
            moved = bool(record.moving_since)
            if moved:
                if error:
                    record = record.stayed(now, REFUSED_SECONDS, error)
                    self._decided[uid] = action is not MoveAction.SUSPEND
                else:
                    record = record.arrived(now)
                self._write(uid, record)
            # A user may have wanted the same as the policy, or its contrary.
            if not error and (by_user or (not moved and action is MoveAction.RESUME)):
                pod = self._observed().get(uid)
                suspends = action is MoveAction.SUSPEND
                released = suspends and pod is not None and not pod.keeps_reservation
                self._decided[uid] = released
                self._write(
                    uid,
                    dataclasses.replace(
                        record,
                        is_manual=released,
                        since=now,
                        suspended_at=now if suspends else record.suspended_at,
                    ),
                )
        self._due.set()

    # --- the component --------------------------------------------------------------------------

    def stop(self) -> None:
        """Let :meth:`run` end soon."""
        self._stopped.set()
        self._due.set()

    def run(self) -> None:
        """Decide again and again."""
        period = min(_MOST_PERIOD_SECONDS, self._rules.idle_seconds / 4)
        while not self._stopped.is_set():
            self._due.wait(period)
            self._due.clear()
            if self._stopped.is_set():
                return
            try:
                self.poll()
            except (errors.PyVgpuError, OSError) as exc:
                log.debug("could not read the pods' state: %s", exc)

    def poll(self) -> None:
        """Decide once for each device, and begin the move."""
        begun = []
        with self._lock:
            self._adopt()
            if not (self._records or self._oversubscribed()):
                return
            pods = self._observed()
            self._forget(pods)
            if self._follow_users(pods):
                pods = self._observed()
            for device in self._oversubscribed().values():
                move = self._decide(device, tuple(pods.values()))
                if move is None:
                    continue
                if self._begin(move, pods[move.key]):
                    begun.append(move.key)
                    self._began(device.uuid, move.action.value)
                    pods = self._observed()
            self._renew(pods)
        for uid in begun:
            self.changed(uid)

    def waiting(self) -> dict[str, int]:
        """Return how many pods wait for room on each oversubscribed device, by UUID."""
        with self._lock:
            pods = tuple(self._observed().values())
            return {
                device.uuid: sum(
                    x.state is TenantState.SUSPENDED and x.wanted is not None
                    for x in self._tenants(device, pods)
                )
                for device in self._oversubscribed().values()
            }

    def _begin(self, move: oversubscription.Move, pod: ObservedPod) -> bool:
        """Begin a move; false if there is nothing to move."""
        record, now = self._records[move.key], self._clock()
        resumes = move.action is MoveAction.RESUME
        if record.is_new:  # kubelet tries again, and finds room
            devices = self._oversubscribed()
            self._start_if_next(pod.uid, [devices[x] for x in pod.uuids if x in devices])
            return False
        self._decided[move.key] = not resumes
        self._write(move.key, record.moved(now, resumed=resumes))
        return True

    def _renew(self, pods: Mapping[str, ObservedPod]) -> None:
        """Let the shims note their next calls."""
        for pod in pods.values():
            if pod.record is None or pod.state is not TenantState.RUNNING:
                continue
            for grant in pod.grants:
                with contextlib.suppress(errors.PyVgpuError, OSError):
                    self._node.store.renew(grant.id)

    def _follow_users(self, pods: Mapping[str, ObservedPod]) -> bool:
        """Let pods go on whose users want them to, or delete them; return whether any does."""
        found = False
        for pod in pods.values():
            record = pod.record
            if record is None or record.is_new or pod.is_manual:
                continue
            goes_on = record.is_manual or pod.is_ending or pod.is_never
            if goes_on and pod.state is TenantState.SUSPENDED:
                self._ask(pod)
                found = True
            if record.is_manual:
                self._write(pod.uid, dataclasses.replace(record, is_manual=False))
        return found

    # --- the view -------------------------------------------------------------------------------

    def _oversubscribed(self) -> dict[str, datatypes.NodeDevice]:
        return {
            device.uuid: device
            for device in self._node.devices()
            if device.reservable > 100 or device.uuid in self._left
        }

    def _tenants(
        self, device: datatypes.NodeDevice, pods: Sequence[ObservedPod]
    ) -> tuple[oversubscription.MovableTenant, ...]:
        return pod_tenants.tenants_of(device.uuid, pods, self._node.unit)

    def _decide(
        self, device: datatypes.NodeDevice, pods: Sequence[ObservedPod]
    ) -> oversubscription.Move | None:
        pool = pod_tenants.pool_of(device, pods, self._node.unit)
        return oversubscription.decide(pool, self._tenants(device, pods), self._clock())

    def _observed(self) -> dict[str, ObservedPod]:
        """Return the pods with grants, by uid."""
        granted: dict[str, list[Grant]] = {}
        for grant in list(self._node.grants().values()):
            if grant.owner is not None:
                # What is left of an ended pod is no part of a pod with grants.
                key = f"{grant.owner.uid}/{grant.id}" if grant.over else grant.owner.uid
                granted.setdefault(key, []).append(grant)
        return {uid: self._observe(uid, own) for uid, own in granted.items()}

    def _observe(self, uid: str, own: Sequence[Grant]) -> ObservedPod:
        meta = self._node.metadata(uid) or {}
        own = sorted(own, key=lambda grant: grant.label)
        activities, held = [], 0
        for grant in own:
            if grant.whole:
                continue
            with (
                contextlib.suppress(errors.PyVgpuError, OSError),
                self._node.store.opened(grant.id, names.USAGE_FILE) as file,
            ):
                activities.append(region.read_activity(file))
                _, figures = region.read_figures(file, len(grant.shares))
                held += sum(figure.charged for figure in figures) if len(figures) == 1 else 0
        return pod_tenants.ObservedPod(
            uid,
            tuple(own),
            tuple(self._node.store.suspension(grant.id) for grant in own),
            self._records.get(uid),
            pod_tenants.activity_of(activities),
            held,
            self._asked.get(uid, 0.0),
            is_manual=_is_requested(meta) and "deletionTimestamp" not in meta,
            is_ending="deletionTimestamp" in meta,
            is_never=suspensions.is_never(meta.get("annotations") or {}),
        )

    # --- the records ----------------------------------------------------------------------------

    def _adopt(self) -> None:
        """Take over the pods that an earlier agent has left, once the devices are known."""
        if self._adopted or not self._node.devices():
            return
        self._adopted = True
        self._node.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        now = self._clock()
        for uid in self._observed():
            record = self._read(uid)
            if record is not None and record.since <= now:  # else of before a reboot
                self._records[uid] = record
        self._left = _left_of(self._observed())
        for pod in sorted(
            self._observed().values(),
            key=lambda pod: (not self._is_used(pod), min(x.created for x in pod.grants)),
        ):
            if pod.is_fixed:
                continue
            if pod.record is None:
                self._take_over(pod, now)
            elif pod.record.moving_since and pod.state is TenantState.RUNNING:
                # The earlier agent was killed before the move began.
                self._write(pod.uid, pod.record.stayed(now, 0.0, ""))

    def _take_over(self, pod: ObservedPod, now: float) -> None:
        """Record a pod without a record: of a node that was not oversubscribed, or has rebooted.

        A pod without processes that has no room is suspended before they start.
        """
        there = [x for uuid, x in self._oversubscribed().items() if uuid in pod.uuids]
        record = tenant_record.TenantRecord(self._rules, since=now)
        if not there:
            return
        if pod.state is TenantState.RUNNING and not self._is_used(pod):
            self._write(pod.uid, dataclasses.replace(record, is_new=True))
            if self._start_if_next(pod.uid, there) or len(pod.uuids) > 1:
                return
            for grant in pod.grants:
                self._node.store.mark(grant.id, _RELEASED)
            record = dataclasses.replace(record, suspended_at=now)
        self._write(pod.uid, record)

    def _is_used(self, pod: ObservedPod) -> bool:
        return any(self._node.store.is_used(grant.id) for grant in pod.grants)

    def _forget(self, pods: Mapping[str, ObservedPod]) -> None:
        for pod in pods.values():
            # A grant that only kubelet remembered, or of a device that was not oversubscribed.
            if pod.record is None and not pod.is_fixed and self._is_used(pod):
                self._take_over(pod, self._clock())
        for uid in self._records.keys() - pods.keys():
            del self._records[uid]
            self._path(uid).unlink(missing_ok=True)
        for known in (self._decided, self._asked):
            for uid in known.keys() - pods.keys():
                del known[uid]
        self._left = _left_of(pods)

    def _path(self, uid: str) -> Path:
        return self._node.folder / f"{uid.replace('/', '_')}.json"

    def _read(self, uid: str) -> TenantRecord | None:
        try:
            return tenant_record.load(self._path(uid).read_bytes())
        except (errors.DataError, OSError):
            return None

    def _write(self, uid: str, record: TenantRecord) -> None:
        self._records[uid] = record
        try:
            atomic_files.write(self._path(uid), tenant_record.dump(record), lasting=False)
        except OSError as exc:  # only the next agent will miss it
            log.warning("could not write the record of pod %s: %s", uid, exc)


def _is_requested(meta: Mapping[str, Any]) -> bool:
    try:
        return bool(suspensions.requested(meta.get("annotations") or {}))
    except errors.UsageError:
        return False


def _is_waiting(pod: ObservedPod) -> bool:
    """Return whether the policy has not let a pod start yet."""
    return pod.record is None or pod.record.is_new


def _left_of(pods: Mapping[str, ObservedPod]) -> frozenset[str]:
    """Return the devices of pods that the policy has let start, or has suspended."""
    return frozenset[str]().union(
        *(
            x.uuids
            for x in pods.values()
            if not x.is_fixed and (x.record is not None or _is_in_policys_hands(x))
        )
    )


def _is_in_policys_hands(pod: ObservedPod) -> bool:
    """Return whether the policy has suspended a pod, or was about to."""
    moving = pod.record is not None and bool(pod.record.moving_since)
    return any(
        mark.gated and not mark.kept and (mark.suspended or moving) for mark in pod.suspensions
    )
