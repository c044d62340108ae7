"""Carries out for a cluster what ``reconcile`` decides: watches, decides, writes.

Nothing is remembered but what was read. A write that is refused, because the pod has changed, is
answered by the news of that change; one that fails otherwise is tried again later and later.
"""

from __future__ import annotations

import dataclasses
import datetime
import logging
import random
import threading
from typing import TYPE_CHECKING

from pyvgpu import names
from pyvgpu.controller import informer, leases, objects, server, work
from pyvgpu.controller.sidecar import actions, backoff, how, marking, nodes, pods, reconcile, when

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyvgpu.controller.objects import Object
    from pyvgpu.controller.sidecar.settings import Settings

log = logging.getLogger(__name__)

COMPONENT = "pyvgpu-sidecar-controller"
WORKERS = 4
NODE_LEASE = "pyvgpu-sidecar-"  # and the name of the node
_FOLDERS = {"pods": "/api/v1", "jobs": "/apis/batch/v1"}
_REFUSED = frozenset({404, 409, 422})
_SAID_MOST = 10_000  # events that we know to have made


@dataclasses.dataclass(frozen=True, slots=True)
class Known:
    """What is kept of a pod."""

    pod: pods.Pod
    job: str  # the name of the batch Job that it belongs to, empty if it does not


class Controller:
    """Watches the pods of a cluster that have sidecars of ours."""

    def __init__(
        self,
        api: server.Server,
        namespace: str,
        settings: Settings,
        may_act: Callable[[], bool],
    ) -> None:
        self._api = api
        self._settings = settings
        self._may_act = may_act
        self._queue = work.Queue()
        self._attempts: dict[str, int] = {}
        self._said: dict[str, None] = {}
        label = {"labelSelector": f"{names.SIDECAR_LABEL}=managed"}
        self._pods = informer.Informer(api, "/api/v1/pods", label, _read_pod, self._queue.add)
        self._nodes = informer.Informer(api, "/api/v1/nodes", {}, _trim_node, _ignore)
        self._leases = informer.Informer(api, leases.path(namespace), {}, _trim_lease, _ignore)
        self._lease_folder = namespace

    def run(self, stop: threading.Event) -> None:
        """Watch and act until *stop*."""
        parts = (self._nodes, self._leases, self._pods)
        threads = [threading.Thread(target=part.run, args=(stop,), daemon=True) for part in parts]
        for thread in threads:
            thread.start()
        for part in parts:
            while not part.synced.wait(0.5):
                if stop.is_set():
                    return
        workers = [threading.Thread(target=self._work, daemon=True) for _ in range(WORKERS)]
        for worker in workers:
            worker.start()
        log.info("watching %d pods", len(self._pods.values()))
        stop.wait()
        self._queue.close()
        for worker in workers:
            worker.join()

    def _work(self) -> None:
        while (key := self._queue.take()) is not None:
            try:
                self._look(key)
                self._attempts.pop(key, None)
            except server.ServerError as exc:
                self._try_later(key, exc)
            except Exception:
                log.exception("failed on pod %s", key)
                self._try_later(key, server.ServerError("", 500))
            finally:
                self._queue.done(key)

    def _try_later(self, key: str, exc: server.ServerError) -> None:
        attempt = self._attempts[key] = self._attempts.get(key, 0) + 1
        seconds = backoff.delay(attempt, random.random(), exc.status, exc.retry_after)  # noqa: S311
        log.warning("pod %s: %s; again in %.1f s", key, exc, seconds)
        self._queue.add(key, seconds)

    def _look(self, key: str) -> None:
        known = self._pods.get(key)
        if known is None or known.pod.phase in when.TERMINAL:
            return
        if not self._may_act():
            self._queue.add(key, leases.RENEW_SECONDS)
            return
        moment = reconcile.Moment(datetime.datetime.now(datetime.UTC), random.random)
        decision = reconcile.reconcile(known.pod, self._around(known), moment, self._settings)
        log.debug("pod %s: %s", key, decision.why)
        for action in decision.actions:
            self._carry_out(key, known.pod, action)

    def _carry_out(self, key: str, pod: pods.Pod, action: actions.Action) -> None:
        match action:
            case actions.Patch():
                folder = f"{_FOLDERS[action.resource]}/namespaces/{action.namespace}"
                path = f"{folder}/{action.resource}/{action.name}"
                body = list(action.operations)
                self._api.call("PATCH", path, body=body, kind=server.JSON_PATCH)
                log.info("changed %s for pod %s", path, key)
            case actions.Event():
                self._say(pod, action)
            case actions.Wake():
                self._queue.add(key, action.seconds)
            case actions.Count():
                pass  # nobody reads figures yet

    def _say(self, pod: pods.Pod, event: actions.Event) -> None:
        if event.name in self._said:
            return
        path = f"/api/v1/namespaces/{pod.namespace}/events"
        try:
            self._api.call("POST", path, body=_event(pod, event))
        except server.ServerError as exc:
            if exc.status not in _REFUSED:
                raise
        self._said[event.name] = None
        while len(self._said) > _SAID_MOST:
            del self._said[next(iter(self._said))]

    def _around(self, known: Known) -> how.Surroundings:
        name = known.pod.node
        lease = self._leases.get(f"{self._lease_folder}/{NODE_LEASE}{name}")
        now = datetime.datetime.now(datetime.UTC)
        thing = self._nodes.get(name)
        found = nodes.read(thing, lease, now, self._settings) if thing else nodes.absent(name)
        return how.Surroundings(found, self._job(known))

    def _job(self, known: Known) -> how.Job | None:
        """Return what the pod's Job counts; it is asked for where the answer matters alone."""
        pod = known.pod
        if not known.job or pod.restart_policy != "OnFailure":
            return None
        marks = marking.mark(pod, self._settings.policies)
        if marks.why_not or not when.look(pod, marks.mains).done:
            return None
        folder = f"{_FOLDERS['jobs']}/namespaces/{pod.namespace}/jobs"
        job = self._api.call("GET", f"{folder}/{known.job}")
        limit = objects.section(job, "spec").get("backoffLimit")
        live = [
            other.pod
            for other in self._pods.values()
            if (other.job, other.pod.namespace) == (known.job, pod.namespace)
            and other.pod.phase not in when.TERMINAL
        ]
        restarts = sum(entry.restarts for other in live for entry in other.containers)
        metadata = job["metadata"]
        return how.Job(
            6 if limit is None else int(limit),
            restarts,
            len(live),
            known.job,
            metadata["uid"],
            metadata["resourceVersion"],
        )


def _read_pod(thing: Object) -> Known:
    owners = objects.entries(objects.section(thing, "metadata"), "ownerReferences")
    jobs = [
        str(owner.get("name"))
        for owner in owners
        if owner.get("controller")
        and owner.get("kind") == "Job"
        and str(owner.get("apiVersion")).startswith("batch/")
    ]
    return Known(pods.read(thing), jobs[0] if jobs else "")


def _trim_node(thing: Object) -> Object:
    status = objects.section(thing, "status")
    return {
        "metadata": _named(thing, "labels"),
        "spec": {"taints": objects.section(thing, "spec").get("taints")},
        "status": {"nodeInfo": status.get("nodeInfo"), "images": status.get("images")},
    }


def _trim_lease(thing: Object) -> Object:
    return {"metadata": _named(thing, "annotations"), "spec": thing.get("spec")}


def _named(thing: Object, *sections: str) -> Object:
    metadata = objects.section(thing, "metadata")
    return {name: metadata.get(name) for name in ("name", *sections)}


def _ignore(key: str) -> None:
    """Do nothing: what is kept is read when a pod is looked at."""


def _event(pod: pods.Pod, event: actions.Event) -> Object:
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
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
