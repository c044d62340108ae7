"""One term of leadership: all state and threads of the scheduler while this process leads.

Each term starts with an empty cache. So none trusts what an earlier one believed, and one that
begins after a failure knows the API server's state alone.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from pyvgpu import names
from pyvgpu.controller.scheduler import cache, extender, sampling
from pyvgpu.controller.scheduler.shell import (
    binding,
    cache_check,
    cache_watch,
    disruption_budgets,
    preemption_evictions,
    scheduling_events,
    verbs,
)
from pyvgpu.kube import apiserver, process_tuning, threads

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from pyvgpu.controller.scheduler import pod_request
    from pyvgpu.controller.scheduler.shell import leader_label
    from pyvgpu.controller.scheduler.shell.scheduler_metrics import SchedulerMeter

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0  # between checks of deadlines
SYNC_SECONDS = 0.1  # between checks whether everything is listed
WOKEN_ANNOTATION = f"{names.DOMAIN}/woken"
LEAST_REQUEUE_SECONDS = 1.0  # between two writes
REQUEUE_AGAIN_SECONDS = 2.0  # until a failed write is tried again


class PodRequeuer:
    """Requeues pending pods in kube-scheduler when devices have been freed.

    kube-scheduler does so itself when a pod ends, but often a moment before our watch sees that
    end; it never learns of reservations that were dropped. After a refusal by an extender it
    retries a pod upon any change of any bound pod: so one write to our own pod requeues all,
    however many wait, and needs no permission to write to theirs. Nothing is written while no
    waiting pod would fit.
    """

    def __init__(
        self,
        own: leader_label.OwnPod,
        freed: Callable[[], Collection[object]],
        counted: Callable[[], None],
    ) -> None:
        """Write nothing yet.

        *freed* returns waiting pods that may fit now, each once; *counted* is called per write.
        """
        self._own = own
        self._freed = freed
        self._counted = counted
        self._due = threading.Event()

    def poll(self) -> None:
        """Check soon whether a waiting pod fits: devices were freed."""
        self._due.set()

    def run(self, stop: threading.Event) -> None:
        """Requeue pods until *stop*; call :meth:`poll` after setting it, which ends the wait."""
        waiting: Collection[object] = ()
        while not stop.is_set():
            self._due.wait(REQUEUE_AGAIN_SECONDS if waiting else None)
            self._due.clear()
            if stop.is_set():
                return
            waiting = self._freed() or waiting
            if waiting and self._requeue(len(waiting)):
                waiting = ()
                stop.wait(LEAST_REQUEUE_SECONDS)

    def _requeue(self, count: int) -> bool:
        log.debug("requeued waiting pods: %d may fit", count)
        try:
            self._own.annotate({WOKEN_ANNOTATION: str(time.time_ns())})
        except apiserver.ServerError as exc:
            log.warning("cannot requeue waiting pods: %s", exc)
            return False
        self._counted()
        return True


class Term:
    """One term of leadership."""

    def __init__(
        self,
        api: apiserver.ApiServer,
        settings: cache.SchedulerSettings,
        keys: Callable[[], Sequence[bytes]],
        own: leader_label.OwnPod,
        meter: SchedulerMeter,
        leads: Callable[[float], bool],
    ) -> None:
        """Know nothing yet; *leads* tells whether this process leads for so many seconds more."""

        def may_act() -> bool:
            return leads(0.0)

        self._own = own
        self._may_act = may_act
        self._meter = meter
        self.cache = cache.Cache(settings)
        self.decider = extender.Decider(self.cache)
        self._requeuer = PodRequeuer(own, self._freed, meter.wakes.inc)
        self._watch = cache_watch.ClusterWatch(
            api, self.cache, keys, self._requeuer.poll, meter, self._nominated
        )
        self._binder = binding.Binder(
            api,
            self.cache,
            keys,
            lambda: leads(2 * binding.CONNECT_SECONDS),
            self._watch.is_current,
        )
        self._budgets = disruption_budgets.Reader(api, self._watch.budgets, self.cache)
        self._recorder = scheduling_events.SchedulingEvents(api, self._why)
        self._evictor = preemption_evictions.Preemptor(
            api, self.decider, self._budgets, may_act, self._recorder
        )
        self._drift = cache_check.Drift(api, self.cache, keys, self._watch.relist)
        self.verbs = verbs.Verbs(
            self.decider,
            self._binder,
            keys,
            self._budgets.read,
            [self._recorder.waits, self._evictor.consider],
        ).all
        self._threads = threads.Threads()
        self._begun = threading.Event()

    @property
    def ready(self) -> bool:
        """Whether it may answer: everything is listed, and this process holds the lease."""
        return self._begun.is_set() and self._may_act()

    @property
    def alive(self) -> str:
        """Return what has failed; empty if nothing has."""
        return self._threads.alive()

    @property
    def drift(self) -> int:
        """Return the number of differences that the last comparison with the API server found."""
        return self._drift.count

    @property
    def comparisons(self) -> int:
        """Return the number of those comparisons."""
        return self._drift.comparisons

    @property
    def evicted(self) -> int:
        """Return how many pods were evicted."""
        return self._evictor.evicted

    def run(self, stop: threading.Event) -> None:
        """List everything, then answer and handle deadlines, until *stop*."""
        self._threads.start(*(_bound(part, stop) for part in self._watch.parts))
        while self._watch.missing and not stop.wait(SYNC_SECONDS):
            pass
        shells = (self._requeuer, self._recorder, self._evictor, self._drift)
        self._threads.start(*(_bound(shell.run, stop) for shell in shells))
        if not stop.is_set():
            known = len(self.cache.pods), len(self.cache.nodes)
            process_tuning.settle()
            log.info("ready to answer: %d pods with devices on %d nodes", *known)
            self._begun.set()
        while not stop.is_set() and not self._lead():
            stop.wait(POLL_SECONDS)
        while not stop.wait(POLL_SECONDS):
            self._poll()
        self._begun.clear()
        self._own.follow()
        for worker in (self._recorder, self._evictor):
            worker.close()
        self._requeuer.poll()

    def drain(self) -> None:
        """Wait until no bind that was sent can still be done: then another term may begin."""
        self._binder.drain()

    def _lead(self) -> bool:
        """Let the Service route kube-scheduler here; return whether that was done."""
        try:
            self._own.lead()
        except apiserver.ServerError as exc:
            log.warning("cannot label our own pod: %s", exc)
            return False
        return True

    def _poll(self) -> None:
        try:
            self._binder.resolve()
            for pod in self.decider.broken(time.monotonic()):
                self._evictor.end(pod, "other pods of its gang were not bound in time")
        except Exception:
            log.exception("cannot handle deadlines")
            self._meter.failures.inc()
        self._requeuer.poll()

    def _freed(self) -> Sequence[object]:
        return self.decider.freed(time.monotonic())

    def _nominated(self, pod: pod_request.PodRequest) -> None:
        self.decider.nominated(pod, time.monotonic())

    def _why(self, pod: pod_request.PodRequest, names: Sequence[str]) -> str:
        why = self.decider.explain(pod.key, names)
        if why is None or why.fitting:
            return ""  # it no longer waits, or not for devices
        everywhere = self.decider.explain(pod.key)
        others = everywhere.fitting if everywhere is not None else ()
        hint = sampling.hint(len(names), self._watch.nodes, others)
        if hint:
            log.warning("pod %s: %s", pod.key, hint)
            self._meter.sampled.inc()
        return "; ".join(filter(None, [self.decider.in_vain(pod), hint, why.event()]))


def _bound(part: Callable[[threading.Event], None], stop: threading.Event) -> Callable[[], None]:
    return lambda: part(stop)
