"""Kubernetes events for pods and the node, and evictions of pods that can never start.

Kubelet retries forever, even if a start can never succeed. A pod with an owner is then evicted, so
that its owner creates another, perhaps elsewhere; a bare pod would be lost, so it only gets an
event, as does a static pod, which belongs to its node. A waiting pod gets an event and is never
evicted.
Events and evictions apply to the pod with the given uid, never to a later one of the same name.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from typing import TYPE_CHECKING, Any

from pyvgpu.kube import apiserver, backoff, event_recorder, rate_limit, work_loop, work_queue

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyvgpu.deviceplugin.cluster import node_pods
    from pyvgpu.deviceplugin.grants.events import GrantEvent, Reason

log = logging.getLogger(__name__)

LIMITS = event_recorder.EventLimits(least_seconds=10.0, repeat_seconds=600.0)
DELETE_AGAIN_SECONDS = 10.0  # before a deletion is retried that the API server defers


@dataclasses.dataclass(frozen=True, slots=True)
class Eviction:
    """A pod to delete; never a later one of the same name."""

    uid: str
    namespace: str
    name: str
    why: str
    of: GrantEvent  # that announced it


class PodEvictor:
    """Deletes pods, one after the other, on the thread of :meth:`run`.

    By a deletion, not the eviction API: an admission policy can check the node of a pod that is
    deleted, but an Eviction does not name it, so the agent would need the permission to evict
    every pod of the cluster. Disruption budgets are not asked; a pod that cannot start is not
    available anyway.
    """

    def __init__(self, api: apiserver.ApiServer, done: Callable[[Eviction], object]) -> None:
        self._api = api
        self._done = done
        self._waiting: dict[str, Eviction] = {}  # by uid
        self._gate = rate_limit.Gate()
        self._queue = work_queue.Queue()
        self._loop = work_loop.WorkLoop("eviction of pod", self._queue, self._gate, lambda: True)

    def add(self, eviction: Eviction) -> None:
        """Queue an eviction."""
        self._waiting[eviction.uid] = eviction
        self._queue.add(eviction.uid)

    def withdraw(self, uid: str, reason: Reason) -> None:
        """Drop a pod's eviction that was announced for *reason* and not done yet."""
        eviction = self._waiting.get(uid)
        if eviction is not None and eviction.of.reason is reason:
            self._waiting.pop(uid, None)

    def run(self, stop: threading.Event) -> None:
        """Evict until *stop*, or until :meth:`close`."""
        for uid in self._loop.keys(stop):
            if (eviction := self._waiting.get(uid)) is not None:
                self._evict(eviction)

    def close(self) -> None:
        """Let :meth:`run` end."""
        self._queue.close()

    def _evict(self, eviction: Eviction) -> None:
        path = f"/api/v1/namespaces/{eviction.namespace}/pods/{eviction.name}"
        body = {"preconditions": {"uid": eviction.uid}}
        label = f"{eviction.namespace}/{eviction.name}"
        try:
            self._api.call("DELETE", path, body=body, retry_seconds=0.0)
        except apiserver.ServerError as exc:
            if exc.status == apiserver.TOO_MANY:
                log.warning("cannot delete %s yet: %s", label, exc)
                self._queue.add(eviction.uid, exc.retry_after or DELETE_AGAIN_SECONDS)
                return
            if exc.status not in (apiserver.NOT_FOUND, apiserver.CONFLICT):
                if not backoff.is_final(exc.status):
                    self._loop.failed(eviction.uid, exc)
                    return
                log.warning("gave up the deletion of %s: %s", label, exc)
        else:
            log.info("deleted %s: %s", label, eviction.why)
            self._done(eviction)
        self._gate.passed()
        self._loop.succeeded(eviction.uid)
        self._waiting.pop(eviction.uid, None)


class PodEvents:
    """Writes events and evicts pods, each on a thread of :meth:`runs`.

    *done* is called with "event" or "eviction" for each that was written.
    """

    def __init__(
        self,
        known: node_pods.Pods,
        node: str,
        done: Callable[[str, GrantEvent], None] = lambda *_: None,
        limits: event_recorder.EventLimits = LIMITS,
    ) -> None:
        self._known = known
        self._done = done
        self._stop = threading.Event()
        self._evictor = PodEvictor(known.api, lambda eviction: done("eviction", eviction.of))
        self._recorder = event_recorder.Recorder(
            known.api,
            event_recorder.EventSource("pyvgpu", node, "pyvgpu.io/device-plugin"),
            limits,
            complete=self._find,
            written=self._written,
        )

    def record(self, event: GrantEvent) -> None:
        """Queue an event, unless the same was just written: retried calls repeat their events."""
        self._recorder.record(
            event_recorder.Event(
                event.uid,
                event.namespace,
                event.name,
                event.reason.value,
                event.text,
                warning=event.kind == "Warning",
                kind="Node" if event.of_node else "Pod",
                of=event,
            )
        )

    def withdraw(self, uid: str, reason: Reason) -> None:
        """Drop an event that was not written yet, and its eviction."""
        self._recorder.withdraw(uid, reason.value)
        self._evictor.withdraw(uid, reason)

    @property
    def runs(self) -> dict[str, Callable[[], None]]:
        """The functions to run, each on a thread of its own, by name."""
        return {
            "events": lambda: self._recorder.run(self._stop),
            "evictions": lambda: self._evictor.run(self._stop),
        }

    def stop(self) -> None:
        """Let them end."""
        self._stop.set()
        self._recorder.close()
        self._evictor.close()

    def _find(self, event: event_recorder.Event) -> event_recorder.Event | None:
        """Return *event* about the pod as the API server has it; None: the pod is gone."""
        if event.kind == "Node":
            return event
        pod = self._known.find(event.uid, event.namespace, event.name)
        if pod is None:
            return None
        meta: dict[str, Any] = pod["metadata"]
        owned = bool(meta.get("ownerReferences")) and meta["uid"] == event.uid
        return dataclasses.replace(  # a static pod's events are about its mirror
            event,
            uid=meta["uid"],
            namespace=meta["namespace"],
            name=meta["name"],
            of=event.of if owned else dataclasses.replace(event.of, evict=False),
        )

    def _written(self, event: event_recorder.Event) -> None:
        self._done("event", event.of)
        if event.of.evict:
            self._evictor.add(
                Eviction(event.uid, event.namespace, event.name, event.text, event.of)
            )
