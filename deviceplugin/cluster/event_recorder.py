"""Kubernetes events for pods and the node, and evictions of pods that can never start.

Kubelet retries forever, even if a start can never succeed. A pod with an owner is then evicted, so
that its owner creates another, perhaps elsewhere; a bare pod would be lost, so it only gets an
event, as does a static pod, which belongs to its node. A waiting pod gets an event and is never
evicted.
Events and evictions apply to the pod with the given uid, never to a later one of the same name.

Rate limits: of each pod and reason only the newest event is written, not more often than every
MIN_SECONDS, and the same text again only after REPEAT_SECONDS.
"""

from __future__ import annotations

import datetime
import logging
import threading
import time
from typing import TYPE_CHECKING, Any

from pyvgpu.kube import apiserver

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyvgpu.deviceplugin.cluster import pods
    from pyvgpu.deviceplugin.grants.events import Event, Reason

log = logging.getLogger(__name__)

AGAIN_SECONDS = 10.0  # before a failed call is retried
MIN_SECONDS = 10.0  # between two events of the same pod and reason
REPEAT_SECONDS = 600.0  # before the same text is written again
SPACING_SECONDS = 0.05  # between any two events: 20 a second

_FOLDER = "/api/v1/namespaces/"
_MOST = 1024  # pods and reasons that are remembered
_PASSING = (401, 408, apiserver.CONFLICT, 429)  # token rotated, timeout, conflict, rate limit
_LONGEST = 1000  # characters; the API server takes 1024
_OF_NODES = "default"  # the namespace of events about objects that have none


class EventRecorder:
    """Writes events, one after the other, on the thread of :meth:`run`."""

    def __init__(
        self,
        known: pods.Pods,
        node: str,
        done: Callable[[str, Event], None] = lambda *_: None,
    ) -> None:
        self._known = known
        self._node = node
        self._done = done  # called with "event" or "eviction" for each that was written
        self._waiting: dict[tuple[str, Reason], Event] = {}
        self._said: dict[tuple[str, Reason], tuple[str, float]] = {}  # text and time of the last
        self._changed = threading.Condition()
        self._stopped = False
        self._acting: Event | None = None  # the one that is being posted
        self._written: dict[tuple[str, Reason], Event] = {}  # whose evictions are still pending
        self._later: dict[tuple[str, Reason], float] = {}  # no retry before this time

    def tell(self, event: Event) -> None:
        """Queue an event, unless the same was just written: retried calls repeat their events."""
        with self._changed:
            text, at = self._said.get(event.key, ("", 0.0))
            if text == event.text and time.monotonic() - at < REPEAT_SECONDS:
                self._waiting.pop(event.key, None)  # drop a different text from in between
                return
            self._waiting[event.key] = event
            self._changed.notify_all()

    def withdraw(self, uid: str, reason: Reason) -> None:
        """Drop an event that was not posted yet."""
        with self._changed:
            self._waiting.pop((uid, reason), None)
            self._written.pop((uid, reason), None)
            self._later.pop((uid, reason), None)
            if self._acting is not None and self._acting.key == (uid, reason):
                self._acting = None

    def run(self) -> None:
        """Write events until :meth:`stop`."""
        while (event := self._next()) is not None:
            try:
                self._act(event)
            except apiserver.ServerError as exc:
                of = f"node {event.name}" if event.of_node else f"pod {event.uid}"
                if _is_final(exc):
                    log.warning("gave up %s of %s: %s", event.reason, of, exc)
                    self._forget(event)
                    self._pause(SPACING_SECONDS)
                    continue
                log.warning("could not write %s of %s yet: %s", event.reason, of, exc)
                self._put_back(event, exc.retry_after or AGAIN_SECONDS)
                # A disruption budget that protects one pod (429) must not delay others.
                is_of_one = exc.status == apiserver.TOO_MANY
                self._pause(SPACING_SECONDS if is_of_one else AGAIN_SECONDS)
            else:
                self._forget(event)
                self._pause(SPACING_SECONDS)

    def stop(self) -> None:
        """Let :meth:`run` end."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _next(self) -> Event | None:
        """Wait for an event that is due, and record it as written; None at the end."""
        with self._changed:
            while not self._stopped:
                now = time.monotonic()
                dues = {key: self._due(key, now) for key in self._waiting}
                key = min(dues, key=lambda it: dues[it], default=None)
                if key is not None and dues[key] <= now:
                    event = self._acting = self._waiting.pop(key)
                    self._said.pop(key, None)  # re-inserted last: the oldest are dropped first
                    self._said[key] = (event.text, now)
                    while len(self._said) > _MOST:
                        del self._said[next(iter(self._said))]
                    return event
                self._changed.wait(None if key is None else dues[key] - now)
            return None

    def _due(self, key: tuple[str, Reason], now: float) -> float:
        _, at = self._said.get(key, ("", now - MIN_SECONDS))
        return max(at + MIN_SECONDS, self._later.get(key, 0.0))

    def _forget(self, event: Event) -> None:
        """Drop the state of an event that is finished."""
        with self._changed:
            self._written.pop(event.key, None)
            self._later.pop(event.key, None)

    def _put_back(self, event: Event, seconds: float) -> None:
        with self._changed:
            self._said.pop(event.key, None)
            if event is not self._acting:
                return  # withdrawn meanwhile
            self._later[event.key] = time.monotonic() + seconds
            self._waiting.setdefault(event.key, event)

    def _pause(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._stopped, seconds)

    def _act(self, event: Event) -> None:
        if event.of_node:
            node = {"kind": "Node", "name": event.name, "uid": event.uid}
            self._call(f"{_FOLDER}{_OF_NODES}/events", _document(node, event, self._node))
            self._done("event", event)
            return
        pod = self._known.find(event.uid, event.namespace, event.name)
        if pod is None:
            return
        meta = pod["metadata"]
        folder = f"{_FOLDER}{meta['namespace']}"
        if event != self._written.get(event.key):  # else only its eviction failed
            of = {"kind": "Pod", **{it: meta[it] for it in ("namespace", "name", "uid")}}
            self._call(f"{folder}/events", _document(of, event, self._node))
            self._written[event.key] = event
            self._done("event", event)
        if event.evict and meta.get("ownerReferences") and meta["uid"] == event.uid:
            gone = {"preconditions": {"uid": event.uid}}
            body = {
                "apiVersion": "policy/v1",
                "kind": "Eviction",
                "metadata": {"name": meta["name"], "namespace": meta["namespace"]},
                "deleteOptions": gone,
            }
            self._call(f"{folder}/pods/{meta['name']}/eviction", body)
            self._done("eviction", event)
            log.info("evicted %s/%s: %s", meta["namespace"], meta["name"], event.text)

    def _call(self, path: str, body: dict[str, Any]) -> None:
        try:
            self._known.api.call("POST", path, body=body, patience=0.0)  # others are queued
        except apiserver.ServerError as exc:
            # The pod is gone, or the event exists already.
            if exc.status not in (apiserver.NOT_FOUND, apiserver.CONFLICT):
                raise


def _is_final(exc: apiserver.ServerError) -> bool:
    """Tell whether the API server would refuse every retry as well."""
    return 400 <= exc.status < 500 and exc.status not in _PASSING


def _document(of: Mapping[str, str], event: Event, node: str) -> dict[str, Any]:
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "metadata": {
            "generateName": f"{of['name']}.",
            "namespace": of.get("namespace", _OF_NODES),
        },
        "involvedObject": {"apiVersion": "v1", **of},
        "type": event.kind,
        "reason": event.reason.value,
        "message": event.text[:_LONGEST],
        "source": {"component": "pyvgpu", "host": node},
        "reportingComponent": "pyvgpu.io/device-plugin",
        "reportingInstance": node,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
