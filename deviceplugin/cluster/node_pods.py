"""Cache of the node's pods from the API server, filled by one watch.

A pod that is not in the cache is read from the API server, so that no pod is refused or ended
because the watch is late. Only the fields that the agent uses are kept.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from pyvgpu.deviceplugin.cluster import agent_watch
from pyvgpu.deviceplugin.grants import pod_identity
from pyvgpu.deviceplugin.subscribers import Subscribers
from pyvgpu.kube import apiserver, informer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyvgpu.deviceplugin.grants import Owner

log = logging.getLogger(__name__)

_PODS = "/api/v1/pods"
_ENDED = ("Succeeded", "Failed")  # phases in which no container runs, or will run
_MIRROR = "kubernetes.io/config.mirror"  # of a static pod's mirror: kubelet's uid of the pod
_METADATA = (
    "name",
    "namespace",
    "uid",
    "annotations",
    "ownerReferences",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
)


class Pods(agent_watch.Watching[dict[str, Any]]):
    """The pods bound to one node; thread-safe.

    Subscribers of *changed* are called with the key of each pod that is added, changed or removed.
    """

    def __init__(self, api: apiserver.ApiServer, node: str) -> None:
        self.changed: Subscribers[[str]] = Subscribers()
        self._lock = threading.Lock()
        self._by_uid: dict[str, dict[str, Any]] = {}
        self._uids: dict[str, tuple[str, ...]] = {}  # by the keys of pods
        self._query = {"fieldSelector": f"spec.nodeName={node}"}
        super().__init__(api, informer.Informer(api, _PODS, self._query, trimmed, self._index))

    def seen(self, uid: str) -> dict[str, Any] | None:
        """Return the last seen pod with that *uid*; None: it was not seen."""
        with self._lock:
            return self._by_uid.get(uid)

    def find(self, uid: str, namespace: str, name: str) -> dict[str, Any] | None:
        """Return the pod with that *uid*, from the API server if it was not seen; None if none.

        With an empty *name* all pods of the node are read. ServerError if the read fails.
        """
        return self.seen(uid) or self._ask(uid, namespace, name)

    def is_over(self, owner: Owner) -> bool:
        """Return whether the pod of a grant is over; false if the API server cannot be read."""
        pod = self.seen(owner.uid)
        if pod is None:
            try:
                # Without retries: many pods are read in turn, and again in the next round.
                pod = self._ask(owner.uid, owner.namespace, owner.pod, retry_seconds=0.0)
            except apiserver.ServerError as exc:
                log.debug("could not read pod %s/%s: %s", owner.namespace, owner.pod, exc)
                return False
        if pod is None:
            return not pod_identity.is_static(owner.uid)  # its mirror comes and goes
        return pod["phase"] in _ENDED

    def is_alive(self, uid: str) -> bool:
        """Return whether the pod with that *uid* exists and runs; ServerError if unknown."""
        pod = self.find(uid, "", "")
        return pod is not None and pod["phase"] not in _ENDED

    def name_of(self, uid: str) -> tuple[str, str]:
        """Return the namespace and name of a pod; empty ones if unknown."""
        try:
            pod = self.find(uid, "", "")
        except apiserver.ServerError as exc:
            log.warning("cannot look up the name of pod %s: %s", uid, exc)
            return "", ""
        return (pod["metadata"]["namespace"], pod["metadata"]["name"]) if pod else ("", "")

    def _index(self, key: str) -> None:
        pod = self._seen.get(key)
        with self._lock:
            for uid in self._uids.pop(key, ()):
                self._by_uid.pop(uid, None)
            if pod is not None:
                self._uids[key] = uids_of(pod)
                self._by_uid |= dict.fromkeys(self._uids[key], pod)
        self.changed(key)

    def _ask(
        self, uid: str, namespace: str, name: str, retry_seconds: float | None = None
    ) -> dict[str, Any] | None:
        if name:
            try:
                found = [
                    self.api.call("GET", path_of(namespace, name), retry_seconds=retry_seconds)
                ]
            except apiserver.ServerError as exc:
                if exc.status != apiserver.NOT_FOUND:
                    raise
                return None
        else:
            found = self.api.call("GET", _PODS, self._query, retry_seconds=retry_seconds)["items"]
        return next((trimmed(pod) for pod in found if uid in uids_of(pod)), None)


def path_of(namespace: str, name: str) -> str:
    """Return the API path of a pod."""
    return f"/api/v1/namespaces/{namespace}/pods/{name}"


def trimmed(pod: apiserver.Object) -> dict[str, Any]:
    """Return the fields of a pod that the agent uses."""
    spec = pod.get("spec") or {}
    containers = [
        {"name": container["name"], "env": container.get("env") or []}
        for container in spec.get("containers") or ()
    ]
    return {
        "metadata": {
            field: pod["metadata"][field] for field in _METADATA if field in pod["metadata"]
        },
        "spec": {"containers": containers},
        "phase": (pod.get("status") or {}).get("phase", ""),
    }


def uids_of(pod: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the uids of a pod: for the mirror of a static pod its own and kubelet's."""
    meta = pod["metadata"]
    own = (str(meta["uid"]), str((meta.get("annotations") or {}).get(_MIRROR, "")))
    return tuple(filter(None, own))
