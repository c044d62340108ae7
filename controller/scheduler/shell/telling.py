"""Write Kubernetes events that tell users why a pod waits or was evicted.

A waiting pod is refused again and again: it gets an event when the reason changes, and at most
one a minute. A thread of its own writes the events, so that answers to kube-scheduler do not wait
for them, at a limited rate; when its queue is full, events are dropped.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import queue
import time
from typing import TYPE_CHECKING

from pyvgpu.kube import apiserver, objects, rate_limit

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from pyvgpu.controller.scheduler import asks

log = logging.getLogger(__name__)

COMPONENT = "pyvgpu-scheduler"
WAITS = "VGPUWaits"  # no node has room; says what would make some
PER_SECOND = 20
MOST = 2000  # events in the queue
LEAST_SECONDS = 60.0  # between two events of one pod
MOST_BYTES = 1000  # of a message


@dataclasses.dataclass(frozen=True, slots=True)
class _Event:
    """An event to write."""

    pod: asks.Pod
    reason: str
    text: str = ""  # empty: why it waits
    names: Sequence[str] = ()  # of the nodes that refuse it


class Teller:
    """Writes events."""

    def __init__(
        self, api: apiserver.ApiServer, why: Callable[[asks.Pod, Sequence[str]], str]
    ) -> None:
        """Write none yet; *why* returns why some nodes refuse a pod, or nothing."""
        self._api = api
        self._why = why
        self._pace = rate_limit.Pace(PER_SECOND)
        self._waiting: queue.Queue[_Event | None] = queue.Queue(MOST)
        self._said: dict[str, tuple[float, str]] = {}  # by uid: when, and which text

    def waits(self, pod: asks.Pod, names: Sequence[str]) -> None:
        """Queue an event that says why *pod*, which the nodes *names* refuse, waits."""
        when, _ = self._said.get(pod.uid, (-LEAST_SECONDS, ""))
        if time.monotonic() >= when + LEAST_SECONDS:
            self._put(_Event(pod, WAITS, names=names))

    def say(self, pod: asks.Pod, reason: str, text: str) -> None:
        """Queue an event on *pod*; it is dropped if the queue is full."""
        self._put(_Event(pod, reason, text))

    def close(self) -> None:
        """Let ``run`` end."""
        while True:
            try:
                self._waiting.put_nowait(None)
            except queue.Full:
                self._waiting.get_nowait()
            else:
                return

    def run(self, stop: threading.Event) -> None:
        """Write events until *stop*, or until it is closed."""
        while not stop.is_set() and (event := self._waiting.get()) is not None:
            text = event.text or self._news(event.pod, event.names)
            if text:
                self._pace.wait()
                self._make(event.pod, event.reason, _short(text))

    def _put(self, event: _Event) -> None:
        try:
            self._waiting.put_nowait(event)
        except queue.Full:
            log.debug("queue full: dropped event %s of pod %s", event.reason, event.pod.key)

    def _news(self, pod: asks.Pod, names: Sequence[str]) -> str:
        now = time.monotonic()
        when, before = self._said.get(pod.uid, (-LEAST_SECONDS, ""))
        text = self._why(pod, names) if now >= when + LEAST_SECONDS else ""
        if not text or text == before:
            return ""
        if len(self._said) >= MOST:
            self._said = {
                uid: it for uid, it in self._said.items() if now < it[0] + 10 * LEAST_SECONDS
            }
        self._said[pod.uid] = now, text
        return text

    def _make(self, pod: asks.Pod, reason: str, text: str) -> None:
        namespace, _, name = pod.key.partition("/")
        digest = hashlib.blake2b(f"{pod.uid} {reason} {text}".encode(), digest_size=8).hexdigest()
        now = objects.now()
        body = {
            "metadata": {"name": f"{name[:200]}.{digest}", "namespace": namespace},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "namespace": namespace,
                "name": name,
                "uid": pod.uid,
            },
            "type": "Warning",
            "reason": reason,
            "message": text,
            "source": {"component": COMPONENT},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        try:
            self._api.call("POST", f"/api/v1/namespaces/{namespace}/events", body=body)
        except apiserver.ServerError as exc:
            if not exc.outdated:
                log.info("cannot write event %s of pod %s: %s", reason, pod.key, exc)


def _short(text: str) -> str:
    cut = text.encode()[:MOST_BYTES].decode(errors="ignore")
    return text if cut == text else f"{cut}..."
