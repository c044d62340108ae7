"""What is told of pods in the cluster: events in words that their users understand.

Kubelet tries for ever what can never be. A pod that something owns is then evicted, so that its
owner makes another, perhaps elsewhere; a bare one would be lost by that, and only gets an event,
as does a static one, which is its node's. A pod that waits gets an event, and is never evicted.
Whatever is said is said of the pod with that uid, and of none that has its name by now.

Nobody is flooded: of one pod and reason only the newest is said, not more often than every
MIN_SECONDS, and the same again only after REPEAT_SECONDS.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import logging
import threading
import time
from typing import TYPE_CHECKING, Any

from pyvgpu.kube import apiserver

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyvgpu.deviceplugin import pods

log = logging.getLogger(__name__)

AGAIN_SECONDS = 10.0  # until what could not be done is tried again
MIN_SECONDS = 10.0  # from one event of a pod and reason to the next
REPEAT_SECONDS = 600.0  # until the same is worth saying again
SPACING_SECONDS = 0.05  # from any event to the next: 20 a second

_FOLDER = "/api/v1/namespaces/"
_MOST = 1024  # pods and reasons that are remembered
_PASSING = (401, 408, apiserver.CONFLICT, 429)  # a token that was exchanged, too slow, too many
_LONGEST = 1000  # letters; the API server takes 1024


class Reason(enum.StrEnum):
    """What an event is about, as `kubectl get events` shows it."""

    REFUSED = "VGPURefused"  # a container can never start here
    WAITS = "VGPUWaits"  # it cannot start yet, such as where the devices are full for now
    RESIZED = "VGPUResized"  # what a container is held to has changed
    NOT_RESIZED = "VGPUNotResized"  # what its pod's annotations ask for cannot be
    DEVICE_SICK = "VGPUDeviceSick"  # a device that it uses does not work
    DEVICE_WELL = "VGPUDeviceWell"  # it does again
    BYPASSED = "VGPUBypassed"  # it uses a device past its quota
    TAMPERED = "VGPUTampered"  # its ledger was changed by something other than the shim
    ENDED = "VGPUProcessEnded"  # so a process of it was ended
    NOT_OFFERED = "VGPUNotOffered"  # of a node: another device plugin gives out its GPUs
    OFFERED = "VGPUOffered"  # none does any more


_NORMAL = frozenset({Reason.RESIZED, Reason.DEVICE_WELL, Reason.OFFERED})
_OF_NODES = "default"  # the namespace of events about objects that have none


@dataclasses.dataclass(frozen=True, slots=True)
class Event:
    """Something that the user of a pod, or the administrator of the node, should know."""

    uid: str  # the pod's, or the node's
    namespace: str  # empty, as the name: not known
    name: str
    text: str
    reason: Reason = Reason.REFUSED
    evict: bool = False  # the pod, if something owns it
    of_node: bool = False  # else of a pod

    @property
    def kind(self) -> str:
        """The type that it has in the cluster."""
        return "Normal" if self.reason in _NORMAL else "Warning"

    @property
    def key(self) -> tuple[str, Reason]:
        """Of which the newest counts."""
        return self.uid, self.reason


class Teller:
    """Tells of events, one after the other, from whichever thread runs it."""

    def __init__(
        self,
        known: pods.Pods,
        node: str,
        done: Callable[[str, Event], None] = lambda *_: None,
    ) -> None:
        self._known = known
        self._node = node
        self._done = done  # told what was written of it: "event" or "eviction"
        self._waiting: dict[tuple[str, Reason], Event] = {}
        self._said: dict[tuple[str, Reason], tuple[str, float]] = {}  # what, and when
        self._changed = threading.Condition()
        self._stopped = False
        self._acting: Event | None = None  # the one that is being posted
        self._written: dict[tuple[str, Reason], Event] = {}  # whose evictions are still to be done
        self._later: dict[tuple[str, Reason], float] = {}  # before when one is not tried again

    def tell(self, event: Event) -> None:
        """Let it be known, once: who is asked again and again says the same again and again."""
        with self._changed:
            text, at = self._said.get(event.key, ("", 0.0))
            if text == event.text and time.monotonic() - at < REPEAT_SECONDS:
                self._waiting.pop(event.key, None)  # it was another for a moment
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
        """Tell until :meth:`stop`."""
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
                # A budget that protects one pod (429) holds up no other.
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
        """Wait for an event that is due, and note it as said; None at the end."""
        with self._changed:
            while not self._stopped:
                now = time.monotonic()
                dues = {key: self._due(key, now) for key in self._waiting}
                key = min(dues, key=lambda it: dues[it], default=None)
                if key is not None and dues[key] <= now:
                    event = self._acting = self._waiting.pop(key)
                    self._said.pop(key, None)  # so that the oldest are forgotten first
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
        """Remember nothing of an event that is done with."""
        with self._changed:
            self._written.pop(event.key, None)
            self._later.pop(event.key, None)

    def _put_back(self, event: Event, seconds: float) -> None:
        with self._changed:
            self._said.pop(event.key, None)
            if event is not self._acting:
                return  # it was withdrawn meanwhile
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
        if event != self._written.get(
            event.key
        ):  # else only what comes after it could not be done
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
            self._known.api.call("POST", path, body=body, patience=0.0)  # others wait for it
        except apiserver.ServerError as exc:
            # It is not there any more, or was said.
            if exc.status not in (apiserver.NOT_FOUND, apiserver.CONFLICT):
                raise


def _is_final(exc: apiserver.ServerError) -> bool:
    """Tell whether the API server would refuse the same again, however often it is asked."""
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
