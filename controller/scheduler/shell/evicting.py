"""Ends pods of lower priority where only so a device becomes free for one that waits.

kube-scheduler ends nobody where a node has enough in sum and no single device has; see
``victims``, which says whom. Here they are asked to go, through the Eviction API, so that
PodDisruptionBudgets are kept by whoever counts them. What they leave is claimed for the pod that
waits, for a time.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.controller import work
from pyvgpu.controller.scheduler.shell import binding
from pyvgpu.kube import apiserver

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from pyvgpu.controller.scheduler import asks, deciding
    from pyvgpu.controller.scheduler.shell import budgets, telling

log = logging.getLogger(__name__)

AGAIN_SECONDS = 5.0  # until it is looked once more for a pod that waits still
KNOWN_SECONDS = 2.0  # until a watch has told of a pod that kube-scheduler has asked about
_LOOK_SECONDS = 0.05
TRIES = 5  # while somebody may not go
_OVER = frozenset({404, 409})  # it is gone, or another has its name

REASON = "VGPUPreempted"  # it was told to go, for a pod of higher priority


class Evictor:
    """Makes room for pods that wait, for one after the other."""

    def __init__(
        self,
        api: apiserver.ApiServer,
        decider: deciding.Decider,
        reader: budgets.Reader,
        may_act: Callable[[], bool],
        teller: telling.Teller,
    ) -> None:
        self._api = api
        self._decider = decider
        self._reader = reader
        self._may_act = may_act
        self._teller = teller
        self._queue = work.Queue()
        self._asked: dict[str, tuple[asks.Pod, Sequence[str]]] = {}  # by uid
        self._since: dict[str, float] = {}  # by uid, when it was last considered
        self.evicted = 0

    def consider(self, pod: asks.Pod, names: Sequence[str]) -> None:
        """Look whether there would be room for *pod* on one of the nodes called *names*."""
        if not pod.preempts or time.monotonic() < self._since.get(pod.uid, 0.0) + AGAIN_SECONDS:
            return
        self._asked[pod.uid] = pod, names
        self._queue.add(pod.uid)

    def end(self, pod: asks.Pod, why: str) -> None:
        """Let *pod* go, once."""
        if self._may_act() and self._evict(pod):
            self.evicted += 1
            self._teller.say(pod, REASON, why)

    def run(self, stop: threading.Event) -> None:
        """Make room until *stop*, and until it is closed."""
        while not stop.is_set() and (uid := self._queue.take()) is not None:
            asked = self._asked.pop(uid, None)  # asked about twice, it may have been both at once
            try:
                if asked is not None:
                    self._consider(*asked)
            finally:
                self._queue.done(uid)

    def close(self) -> None:
        """Let ``run`` end."""
        self._queue.close()

    def _consider(self, pod: asks.Pod, names: Sequence[str]) -> None:
        now = time.monotonic()
        since = {it: at for it, at in self._since.items() if now < at + AGAIN_SECONDS}
        self._since = {**since, pod.uid: now}
        try:
            self._make_room(pod, names)
        except errors.PyVgpuError as exc:
            log.warning("did not make room for pod %s: %s", pod.key, exc)

    def _make_room(self, asked: asks.Pod, names: Sequence[str]) -> None:
        pod = self._known(asked)
        if pod is None:
            log.warning("makes no room for pod %s: the API server has none such", asked.key)
            return
        for _ in range(TRIES):
            permitted = self._reader.read()  # which may take long
            plan = self._decider.preempt(pod, names, permitted, time.monotonic())
            if plan is None or not plan.victims:
                return
            # All of them may go, or nobody is asked to.
            if all(self._evict(it, dry=True) for it in plan.victims):
                break
            self._decider.book.release(pod.uid)
        else:
            return
        keys = ", ".join(it.key for it in plan.victims)
        log.info("makes room for pod %s on node %s: %s", pod.key, plan.node, keys)
        for victim in plan.victims:
            self.end(victim, f"it makes room for pod {pod.key} of priority {pod.priority}")

    def _known(self, pod: asks.Pod) -> asks.Pod | None:
        """Return a pod as the watch has it, whatever the question said of it."""
        end = time.monotonic() + KNOWN_SECONDS
        while True:
            known = self._decider.book.pods.get(pod.key)
            if known is not None and known.uid == pod.uid:
                return known
            if time.monotonic() > end:
                return None
            time.sleep(_LOOK_SECONDS)

    def _evict(self, victim: asks.Pod, *, dry: bool = False) -> bool:
        """Ask a pod to go; tell whether it does, or would."""
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
            log.info("pod %s does not go: %s", victim.key, exc)
            self._reader.protect(victim.uid)
            return False
        return True
