"""Kubernetes events for pods and the node, and evictions of pods that can never start.

Kubelet retries forever, even if a start can never succeed. A pod with an owner is then evicted, so
that its owner creates another, perhaps elsewhere; a bare pod would be lost, so it only gets an
event, as does a static pod, which belongs to its node. A waiting pod gets an event and is never
evicted.
Events and evictions apply to the pod with the given uid, never to a later one of the same name.
"""

from __future__ import annotations

import dataclasses
import threading
from typing import TYPE_CHECKING, Any

from pyvgpu.deviceplugin.cluster import evictions
from pyvgpu.kube import event_recorder

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyvgpu.deviceplugin.cluster import node_pods
    from pyvgpu.deviceplugin.grants.events import GrantEvent, Reason

LIMITS = event_recorder.EventLimits(least_seconds=10.0, repeat_seconds=600.0)


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
        self._evictor = evictions.PodEvictor(
            known.api, lambda eviction: done("eviction", eviction.of)
        )
        self._recorder = event_recorder.Recorder(
            known.api,
            event_recorder.EventSource("pyvgpu", node, "pyvgpu.io/device-plugin"),
            limits,
            look=self._find,
            written=self._written,
        )

    def tell(self, event: GrantEvent) -> None:
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
                evictions.Eviction(event.uid, event.namespace, event.name, event.text, event.of)
            )
