"""Event recorder: creates Kubernetes Events asynchronously, each once.

Writes that end sidecars do not wait for events: if a thousand Jobs finish at once, each would wait
for the events of all before it. An event's name is a hash of its content, so creating it is
idempotent. Events that are lost when this process ends are recreated by the next from the records
in the pods.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pyvgpu.kube import apiserver, objects, work_loop, work_queue

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from pyvgpu.controller.sidecar import actions, pods
    from pyvgpu.kube import rate_limit
    from pyvgpu.kube.objects import Object

log = logging.getLogger(__name__)

COMPONENT = "pyvgpu-sidecar-controller"
_MOST = 20_000  # names remembered, and events queued


class Once:
    """A bounded set of names that were handled."""

    def __init__(self) -> None:
        self._done: dict[str, None] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._done

    def first(self, name: str) -> bool:
        """Add *name*; return whether it was new."""
        if name in self._done:
            return False
        self._done[name] = None
        while len(self._done) > _MOST:
            self._done.pop(next(iter(self._done)), None)
        return True


class Speaker:
    """Creates events, one at a time; failed ones are retried with backoff."""

    def __init__(
        self,
        api: apiserver.ApiServer,
        speed: rate_limit.Pace,
        gate: rate_limit.Gate,
        may_act: Callable[[], bool],
    ) -> None:
        self._api = api
        self._speed = speed
        self._gate = gate
        self._may_act = may_act
        self._said = Once()
        self._queue = work_queue.Queue()
        self._waiting: dict[str, tuple[str, Object]] = {}  # by name: path and document
        self._turns = work_loop.Turns("event", self._queue, gate, may_act)

    def say(self, pod: pods.Pod, event: actions.Event) -> None:
        """Queue *event*, unless it was created or is queued already, or the queue is full."""
        if event.name in self._said or event.name in self._waiting or len(self) >= _MOST:
            return
        place = f"/api/v1/namespaces/{pod.namespace}/events"
        self._waiting[event.name] = (place, _document(pod, event))
        self._queue.add(event.name)

    def __len__(self) -> int:
        """Return how many events are queued."""
        return len(self._waiting)

    def run(self, stop: threading.Event) -> None:
        """Create events until *stop*."""
        for name in self._turns.take(stop):
            self._make(name)

    def close(self) -> None:
        """Make ``run`` return."""
        self._queue.close()

    def _make(self, name: str) -> None:
        self._speed.wait()
        if not self._may_act():
            self._queue.add(name)
            return
        place, document = self._waiting[name]
        try:
            self._api.call("POST", place, body=document)
        except apiserver.ServerError as exc:
            if not exc.outdated:
                self._turns.failed(name, exc)
                return
        self._gate.passed()
        self._said.first(name)
        self._turns.passed(name)
        del self._waiting[name]


def _document(pod: pods.Pod, event: actions.Event) -> Object:
    now = objects.now()
    return {
        "metadata": {"name": event.name, "namespace": pod.namespace},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": pod.namespace,
            "name": pod.name,
            "uid": pod.uid,
        },
        "type": "Warning" if event.warning else "Normal",
        "reason": event.reason,
        "message": event.message[:1024],
        "source": {"component": COMPONENT},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
