"""Periodic sweep that labels pods with marked sidecars that lack our label.

The webhook labels pods at creation. This sweep finds those created while it was down or not
installed, or that a newer policy marks. It reads slowly, in pages, and lists only pods that can
end. A pod with another value of the label is left alone.
"""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING

from pyvgpu import names
from pyvgpu.controller.sidecar import main_completion, marking, sidecar_pods
from pyvgpu.kube import apiserver, objects

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from pyvgpu.controller.sidecar.controller_settings import SidecarSettings
    from pyvgpu.controller.sidecar.meters import ControllerMeter
    from pyvgpu.kube import rate_limit
    from pyvgpu.kube.objects import Operation

log = logging.getLogger(__name__)

_FIRST_SECONDS = 1.0  # after the start
_PAGE, _PAGE_SECONDS = 100, 0.1  # objects of a page, and the time between two pages
_TRIES = 5  # on conflicts with another writer of the pod, such as kubelet
_QUERY = {
    "labelSelector": f"!{names.SIDECAR_LABEL}",
    "fieldSelector": "status.phase!=Succeeded,status.phase!=Failed,spec.restartPolicy!=Always",
}


class Sweep:
    """Lists all pods without our label periodically."""

    def __init__(
        self,
        api: apiserver.ApiServer,
        settings: SidecarSettings,
        may_act: Callable[[], bool],
        pace: rate_limit.Pace,
        meter: ControllerMeter,
    ) -> None:
        self._api = api
        self._query = {
            **_QUERY,
            "fieldSelector": ",".join(
                (_QUERY["fieldSelector"], *sidecar_pods.outside(settings.protected))
            ),
        }
        self._settings = settings
        self._may_act = may_act
        self._pace = pace
        self._meter = meter

    def run(self, stop: threading.Event) -> None:
        """Sweep until *stop*; after a failure the next sweep comes at its usual time."""
        seconds = _FIRST_SECONDS
        while self._settings.sweep_seconds and not stop.wait(seconds):
            if not self._may_act():
                continue
            seconds = self._settings.sweep_seconds * (0.9 + 0.2 * random.random())  # noqa: S311
            try:
                self._once(stop)
            except apiserver.ServerError as exc:
                log.warning("gave up a sweep: %s", exc)
            except Exception:
                log.exception("gave up a sweep")
                self._meter.failures.inc()

    def _once(self, stop: threading.Event) -> None:
        for page, _ in self._api.pages("/api/v1/pods", self._query, _PAGE):
            for pod in map(sidecar_pods.read, page):
                self.adopt(pod)
            if stop.wait(_PAGE_SECONDS) or not self._may_act():
                return

    def operations_of(self, pod: sidecar_pods.WatchedPod) -> list[Operation]:
        """Return the patch that labels *pod*; empty if it has the label or no marked sidecars."""
        done = (
            pod.deleted
            or pod.phase in main_completion.TERMINAL
            or names.SIDECAR_LABEL in pod.labels
        )
        if done or marking.mark(pod, self._settings.policies).why_not:
            return []
        return [
            objects.expect(pod.uid, "metadata", "uid"),
            objects.expect(pod.version, "metadata", "resourceVersion"),
            *([] if pod.labels else [objects.put({}, "metadata", "labels")]),
            objects.put(names.SIDECAR_MANAGED, "metadata", "labels", names.SIDECAR_LABEL),
        ]

    def adopt(self, pod: sidecar_pods.WatchedPod) -> None:
        """Label *pod* if it has marked sidecars; on a conflict, read it again."""
        folder = f"/api/v1/namespaces/{pod.namespace}/pods"
        for _ in range(_TRIES):
            if not (operations := self.operations_of(pod)):
                return
            self._pace.wait()
            if not self._may_act():
                return
            try:
                path = f"{folder}/{pod.name}"
                self._api.call("PATCH", path, body=operations, kind=apiserver.JSON_PATCH)
            except apiserver.ServerError as exc:
                if not exc.outdated:
                    raise
            else:
                self._meter.adopted.inc()
                log.info("labelled pod %s/%s, which has marked sidecars", pod.namespace, pod.name)
                return
            now, _ = self._api.items(folder, {"fieldSelector": f"metadata.name={pod.name}"})
            if not now:
                return
            pod = sidecar_pods.read(now[0])
        log.info("left pod %s/%s to the next sweep: too many conflicts", pod.namespace, pod.name)
