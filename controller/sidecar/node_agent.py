"""Node part of the sidecar controller: stops containers on its own node through the runtime.

A sidecar that is known to exit with 0 needs no request: the node part signals it as soon as the
runtime reports that the main containers are done. The others wait for the controller's record,
which is checked when the pod changes, when a stop is over, and every second while a container that
should be stopped runs. ``node.check`` decides, from the runtime's current state, which part of the
record applies. Each stop creates a file before its hooks run: after a crash, the node part sends
the signal again, which is harmless, and runs no hook twice.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import threading
import time
from typing import TYPE_CHECKING

from pyvgpu import names
from pyvgpu.controller.sidecar import (
    cri,
    exit_reports,
    hooks,
    node_requests,
    nodes,
    sidecar_pods,
    swaps,
    termination_methods,
)
from pyvgpu.kube import apiserver, informer, leases, objects, rate_limit, threads, work_queue

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyvgpu.controller.sidecar.controller_settings import SidecarSettings
    from pyvgpu.controller.sidecar.meters import NodeMeter
    from pyvgpu.kube.objects import Object

log = logging.getLogger(__name__)

AGAIN_SECONDS = 1.0  # between checks of a record that waits for something
_AGAIN_SOON_SECONDS, _SOON_SECONDS = 0.25, 5.0  # the same, so soon after the main containers end
_POLL_SECONDS = 0.2  # between lists of running containers, if the runtime has no events
_EVENTS_AGAIN_SECONDS = 60  # before another attempt to stream events
_LEAST_SECONDS = 0.5  # between checks of the stop event
IMAGES_SECONDS = 10.0  # between queries for images; a change of the reports is written at once
RENEWALS = 3  # of the lease while it lasts, if the reports do not change
_MOST_IMAGES, _LONGEST_IMAGE = 200, 512  # reported on the lease: 256 KiB at most
_REPLACED = "definition changed"  # in kubelet's event, in every release since 1.14


@dataclasses.dataclass(frozen=True, slots=True)
class NodePart:
    """The node and the state folder of a node part."""

    node: str  # its name
    folder: Path  # for the marker files of stops that were begun


@dataclasses.dataclass(frozen=True, slots=True)
class Task:
    """A stop, with the container as the runtime listed it at the decision."""

    stop: node_requests.Stop
    seen: cri.RuntimeContainer
    ended_at: float  # when the last main container ended


class NodeAgent:
    """Watches the pods of one node and stops their containers."""

    def __init__(
        self,
        api: apiserver.ApiServer,
        runtime: cri.RuntimeClient,
        place: NodePart,
        settings: SidecarSettings,
        meter: NodeMeter,
    ) -> None:
        self._api = api
        self._runtime = runtime
        self._place = place
        self._settings = settings
        self._meter = meter
        self._queue = work_queue.Queue(meter.waited)
        self._gate = rate_limit.Gate()
        self._stopping: set[str] = set()  # marks of stops
        self._lock = threading.Lock()
        self._runtime_says = "the container runtime was not queried yet"
        self._has = ""  # the fast-exit image, if the node has it
        self._claims: dict[str, exit_reports.ExitReport] = {}
        self._images: dict[str, bool] = {}  # requested by swaps: whether the node has them
        self._published: dict[str, str] = {}  # at first different: overwrites an earlier process's
        self._renewal_due = 0.0
        self._news = threading.Event()
        self._threads = threads.Threads()
        query = {
            "labelSelector": f"{names.SIDECAR_LABEL}={names.SIDECAR_MANAGED}",
            "fieldSelector": ",".join(
                (f"spec.nodeName={place.node}", *sidecar_pods.outside(settings.protected))
            ),
        }
        self._pods = informer.Informer(
            api,
            "/api/v1/pods",
            query,
            sidecar_pods.read,
            self._queue.add,
            meter,
        )
        meter.gauge("pyvgpu_queue_overdue", "Pods due for reconciliation.", self._queue.overdue)
        meter.gauge("pyvgpu_sidecar_pods", "Pods of the node with our label.", self._pods.__len__)

    def run(self, lease: leases.Lease, stop: threading.Event) -> None:
        """Renew the lease and stop containers until *stop*."""
        self._place.folder.mkdir(parents=True, exist_ok=True)
        workers = [self._work] * self._settings.workers
        self._threads.start(*workers, lambda: self._pods.run(stop), lambda: self._listen(stop))
        due = 0.0
        while not stop.is_set():
            if self._news.wait(_LEAST_SECONDS) or time.monotonic() >= due:
                self._news.clear()
                ask = time.monotonic() >= due
                if not self._report(lease, ask=ask):
                    due = time.monotonic() + leases.RENEW_SECONDS
                elif ask:
                    due = time.monotonic() + IMAGES_SECONDS
        self._queue.close()
        lease.give_back()

    def alive(self) -> str:
        """Return which thread died; empty if none."""
        return self._threads.alive()

    def ready(self) -> str:
        """Return why it cannot act yet; empty if it can."""
        if not self._pods.synced.is_set():
            return "has not read the pods of its node yet"
        return self._runtime_says

    def _report(self, lease: leases.Lease, *, ask: bool) -> bool:
        """Renew the lease if that is due or its reports changed; return whether it is current.

        With *ask*, query the runtime for the reports first.
        """
        if ask:
            try:
                image = self._settings.fast_exit.image
                self._has = image if self._runtime.has_image(image) else ""
                self._find_images()
                self._tidy()
            except cri.RuntimeRefusedError as exc:
                log.warning("did not renew the lease of the node: %s", exc)
                self._runtime_says = str(exc)
                self._meter.runtime_errors.inc()
                return False
        self._runtime_says = ""
        reports = {
            nodes.FAST_EXIT_ANNOTATION: self._has,
            exit_reports.ANNOTATION: exit_reports.write(dict(self._claims)),
            nodes.IMAGES_ANNOTATION: json.dumps(dict(sorted(self._images.items()))),
        }
        now = time.monotonic()
        if reports == self._published and now < self._renewal_due:
            return True
        if not lease.try_to_hold(reports):
            return False
        self._published = reports
        self._renewal_due = now + self._settings.lease_seconds / RENEWALS
        return True

    def _find_images(self) -> None:
        """Check which of the images requested by pods the node has."""
        wanted = sorted({name for pod in self._pods.values() for name in swaps.asked_for(pod)})
        short = [name for name in wanted if len(name) <= _LONGEST_IMAGE][:_MOST_IMAGES]
        self._images = {name: self._runtime.has_image(name) for name in short}

    def _tidy(self) -> None:
        """Remove the marker files of containers that do not run any more."""
        if begun := list(self._place.folder.iterdir()):
            running = self._runtime.running()
            for mark in begun:
                if mark.name.partition(".")[0] not in running:
                    mark.unlink(missing_ok=True)

    def _listen(self, stop: threading.Event) -> None:
        """Queue a pod whenever one of its containers starts or ends, before kubelet reports it."""
        while not stop.is_set():
            try:
                for key in self._runtime.events():
                    self._heard(key)
            except cri.RuntimeRefusedError as exc:
                log.info("polling the container runtime every %s s: %s", _POLL_SECONDS, exc)
            except Exception:
                log.exception("failed on an event of the container runtime")
                self._meter.failures.inc()
            self._poll(stop)

    def _poll(self, stop: threading.Event) -> None:
        """Poll instead of events, for _EVENTS_AGAIN_SECONDS."""
        end = time.monotonic() + _EVENTS_AGAIN_SECONDS
        before: dict[str, str] = {}
        while time.monotonic() < end and not stop.wait(_POLL_SECONDS):
            try:
                now = self._runtime.running()
            except cri.RuntimeRefusedError:
                continue  # logged at the next renewal of the lease
            for container in before.keys() ^ now.keys():
                self._heard(before.get(container) or now[container])
            before = now

    def _heard(self, key: str) -> None:
        if self._pods.get(key) is not None:
            self._queue.add(key)

    def _work(self) -> None:
        while (key := self._queue.take()) is not None:
            try:
                self._process(key)
            except cri.RuntimeRefusedError as exc:
                log.warning("pod %s: %s", key, exc)
                self._meter.runtime_errors.inc()
                self._queue.add(key, AGAIN_SECONDS)
            except apiserver.ServerError as exc:
                log.warning("pod %s: %s", key, exc)
                self._gate.failed(exc.status, exc.retry_after)
                self._queue.add(key, AGAIN_SECONDS)
            except Exception:
                log.exception("failed on pod %s", key)
                self._meter.failures.inc()
                self._queue.add(key, 30 * AGAIN_SECONDS)
            finally:
                self._queue.done(key)

    def _process(self, key: str) -> None:
        pod = self._pods.get(key)
        if pod is None:
            self._tell(key, None)
            return
        if swaps.asked_for(pod) - self._images.keys():
            self._find_images()
            self._news.set()
        policies = self._settings.policies
        decided = pod.deleted or names.STOP_ANNOTATION in pod.annotations
        found = self._runtime.newest(pod.uid)
        running = self._runtime.containers(found)
        claim = exit_reports.see(pod, running, policies)
        self._tell(key, claim if claim and exit_reports.is_news(pod, policies) else None)
        pod = exit_reports.believe(pod, claim)
        if decided:
            answer = node_requests.check(pod, self._place.node, running, frozenset(), policies)
            if answer.waits and self._gate.is_open:
                replacing = self._replacing(pod, found)
                self._gate.passed()
                answer = node_requests.check(pod, self._place.node, running, replacing, policies)
        elif termination_methods.Method.STOP.value in self._settings.paths:
            answer = node_requests.foresee(pod, self._place.node, running, policies)
        else:
            return
        ended_at = max((one.ended_at for one in running), default=0.0)
        by_id = {self._runtime.prefix() + one.id: one for one in found}
        for stop in answer.stops:
            self._begin(key, Task(stop, by_id[stop.id], ended_at))
        if answer.waits:
            soon = 0 <= time.time() - ended_at < _SOON_SECONDS
            self._queue.add(key, _AGAIN_SOON_SECONDS if soon else AGAIN_SECONDS)

    def _tell(self, key: str, claim: exit_reports.ExitReport | None) -> None:
        """Report to the controller that a pod's main containers are done; None: withdraw that."""
        if claim is None:
            self._claims.pop(key, None)
        elif self._claims.get(key) != claim:
            self._claims[key] = claim
            self._news.set()

    def _replacing(
        self, pod: sidecar_pods.WatchedPod, seen: Sequence[cri.RuntimeContainer]
    ) -> frozenset[str]:
        """Return the IDs of containers that kubelet is killing because their definition changed.

        Kubelet's event has only the container's name, and an older container of that name may
        have been replaced before, so the event must be newer than the running container. Both
        times are by this node's clock.
        """
        query = {"fieldSelector": f"involvedObject.uid={pod.uid},reason=Killing"}
        events, _ = self._api.items(f"/api/v1/namespaces/{pod.namespace}/events", query)
        said = {
            str(objects.section(event, "involvedObject").get("fieldPath")): _time_of(event)
            for event in events
            if _REPLACED in str(event.get("message"))
        }
        return frozenset(
            self._runtime.prefix() + one.id
            for one in seen
            if said.get(f"spec.containers{{{one.name}}}", 0.0) > one.created_at
        )

    def _begin(self, key: str, task: Task) -> None:
        with self._lock:
            if task.stop.mark in self._stopping:
                return
            self._stopping.add(task.stop.mark)
        threading.Thread(target=self._stop, args=(key, task), daemon=True).start()

    def _stop(self, key: str, task: Task) -> None:
        try:
            self._stop_container(key, task)
        except (cri.RuntimeRefusedError, OSError) as exc:
            log.warning("did not stop %s of pod %s: %s", task.stop.name, key, exc)
            self._meter.stops.labels("failed").inc()
        finally:
            with self._lock:
                self._stopping.discard(task.stop.mark)
            self._queue.add(key, AGAIN_SECONDS)

    def _stop_container(self, key: str, task: Task) -> None:
        stop, seen = task.stop, task.seen
        left = float(stop.grace_seconds)
        mark = self._place.folder / stop.mark
        try:
            mark.touch(exist_ok=False)
        except FileExistsError:
            left = stop.left_after(time.time() - mark.stat().st_mtime)
            if not left and not stop.kill:
                return  # it was signaled, and its grace period is over
        else:
            if not stop.hastened:
                self._meter.signal_seconds.observe(max(time.time() - task.ended_at, 0))
            if not stop.replaced and left > 0:
                left = hooks.run(self._runtime, seen, stop.command, left)
        log.info("stopping container %s of pod %s", stop.name, key)
        begun = time.monotonic()
        if stop.quits:
            ended = self._quits(seen.id, left)
            if not ended and stop.kill:
                ended = self._runtime.stop(seen.id, hooks.LEAST_SECONDS, kill=True)
        else:
            ended = self._runtime.stop(seen.id, left, kill=stop.kill)
        self._meter.stops.labels("ended" if ended else "signaled").inc()
        if ended:
            self._meter.stop_seconds.observe(time.monotonic() - begun)
            mark.unlink(missing_ok=True)

    def _quits(self, identity: str, seconds: float) -> bool:
        """Wait for a container that its command ends; return whether it ended in time."""
        end = time.monotonic() + seconds
        while not self._runtime.has_ended(identity):
            if time.monotonic() >= end:
                return False
            time.sleep(_POLL_SECONDS)
        return True


def _time_of(event: Object) -> float:
    found = objects.time_of(event.get("lastTimestamp") or event.get("eventTime"))
    return 0.0 if found is None else found.timestamp()
