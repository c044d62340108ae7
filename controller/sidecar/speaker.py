"""Says what was done, as events of the API server, behind those who do it.

A write that ends a sidecar waits for no event: where a thousand Jobs are done at once, each would
wait for those of all before it. An event has a name that follows from what it says, so that it is
made once however often it is said; what was not said when this process ended follows from the
records in the pods, and is said by the next.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pyvgpu.controller import objects, turns, work
from pyvgpu.kube import apiserver

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from pyvgpu.controller import pace
    from pyvgpu.controller.objects import Object
    from pyvgpu.controller.sidecar import actions, pods

log = logging.getLogger(__name__)

COMPONENT = "pyvgpu-sidecar-controller"
_MOST = 20_000  # that are remembered, or wait


class Once:
    """What was done before, as far as it is remembered."""

    def __init__(self) -> None:
        self._done: dict[str, None] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._done

    def first(self, name: str) -> bool:
        """Remember *name*; tell whether it was not."""
        if name in self._done:
            return False
        self._done[name] = None
        while len(self._done) > _MOST:
            self._done.pop(next(iter(self._done)), None)
        return True


class Speaker:
    """Makes events, one at a time; what the server does not take now is said again later."""

    def __init__(
        self,
        api: apiserver.ApiServer,
        speed: pace.Pace,
        gate: pace.Gate,
        may_act: Callable[[], bool],
    ) -> None:
        self._api = api
        self._speed = speed
        self._gate = gate
        self._may_act = may_act
        self._said = Once()
        self._queue = work.Queue()
        self._waiting: dict[str, tuple[str, Object]] = {}  # by name: where, and what
        self._turns = turns.Turns("event", self._queue, gate, may_act)

    def say(self, pod: pods.Pod, event: actions.Event) -> None:
        """Have *event* made, unless it was or soon will be."""
        if event.name in self._said or event.name in self._waiting or len(self) >= _MOST:
            return
        place = f"/api/v1/namespaces/{pod.namespace}/events"
        self._waiting[event.name] = (place, _document(pod, event))
        self._queue.add(event.name)

    def __len__(self) -> int:
        """Return how many events wait."""
        return len(self._waiting)

    def run(self, stop: threading.Event) -> None:
        """Make events until *stop*."""
        for name in self._turns.take(stop):
            self._make(name)

    def close(self) -> None:
        """Let ``run`` end."""
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
