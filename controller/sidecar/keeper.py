"""The node part: stops containers of its own node, as their pods' records ask for it.

A record is looked at again and again: when the pod changes, when a stop is over, and every second
while a container that is to be stopped runs. What holds of it is ``node.check``'s to say, by what
the container runtime has now. Of a stop that was begun there is a file, made before the hooks run:
whoever comes after a crash sends the signal again, which is well, and runs no hook twice.
"""

from __future__ import annotations

import datetime
import logging
import threading
import time
from typing import TYPE_CHECKING

from pyvgpu import names
from pyvgpu.controller import informer, leases, objects, server, work
from pyvgpu.controller.sidecar import cri, hooks, node, nodes, pods

if TYPE_CHECKING:
    from pathlib import Path

    from pyvgpu.controller.objects import Object
    from pyvgpu.controller.sidecar.settings import Settings

log = logging.getLogger(__name__)

AGAIN_SECONDS = 1.0  # between looks at a record that still waits for something
_REPLACED = "definition changed"  # in kubelet's event, of every release since 1.14


class Keeper:
    """Watches the pods of one node."""

    def __init__(
        self,
        api: server.Server,
        runtime: cri.Runtime,
        node_name: str,
        folder: Path,
        settings: Settings,
    ) -> None:
        self._api = api
        self._runtime = runtime
        self._node = node_name
        self._folder = folder
        self._settings = settings
        self._queue = work.Queue()
        self._stopping: set[str] = set()
        self._guard = threading.Lock()
        query = {
            "labelSelector": f"{names.SIDECAR_LABEL}=managed",
            "fieldSelector": f"spec.nodeName={node_name}",
        }
        self._pods = informer.Informer(api, "/api/v1/pods", query, pods.read, self._queue.add)

    def run(self, lease: leases.Lease, stop: threading.Event) -> None:
        """Show that the node part lives, and act, until *stop*."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for part in (self._work, lambda: self._pods.run(stop)):
            threading.Thread(target=part, daemon=True).start()
        while not stop.is_set():
            self._renew(lease)
            stop.wait(leases.RENEW_SECONDS)
        self._queue.close()
        lease.give_back()

    def _renew(self, lease: leases.Lease) -> None:
        image = self._settings.fast_exit.image
        try:
            has = image if self._runtime.has_image(image) else ""
        except cri.RuntimeRefusedError as exc:
            log.warning("did not renew the lease of the node: %s", exc)
            return
        lease.try_to_hold({nodes.FAST_EXIT_ANNOTATION: has})

    def _work(self) -> None:
        while (key := self._queue.take()) is not None:
            try:
                self._look(key)
            except (cri.RuntimeRefusedError, server.ServerError) as exc:
                log.warning("pod %s: %s", key, exc)
                self._queue.add(key, AGAIN_SECONDS)
            except Exception:
                log.exception("failed on pod %s", key)
                self._queue.add(key, 30 * AGAIN_SECONDS)
            finally:
                self._queue.done(key)

    def _look(self, key: str) -> None:
        pod = self._pods.get(key)
        if pod is None or names.STOP_ANNOTATION not in pod.annotations:
            return
        policies = self._settings.policies
        seen = self._runtime.containers(pod.uid)
        answer = node.check(pod, self._node, seen, frozenset(), policies)
        if answer.waits:
            answer = node.check(pod, self._node, seen, self._replacing(pod), policies)
        for stop in answer.stops:
            self._begin(key, pod, stop)
        if answer.waits:
            self._queue.add(key, AGAIN_SECONDS)

    def _replacing(self, pod: pods.Pod) -> frozenset[str]:
        """Return the ids that kubelet said it kills because their definition changed.

        The event names the container alone, and an older one of its name may have been replaced
        before, so the event must be younger than what runs. Both times are this node's.
        """
        query = {"fieldSelector": f"involvedObject.uid={pod.uid},reason=Killing"}
        found, _ = self._api.items(f"/api/v1/namespaces/{pod.namespace}/events", query)
        said = {
            str(objects.section(event, "involvedObject").get("fieldPath")): _time_of(event)
            for event in found
            if _REPLACED in str(event.get("message"))
        }
        return frozenset(
            self._runtime.prefix() + seen.id
            for seen in self._runtime.seen(pod.uid)
            if said.get(f"spec.containers{{{seen.name}}}", 0.0) > seen.created_at
        )

    def _begin(self, key: str, pod: pods.Pod, stop: node.Stop) -> None:
        with self._guard:
            if stop.id in self._stopping:
                return
            self._stopping.add(stop.id)
        threading.Thread(target=self._stop, args=(key, pod, stop), daemon=True).start()

    def _stop(self, key: str, pod: pods.Pod, stop: node.Stop) -> None:
        try:
            self._stop_container(pod, stop)
        except (cri.RuntimeRefusedError, OSError) as exc:
            log.warning("did not stop %s of pod %s: %s", stop.name, key, exc)
        finally:
            with self._guard:
                self._stopping.discard(stop.id)
            self._queue.add(key, AGAIN_SECONDS)

    def _stop_container(self, pod: pods.Pod, stop: node.Stop) -> None:
        found = {self._runtime.prefix() + one.id: one for one in self._runtime.seen(pod.uid)}
        seen = found.get(stop.id)
        if seen is None or not seen.running:
            return
        left = float(stop.grace_seconds)
        mark = self._folder / seen.id
        try:
            mark.touch(exist_ok=False)
        except FileExistsError:
            left = max(left - (time.time() - mark.stat().st_mtime), 0.0)
            if not left and not stop.kill:
                return  # it was told, and had its time
        else:
            if not stop.replaced and left > 0:
                left = hooks.run(self._runtime, seen, stop.command, left)
        log.info("stopping container %s of pod %s/%s", stop.name, pod.namespace, pod.name)
        if self._runtime.stop(seen.id, left, kill=stop.kill):
            mark.unlink(missing_ok=True)


def _time_of(event: Object) -> float:
    text = event.get("lastTimestamp") or event.get("eventTime")
    return datetime.datetime.fromisoformat(str(text)).timestamp() if text else 0.0
