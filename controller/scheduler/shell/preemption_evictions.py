"""Evict pods of lower priority where only that frees a device for a waiting pod.

kube-scheduler evicts no pod if a node has enough in total, although no single device has. The
module ``victims`` chooses the pods; they are evicted here through the Eviction API, so that the
API server enforces PodDisruptionBudgets. The freed share is reserved for the waiting pod for a
limited time.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.controller.scheduler.shell import binding
from pyvgpu.kube import apiserver, work_queue

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from pyvgpu.controller.scheduler import extender, pod_request
    from pyvgpu.controller.scheduler.shell import disruption_budgets, scheduling_events

log = logging.getLogger(__name__)

AGAIN_SECONDS = 5.0  # until a pod that still waits is considered again
KNOWN_SECONDS = 2.0  # until the watch has delivered a pod that kube-scheduler asks about
_POLL_SECONDS = 0.05
TRIES = 5  # while some victim must not be evicted
_OVER = frozenset({404, 409})  # it is gone, or another pod has its name

REASON = "VGPUPreempted"  # evicted for a pod of higher priority


class Preemptor:
    """Makes room for waiting pods, one after the other."""

    def __init__(
        self,
        api: apiserver.ApiServer,
        decider: extender.Decider,
        reader: disruption_budgets.Reader,
        may_act: Callable[[], bool],
        recorder: scheduling_events.SchedulingEvents,
    ) -> None:
        self._api = api
        self._decider = decider
        self._reader = reader
        self._may_act = may_act
        self._recorder = recorder
        self._queue = work_queue.Queue()
        self._asked: dict[str, tuple[pod_request.PodRequest, Sequence[str]]] = {}  # by uid
        self._since: dict[str, float] = {}  # by uid, when it was last considered
        self.evicted = 0

    def consider(self, pod: pod_request.PodRequest, names: Sequence[str]) -> None:
        """Queue *pod*: evictions on one of the nodes *names* may make room for it."""
        if not pod.preempts or time.monotonic() < self._since.get(pod.uid, 0.0) + AGAIN_SECONDS:
            return
        self._asked[pod.uid] = pod, names
        self._queue.add(pod.uid)

    def end(self, pod: pod_request.PodRequest, why: str) -> None:
        """Evict *pod*, without retries, and write an event that says *why*."""
        if self._may_act() and self._evict(pod):
            self.evicted += 1
            self._recorder.say(pod, REASON, why)

    def run(self, stop: threading.Event) -> None:
        """Make room until *stop*, or until it is closed."""
        while not stop.is_set() and (uid := self._queue.take()) is not None:
            asked = self._asked.pop(uid, None)  # one turn may have served two requests
            try:
                if asked is not None:
                    self._consider(*asked)
            finally:
                self._queue.done(uid)

    def close(self) -> None:
        """Let ``run`` end."""
        self._queue.close()

    def _consider(self, pod: pod_request.PodRequest, names: Sequence[str]) -> None:
        now = time.monotonic()
        since = {uid: at for uid, at in self._since.items() if now < at + AGAIN_SECONDS}
        self._since = {**since, pod.uid: now}
        try:
            self._make_room(pod, names)
        except errors.PyVgpuError as exc:
            log.warning("cannot make room for pod %s: %s", pod.key, exc)

    def _make_room(self, asked: pod_request.PodRequest, names: Sequence[str]) -> None:
        pod = self._known(asked)
        if pod is None:
            log.warning("cannot make room for pod %s: no such pod in the API server", asked.key)
            return
        for _ in range(TRIES):
            permitted = self._reader.read()  # may take long
            plan = self._decider.preempt(pod, names, permitted, time.monotonic())
            if plan is None or not plan.victims:
                return
            # Evict all of them or none.
            if all(self._evict(candidate, dry=True) for candidate in plan.victims):
                break
            self._decider.cache.release(pod.uid)
        else:
            return
        keys = ", ".join(evicted.key for evicted in plan.victims)
        log.info("making room for pod %s on node %s: evicting %s", pod.key, plan.node, keys)
        for victim in plan.victims:
            self.end(
                victim, f"it was evicted to make room for pod {pod.key} of priority {pod.priority}"
            )

    def _known(self, pod: pod_request.PodRequest) -> pod_request.PodRequest | None:
        """Return a pod as the watch has it, not as kube-scheduler sent it; None if unknown."""
        end = time.monotonic() + KNOWN_SECONDS
        while True:
            known = self._decider.cache.seen(pod)
            if known is not None:
                return known
            if time.monotonic() > end:
                return None
            time.sleep(_POLL_SECONDS)

    def _evict(self, victim: pod_request.PodRequest, *, dry: bool = False) -> bool:
        """Evict a pod; return whether that is allowed, or would be in a *dry* run."""
        namespace, _, name = victim.key.partition("/")
        options: dict[str, object] = {"preconditions": {"uid": victim.uid}}
        if dry:
            options["dryRun"] = ["All"]
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"namespace": namespace, "name": name},
            "deleteOptions": options,
        }
        try:
            self._api.call("POST", f"{binding.path_of(victim.key)}/eviction", body=body)
        except apiserver.ServerError as exc:
            if exc.status in _OVER:
                return True
            log.info("cannot evict pod %s: %s", victim.key, exc)
            self._reader.protect(victim.uid)
            return False
        return True
