"""Controller loop: watch a cluster's pods, reconcile them, and write the decisions.

It keeps no state but its watch caches. After a write that conflicts, the watch delivers the
change and the pod is reconciled again; other failures are retried with backoff, and rarely while
the API server is down. A replica without the lease watches, too, so that it can act as soon as it
holds it.
"""

from __future__ import annotations

import datetime
import logging
import random
import time
from typing import TYPE_CHECKING

from pyvgpu import names
from pyvgpu.controller.sidecar import (
    actions,
    exit_reports,
    label_sweep,
    main_completion,
    marking,
    nodes,
    projections,
    reconcile,
    sidecar_pods,
    termination_methods,
)
from pyvgpu.kube import (
    apiserver,
    event_recorder,
    informer,
    leases,
    objects,
    rate_limit,
    threads,
    work_loop,
    work_queue,
)

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Collection

    from pyvgpu.controller.sidecar.controller_settings import SidecarSettings
    from pyvgpu.controller.sidecar.meters import ControllerMeter

log = logging.getLogger(__name__)

COMPONENT = "pyvgpu-sidecar-controller"
SWEEP_SECONDS = 600.0  # between two sweeps of leases
QUIET_SECONDS = 300.0  # without a renewal, before the lease of an absent node is deleted

_MOST_COUNTED = 20_000
_FOLDERS = {"pods": "/api/v1", "jobs": "/apis/batch/v1"}
_MANAGED = {"labelSelector": f"{names.SIDECAR_LABEL}={names.SIDECAR_MANAGED}"}


class _LostError(Exception):
    """The lease was lost, so nothing may be written."""


class LeaseSweep:
    """Periodically deletes the leases of nodes that do not exist any more.

    A cluster whose nodes come and go would otherwise collect a lease for each node name that it
    ever had.
    """

    def __init__(
        self,
        api: apiserver.ApiServer,
        namespace: str,
        may_act: Callable[[], bool],
        pace: rate_limit.Pace,
    ) -> None:
        """Delete only while *may_act* returns true."""
        self._api = api
        self._namespace = namespace
        self._may_act = may_act
        self._pace = pace

    def run(
        self,
        stop: threading.Event,
        quiet: Callable[[], Collection[str]],
        existing: Callable[[], Collection[str]],
    ) -> None:
        """Sweep until *stop*; the others return the arguments of :meth:`sweep`."""
        while not stop.wait(SWEEP_SECONDS):
            if not self._may_act():
                continue
            try:
                self.sweep(quiet(), existing())
            except apiserver.ServerError as exc:
                log.warning("gave up a sweep of leases: %s", exc)

    def sweep(self, quiet: Collection[str], existing: Collection[str]) -> None:
        """Delete the leases named in *quiet*, which no node part renews, of no node in *existing*.

        ServerError if the API server fails.
        """
        for name in orphaned_leases(quiet, existing):
            self._pace.wait()
            if not self._may_act():
                return
            path = leases.path(self._namespace, name)
            try:
                meta = objects.section(self._api.call("GET", path), "metadata")
                version = {key: meta[key] for key in ("uid", "resourceVersion")}
                self._api.call("DELETE", path, body={"preconditions": version})
            except apiserver.ServerError as exc:
                if not exc.outdated and exc.status != apiserver.NOT_FOUND:
                    raise
            else:
                log.info("deleted lease %s of a node that does not exist", name)


def orphaned_leases(quiet: Collection[str], existing: Collection[str]) -> list[str]:
    """Return the leases in *quiet* that belong to node parts of no node in *existing*."""
    known = {f"{leases.NODE}{node}" for node in existing} | {leases.CONTROLLER}
    return sorted(name for name in quiet if name.startswith(leases.NODE) and name not in known)


class Controller:
    """Watches and reconciles the pods with our label."""

    def __init__(
        self,
        api: apiserver.ApiServer,
        namespace: str,
        settings: SidecarSettings,
        may_act: Callable[[], bool],
        meter: ControllerMeter,
    ) -> None:
        self._api = api
        self._settings = settings
        self._may_act = may_act
        self._meter = meter
        self._queue = work_queue.Queue(meter.waited)
        self._gate = rate_limit.Gate()
        self._pace = rate_limit.Pace(settings.writes_per_second)
        self._loop = work_loop.WorkLoop("pod", self._queue, self._gate, may_act)
        self._seen: dict[str, str] = {}  # uids of pods that had not ended when last processed
        self._counted: dict[str, None] = {}  # keys of counts already added, oldest first
        self._beats = nodes.Beats()  # of the node parts
        self._events = event_recorder.Recorder(
            api,
            event_recorder.EventSource(COMPONENT),
            may_act=may_act,
            pace=self._pace,
            gate=self._gate,
        )
        outside = ",".join(sidecar_pods.outside(settings.protected))
        self._pods = informer.Informer(
            api,
            "/api/v1/pods",
            _MANAGED | ({"fieldSelector": outside} if outside else {}),
            lambda thing: projections.pod(thing, settings),
            self._queue.add,
            meter,
        )
        self._nodes = informer.Informer(
            api,
            "/api/v1/nodes",
            {},
            lambda thing: projections.node(thing, settings),
            _ignore,
            meter,
        )
        self._leases = informer.Informer(
            api, leases.path(namespace), {}, projections.lease, self._hear, meter
        )
        self._sweep = label_sweep.Sweep(api, settings, may_act, self._pace, meter)
        self._lease_sweep = LeaseSweep(api, namespace, may_act, self._pace)
        self._lease_folder = namespace
        self._threads = threads.Threads()
        meter.gauge("pyvgpu_queue_overdue", "Pods due for reconciliation.", self._queue.overdue)
        meter.gauge("pyvgpu_sidecar_pods", "Watched pods with our label.", self._pods.__len__)
        meter.gauge("pyvgpu_sidecar_acts", "1 if this replica holds the lease.", may_act)

    def run(self, stop: threading.Event) -> None:
        """Watch and act until *stop*."""
        parts = (self._nodes, self._leases, self._pods)
        self._threads.start(*(lambda part=part: part.run(stop) for part in parts))
        for part in parts:
            while not part.synced.wait(0.5):
                if stop.is_set():
                    return
        log.info("watching %d pods", len(self._pods))
        workers = self._threads.start(*[lambda: self._work(stop)] * self._settings.workers)
        workers += self._threads.start(lambda: self._events.run(stop))
        self._threads.start(lambda: self._sweep.run(stop))
        self._threads.start(lambda: self._lease_sweep.run(stop, self._quiet, self._nodes.keys))
        stop.wait()
        self._queue.close()
        self._events.close()
        for worker in workers:
            worker.join()

    def alive(self) -> str:
        """Return which thread died; empty if none."""
        return self._threads.alive()

    def ready(self) -> str:
        """Return which lists have not been read yet; empty if all were."""
        missing = [
            name
            for name, part in (
                ("nodes", self._nodes),
                ("leases", self._leases),
                ("pods", self._pods),
            )
            if not part.synced.is_set()
        ]
        return f"has not read yet: {', '.join(missing)}" if missing else ""

    def _work(self, stop: threading.Event) -> None:
        for key in self._loop.keys(stop):
            try:
                self._process(key)
                self._loop.succeeded(key)
            except _LostError:
                self._queue.add(key)  # reconcile again
            except apiserver.ServerError as exc:
                self._loop.failed(key, exc)
            except Exception:
                log.exception("failed on pod %s", key)
                self._meter.failures.inc()
                self._loop.failed(key, apiserver.ServerError("an internal error", 400))

    def _process(self, key: str) -> None:
        known = self._pods.get(key)
        match known:
            case None:
                self._seen.pop(key, None)
            case projections.Over():
                self._settle(key, known)
            case projections.Live():
                self._seen[key] = known.pod.uid
                self._decide(key, known)

    def _settle(self, key: str, over: projections.Over) -> None:
        """Count a pod that has ended since it was last processed."""
        if self._seen.pop(key, None) != over.uid or over.figures is None:
            return
        for path in over.figures.paths:
            self._meter.end_seconds.labels(path).observe(over.figures.seconds)
        self._meter.writes.observe(over.figures.writes)
        self._meter.gpu_idle_seconds.inc(over.gpus * over.figures.seconds)
        self._meter.saved.add(over.gpus)

    def _quiet(self) -> list[str]:
        """Return the names of leases that were not renewed for some minutes."""
        found = self._beats.quiet(QUIET_SECONDS, time.monotonic())
        return [key.rpartition("/")[2] for key in found]

    def _hear(self, lease: str) -> None:
        """Queue the pods that a node part's lease reports on."""
        found = self._leases.get(lease)
        self._beats.observe(lease, found.renewed if found else None, time.monotonic())
        for key in found.ended if found else ():
            self._queue.add(key)

    def _decide(self, key: str, known: projections.Live) -> None:
        moment = reconcile.DecisionMoment(datetime.datetime.now(datetime.UTC), random.random)
        node, claim = self._node_of(key, known.pod, moment.now)
        pod = exit_reports.believe(known.pod, claim)
        around = termination_methods.Surroundings(node, self._job(pod, known.job))
        decision = reconcile.reconcile(pod, around, moment, self._settings)
        log.debug("pod %s: %s", key, decision.why)
        for action in decision.actions:
            self._carry_out(key, pod, action)

    def _carry_out(self, key: str, pod: sidecar_pods.WatchedPod, action: actions.Action) -> None:
        match action:
            case actions.Patch():
                folder = f"{_FOLDERS[action.resource]}/namespaces/{action.namespace}"
                path = f"{folder}/{action.resource}/{action.name}"
                self._write("PATCH", path, list(action.operations), apiserver.JSON_PATCH)
                log.info("changed %s for pod %s", path, key)
            case actions.SidecarEvent():
                self._events.record(
                    event_recorder.Event(
                        *(pod.uid, pod.namespace, pod.name, action.reason, action.message),
                        warning=action.warning,
                        id=action.name,
                    )
                )
            case actions.Wake():
                self._queue.add(key, action.seconds)
            case actions.Count():
                if self._is_first(f"{action.metric} {action.key}"):
                    counter = self._meter.counts[action.metric]
                    (counter.labels(**action.labels) if action.labels else counter).inc()

    def _is_first(self, key: str) -> bool:
        if key in self._counted:
            return False
        self._counted[key] = None
        while len(self._counted) > _MOST_COUNTED:
            self._counted.pop(next(iter(self._counted)), None)
        return True

    def _write(self, method: str, path: str, body: object, kind: str = apiserver.JSON) -> None:
        self._pace.wait()
        if not self._may_act():  # the lease may have been lost while waiting for the rate limiter
            raise _LostError
        self._api.call(method, path, body=body, kind=kind)
        self._gate.passed()

    def _node_of(
        self, key: str, pod: sidecar_pods.WatchedPod, now: datetime.datetime
    ) -> tuple[nodes.NodeState, exit_reports.ExitReport | None]:
        """Return the pod's node, and its node part's report on the pod."""
        called = f"{self._lease_folder}/{leases.NODE}{pod.node}"
        lease, age = self._leases.get(called), self._beats.age(called, time.monotonic())
        thing = self._nodes.get(pod.node)
        if thing is None:
            return nodes.absent(pod.node), None
        found = nodes.read(thing, lease.thing if lease else None, now, self._settings, age)
        return found, lease.ended.get(key) if lease and found.live else None

    def _job(
        self, pod: sidecar_pods.WatchedPod, name: str
    ) -> termination_methods.OwningJob | None:
        """Return the pod's Job; read from the API server only if the decision depends on it."""
        if not name or pod.restart_policy != "OnFailure":
            return None
        marks = marking.mark(pod, self._settings.policies)
        if marks.why_not or not main_completion.read(pod, marks.mains).done:
            return None
        folder = f"{_FOLDERS['jobs']}/namespaces/{pod.namespace}/jobs"
        try:
            job = self._api.call("GET", f"{folder}/{name}")
        except apiserver.ServerError as exc:
            if exc.status != 404:
                raise
            return None  # the Job was deleted, and counts no restarts any more
        live = [
            other.pod
            for other in self._pods.values()
            if isinstance(other, projections.Live)
            and (other.job, other.pod.namespace) == (name, pod.namespace)
        ]
        return projections.job(job, live)


def _ignore(key: str) -> None:
    """Do nothing: nodes are read from the cache when a pod is reconciled."""
