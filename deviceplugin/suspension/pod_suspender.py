"""Suspend and resume the pods of this node, as their annotations request.

The request is in a pod's annotation (allocator/suspensions.py), the state in the quotas of its
grants and in the driver. So a restarted agent goes on where the former was killed: what the
quotas say is compared with the request, and an operation that was interrupted is repeated or
taken back. A pod that is being deleted is resumed, so that its programs can handle SIGTERM.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import logging
import threading
import time
from typing import TYPE_CHECKING, Any

from pyvgpu import errors, names, quantity
from pyvgpu.allocator import suspensions
from pyvgpu.deviceplugin.cluster import node_pods
from pyvgpu.deviceplugin.grants import events
from pyvgpu.deviceplugin.suspension import container_tenant, pod_operation
from pyvgpu.kube import apiserver
from pyvgpu.oversubscription import MoveAction
from pyvgpu.run import checkpoint_calls, suspend_operation, suspension

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyvgpu import device
    from pyvgpu.deviceplugin.containers.store import GrantStore
    from pyvgpu.deviceplugin.grants import Grant
    from pyvgpu.deviceplugin.suspension import pod_oversubscriber

log = logging.getLogger(__name__)

POLL_SECONDS = 5.0  # while no pod changes, for containers granted since
RETRY_SECONDS = 30.0  # between two attempts at what was refused
IDLE_LOCK_SECONDS = 2.0  # for the work of a pod that is thought to be idle
_TIMEOUT_SECONDS = 5.0  # for operations in progress when the agent ends


@dataclasses.dataclass(frozen=True, slots=True)
class SuspenderNode:
    """The node, as the suspender sees it."""

    store: GrantStore
    grants: Callable[[], Mapping[str, Grant]]
    devices: Callable[[], Mapping[str, device.Device]]
    driver: Callable[[], checkpoint_calls.CheckpointDriver | None]  # None: none at present
    host_memory: int  # bytes that all suspended pods may take together


@dataclasses.dataclass(frozen=True, slots=True)
class Reports:
    """Where results go."""

    record: Callable[[events.GrantEvent], None]
    # Called after each operation: suspend or resume; done, refused or lost; seconds.
    ended: Callable[[str, str, float], None] = lambda *_: None
    # Called after each operation, for each grant of the pod: what was moved.
    moved: Callable[[str, suspend_operation.MovedMemory], None] = lambda *_: None


@dataclasses.dataclass(frozen=True, slots=True)
class _Pod:
    """A pod and its request."""

    meta: dict[str, Any]
    grants: tuple[Grant, ...]
    wanted: bool  # that it is suspended
    requested: str = ""  # by its user: keep, release or nothing

    @property
    def uid(self) -> str:
        return str(self.meta["uid"])

    @property
    def annotations(self) -> dict[str, Any]:
        return self.meta.get("annotations") or {}

    @property
    def request(self) -> str:
        return str(self.annotations.get(names.SUSPEND_ANNOTATION) or "")

    @property
    def order(self) -> suspend_operation.SuspendOrder:
        if self.requested:
            keep = self.requested == suspensions.KEEP
            return suspend_operation.SuspendOrder(suspension.DesiredState.SUSPENDED, keep=keep)
        return suspend_operation.SuspendOrder(
            suspension.DesiredState.SUSPENDED, lock_seconds=IDLE_LOCK_SECONDS, is_manual=False
        )

    def event(self, reason: events.Reason, text: str) -> events.GrantEvent:
        return events.GrantEvent(self.uid, self.meta["namespace"], self.meta["name"], text, reason)


class HostBudget:
    """Bounds the host memory that all suspended pods of a node may take together.

    It is counted in bytes of device memory: the driver keeps these in host memory, in the
    processes. Free memory and the memory limits of containers are checked elsewhere
    (pyvgpu.machine.host_memory). Several suspensions may be in progress at the same time.
    """

    def __init__(self, limit: int, taken: Callable[[], Mapping[str, int]]) -> None:
        """*limit*: in bytes; *taken* returns the bytes of suspended pods, by uid."""
        self._limit = limit
        self._taken = taken
        self._lock = threading.Lock()
        self._claims: dict[str, int] = {}  # of suspensions in progress, by uid

    def claim(self, uid: str, size: int) -> None:
        """Reserve *size* bytes for a suspension that begins; UnavailableError beyond the limit."""
        with self._lock:
            taken = self._taken()
            others = sum(
                max(taken.get(other, 0), self._claims.get(other, 0))
                for other in (taken.keys() | self._claims.keys()) - {uid}
            )
            if size + others > self._limit:
                raise errors.UnavailableError(
                    f"it needs {quantity.format_size(size)} of host memory, other suspended pods "
                    f"have {quantity.format_size(others)}, and all of them may have "
                    f"{quantity.format_size(self._limit)} on this node (--suspend-host-memory)"
                )
            self._claims[uid] = size

    def release(self, uid: str) -> None:
        """End a claim, if there is one: the pod is suspended now, or runs."""
        with self._lock:
            self._claims.pop(uid, None)


class PodSuspender:
    """Follows the annotations from :meth:`run` until :meth:`stop`; each pod has its own thread."""

    def __init__(
        self,
        known: node_pods.Pods,
        node: SuspenderNode,
        reports: Reports,
        policy: pod_oversubscriber.PodOversubscriber | None = None,
    ) -> None:
        """*policy* may also want pods suspended; None: devices are not oversubscribed."""
        self._known = known
        self._policy = policy
        self._node = node
        self._budget = HostBudget(node.host_memory, self._taken)
        self._reports = reports
        self._changed = threading.Event()
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._busy: dict[str, threading.Thread] = {}  # by the pod's uid
        self._refused: dict[str, tuple[bool, float]] = {}  # what, and when to try again
        self._saved: dict[str, dict[int, suspend_operation.Need]] = collections.defaultdict(dict)
        self._seen: set[str] = set()  # uids of pods that this agent knows to be suspended
        # By UUID: two restores at once could find the same room.
        self._restores: dict[str, threading.Lock] = collections.defaultdict(threading.Lock)

    def changed(self, _: str) -> None:
        """Wake :meth:`run`: a pod has changed."""
        self._changed.set()

    def stop(self) -> None:
        """Let :meth:`run` end soon; operations in progress are left to the next agent."""
        self._stopped.set()
        self._changed.set()

    def run(self) -> None:
        """Reconcile after each change of a pod, and every POLL_SECONDS."""
        while not self._stopped.is_set():
            self._changed.wait(POLL_SECONDS)
            self._changed.clear()
            if not self._stopped.is_set():
                self.poll()
        with self._lock:
            left = list(self._busy.values())
        for thread in left:
            thread.join(_TIMEOUT_SECONDS)

    def poll(self) -> None:
        """Begin the suspensions and resumptions that annotations request and quotas lack."""
        granted: dict[str, list[Grant]] = {}
        for grant in list(self._node.grants().values()):
            if grant.owner is not None and not grant.over:
                granted.setdefault(grant.owner.uid, []).append(grant)
        with self._lock:
            self._refused = {
                uid: attempt for uid, attempt in self._refused.items() if uid in granted
            }
        live = {grant.id for those in granted.values() for grant in those}
        for gone in self._saved.keys() - live:
            self._saved.pop(gone, None)
        self._seen &= granted.keys()
        for uid, those in granted.items():
            found = self._known.seen(uid)
            if found is not None and uid not in self._busy:
                self._follow(uid, found["metadata"], those)

    def _follow(self, uid: str, meta: dict[str, Any], those: Sequence[Grant]) -> None:
        pod = _Pod(meta, tuple(sorted(those, key=lambda grant: grant.label)), wanted=False)
        requested, message = "", ""
        try:
            requested = self._requested(pod)
        except errors.UsageError as exc:
            self._reports.record(pod.event(events.Reason.NOT_SUSPENDED, str(exc)))
            message = str(exc)
        if "deletionTimestamp" in meta:
            requested = ""
        wanted = bool(requested) or (
            self._policy is not None and self._policy.wants_suspended(uid)
        )
        pod = dataclasses.replace(pod, wanted=wanted, requested=requested)
        if requested and self._policy is not None and self._policy.is_waiting(uid):
            self._answer(pod, "it has not started: it waits for room on its device")
            return
        marks = [self._node.store.suspension(grant.id) for grant in pod.grants]
        releases = requested == suspensions.RELEASE
        reached = (
            all(mark.suspended and not (releases and mark.kept) for mark in marks)
            if pod.wanted
            else not any(mark.gated for mark in marks)
        )
        # An earlier agent may have been killed while it resumed a pod: its quotas say suspended.
        if reached and (not pod.wanted or uid in self._seen):
            with self._lock:
                self._refused.pop(uid, None)  # a later request is tried at once
            if requested and self._policy is not None:
                self._policy.held(uid)
            self._answer(pod, message)
            return
        with self._lock:
            what, due = self._refused.get(uid, (pod.wanted, 0.0))
            if what is pod.wanted and time.monotonic() < due:
                return
            thread = threading.Thread(
                target=self._work,
                args=(uid, pod, reached),
                name=f"suspension of {uid}",
                daemon=True,
            )
            self._busy[uid] = thread
        thread.start()

    def _requested(self, pod: _Pod) -> str:
        requested = suspensions.requested(pod.annotations)
        if requested == suspensions.RELEASE and not (
            self._policy is not None and self._policy.oversubscribes(pod.grants)
        ):
            raise errors.UsageError(
                f"{names.SUSPEND_ANNOTATION} {suspensions.RELEASE!r}: no other pod could be "
                "placed in its room, since its devices are not oversubscribed (the chart's value "
                f"oversubscription.ratio); valid would be {suspensions.KEEP}"
            )
        return requested

    def _work(self, uid: str, pod: _Pod, reached: bool) -> None:
        began = time.monotonic()
        action = "suspend" if pod.wanted else "resume"
        message, result = "", "done"
        try:
            self._operate(pod)
            if not reached:
                self._tell_done(pod)
            self._seen.discard(uid)
            if pod.wanted:
                self._seen.add(uid)
        except (errors.PyVgpuError, OSError) as exc:
            if self._stopped.is_set():
                return
            message = str(exc)
            result = "lost" if isinstance(exc, suspend_operation.LostError) else "refused"
            self._tell_failed(pod, exc)
        except Exception:
            log.exception("could not %s pod %s", action, pod.meta["name"])
            message, result = "internal error, see the agent's log", "refused"
        finally:
            with self._lock:
                self._refused[uid] = pod.wanted, time.monotonic() + RETRY_SECONDS
                if result == "done":
                    del self._refused[uid]
        self._reports.ended(action, result, time.monotonic() - began)
        if self._policy is not None:
            done = MoveAction.SUSPEND if pod.wanted else MoveAction.RESUME
            refused = message if result == "refused" else ""
            self._policy.ended(uid, done, refused, by_user=bool(pod.requested))
        self._answer(pod, message)
        with self._lock:
            self._busy.pop(uid, None)
        self._changed.set()

    def _operate(self, pod: _Pod) -> None:
        driver = self._node.driver()
        if driver is None:
            raise errors.UnavailableError("the node has no driver at present")
        devices = self._node.devices()
        tenants = [container_tenant.of(self._node.store, grant, devices) for grant in pod.grants]
        with checkpoint_calls.Calls(driver) as calls:
            operation = pod_operation.PodOperation(tenants, calls, self._stopped, self._saved)
            try:
                if pod.wanted:
                    self._suspend(pod, operation)
                else:
                    with self._restoring(pod):
                        operation.resume()
            finally:
                for grant_id, moved in operation.moved.items():
                    self._reports.moved(grant_id, moved)

    @contextlib.contextmanager
    def _restoring(self, pod: _Pod) -> Iterator[None]:
        """Restore no other pod of the same devices meanwhile, which could find the same room."""
        with contextlib.ExitStack() as stack:
            for uuid in sorted({share.uuid for grant in pod.grants for share in grant.shares}):
                with self._lock:
                    restores = self._restores[uuid]
                stack.enter_context(restores)
            yield

    def _suspend(self, pod: _Pod, operation: pod_operation.PodOperation) -> None:
        try:
            operation.suspend(pod.order, lambda size: self._budget.claim(pod.uid, size))
        except (errors.PyVgpuError, OSError) as exc:
            if not self._stopped.is_set():  # else the next agent goes on with it
                self._tell_failed(pod, exc)
                operation.take_back()
            raise
        finally:
            self._budget.release(pod.uid)

    def _tell_done(self, pod: _Pod) -> None:
        if pod.wanted:
            size = quantity.format_size(self._host_bytes(pod))
            text = f"{size} of device memory moved to host memory; {_until(pod.requested)}"
            self._reports.record(pod.event(events.Reason.SUSPENDED, text))
            log.info("suspended pod %s/%s: %s", pod.meta["namespace"], pod.meta["name"], size)
        else:
            text = "the device memory is on the device again"
            self._reports.record(pod.event(events.Reason.RESUMED, text))
            log.info("resumed pod %s/%s", pod.meta["namespace"], pod.meta["name"])

    def _tell_failed(self, pod: _Pod, exc: Exception) -> None:
        reason = events.Reason.NOT_SUSPENDED if pod.wanted else events.Reason.NOT_RESUMED
        if isinstance(exc, suspend_operation.LostError):
            reason = events.Reason.LOST
        log.warning("%s of pod %s: %s", reason.value, pod.meta["name"], exc)
        self._reports.record(pod.event(reason, str(exc)))
        self._answer(pod, str(exc))

    def _host_bytes(self, pod: _Pod) -> int:
        devices = self._node.devices()
        total = 0
        for grant in pod.grants:
            tenant = container_tenant.of(self._node.store, grant, devices)
            if tenant.read().suspended:
                total += tenant.held_bytes()
        return total

    def _taken(self) -> dict[str, int]:
        """Return the bytes that suspended pods have in host memory, by uid."""
        devices = self._node.devices()
        found: dict[str, int] = collections.Counter()
        for grant in list(self._node.grants().values()):
            if (
                grant.owner is None
                or grant.over
                or not self._node.store.suspension(grant.id).suspended
            ):
                continue
            with contextlib.suppress(errors.PyVgpuError):  # its device is missing at present
                tenant = container_tenant.of(self._node.store, grant, devices)
                found[grant.owner.uid] += tenant.held_bytes()
        return found

    def _answer(self, pod: _Pod, message: str) -> None:
        """Write the pod's state into its annotation, unless it says so already."""
        try:
            wanted = self._text(pod, message)
            if pod.annotations.get(names.SUSPENSION_ANNOTATION) == wanted:
                return
            # With the uid, the patch fails for a later pod of the same name.
            body = {
                "metadata": {
                    "uid": pod.uid,
                    "annotations": {names.SUSPENSION_ANNOTATION: wanted},
                }
            }
            path = node_pods.path_of(pod.meta["namespace"], pod.meta["name"])
            self._known.api.call("PATCH", path, body=body, kind=apiserver.MERGE_PATCH)
        except errors.PyVgpuError as exc:
            log.warning("could not annotate pod %s: %s", pod.meta["name"], exc)

    def _text(self, pod: _Pod, message: str) -> str | None:
        """Return the annotation; None: there is nothing to say."""
        marks = [self._node.store.suspension(grant.id) for grant in pod.grants]
        if not message and not any(mark.suspended for mark in marks):
            return None
        suspended = all(mark.suspended for mark in marks)
        return suspensions.Answer(
            suspensions.PodState.SUSPENDED if suspended else suspensions.PodState.RUNNING,
            pod.request,
            self._host_bytes(pod) if suspended else 0,
            message,
        ).dump()


def _until(requested: str) -> str:
    """Return what becomes of a suspended pod, by the request of its user."""
    if not requested:
        return "it was idle, and others need the room; it is resumed when it wants to work"
    kept = "kept" if requested == suspensions.KEEP else "released"
    return (
        f"the reservation is {kept}; without the annotation {names.SUSPEND_ANNOTATION} the pod is "
        "resumed" + ("" if requested == suspensions.KEEP else ", when there is room")
    )
