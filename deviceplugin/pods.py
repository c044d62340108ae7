"""The pods of the node as the API server has them, by one watch.

A pod that is not seen (yet) is asked for, so that nothing is refused or ended because the word of
the API server had not come. Kept of a pod is what the agent uses of it.
"""

from __future__ import annotations

import logging
import re
import threading
from typing import TYPE_CHECKING, Any

from pyvgpu.deviceplugin import watching
from pyvgpu.kube import apiserver, informer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyvgpu.deviceplugin.grants import Owner

log = logging.getLogger(__name__)

_PODS = "/api/v1/pods"
_ENDED = ("Succeeded", "Failed")  # phases in which no container runs, nor will
_MIRROR = "kubernetes.io/config.mirror"  # of a static pod's mirror: the uid that kubelet gave it
_STATIC = re.compile(r"[0-9a-f]{32}")  # such a uid: the digest of a file
_METADATA = ("name", "namespace", "uid", "annotations", "ownerReferences")


def ignore(_: str) -> None:
    """Do nothing about a pod that has changed."""


class Pods(watching.Watching[dict[str, Any]]):
    """Those bound to one node; may be asked by several threads.

    *changed* is called with the key of each that comes, changes or goes.
    """

    def __init__(
        self, api: apiserver.ApiServer, node: str, changed: Callable[[str], None] = ignore
    ) -> None:
        self.changed = changed
        self._indexing = threading.Lock()
        self._by_uid: dict[str, dict[str, Any]] = {}
        self._uids: dict[str, tuple[str, ...]] = {}  # by the keys of pods
        self._query = {"fieldSelector": f"spec.nodeName={node}"}
        super().__init__(api, informer.Informer(api, _PODS, self._query, trimmed, self._index))

    def seen(self, uid: str) -> dict[str, Any] | None:
        """Return the pod with that *uid* as it was seen last; None: it was not."""
        with self._indexing:
            return self._by_uid.get(uid)

    def find(self, uid: str, namespace: str, name: str) -> dict[str, Any] | None:
        """Return the pod with that *uid*, asking for it if it was not seen; None: there is none.

        With an empty *name* it is somewhere on the node. ServerError if it cannot be asked for.
        """
        return self.seen(uid) or self._ask(uid, namespace, name)

    def is_over(self, owner: Owner) -> bool:
        """Tell whether the pod of a grant is over; what cannot be asked is not known to be."""
        pod = self.seen(owner.uid)
        if pod is None:
            try:
                # Without patience: many are asked for in turn, and again in the next round.
                pod = self._ask(owner.uid, owner.namespace, owner.pod, patience=0.0)
            except apiserver.ServerError as exc:
                log.debug("could not ask for pod %s/%s: %s", owner.namespace, owner.pod, exc)
                return False
        if pod is None:
            return not is_static(owner.uid)  # its mirror comes and goes
        return pod["phase"] in _ENDED

    def name_of(self, uid: str) -> tuple[str, str]:
        """Return the namespace and name of a pod; empty ones if nobody can tell."""
        try:
            pod = self.find(uid, "", "")
        except apiserver.ServerError as exc:
            log.warning("cannot ask for the name of pod %s: %s", uid, exc)
            return "", ""
        return (pod["metadata"]["namespace"], pod["metadata"]["name"]) if pod else ("", "")

    def _index(self, key: str) -> None:
        pod = self._seen.get(key)
        with self._indexing:
            for uid in self._uids.pop(key, ()):
                self._by_uid.pop(uid, None)
            if pod is not None:
                self._uids[key] = uids_of(pod)
                self._by_uid |= dict.fromkeys(self._uids[key], pod)
        self.changed(key)

    def _ask(
        self, uid: str, namespace: str, name: str, patience: float | None = None
    ) -> dict[str, Any] | None:
        if name:
            try:
                found = [self.api.call("GET", path_of(namespace, name), patience=patience)]
            except apiserver.ServerError as exc:
                if exc.status != apiserver.NOT_FOUND:
                    raise
                return None
        else:
            found = self.api.call("GET", _PODS, self._query, patience=patience)["items"]
        return next((trimmed(it) for it in found if uid in uids_of(it)), None)


def path_of(namespace: str, name: str) -> str:
    """Return where a pod is at the API server."""
    return f"/api/v1/namespaces/{namespace}/pods/{name}"


def trimmed(pod: apiserver.Object) -> dict[str, Any]:
    """Return what is used of a pod."""
    spec = pod.get("spec") or {}
    containers = [
        {"name": it["name"], "env": it.get("env") or []} for it in spec.get("containers") or ()
    ]
    return {
        "metadata": {it: pod["metadata"][it] for it in _METADATA if it in pod["metadata"]},
        "spec": {"containers": containers},
        "phase": (pod.get("status") or {}).get("phase", ""),
    }


def uids_of(pod: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the uids by which a pod is known: to kubelet, a static pod's mirror has another."""
    meta = pod["metadata"]
    own = (str(meta["uid"]), str((meta.get("annotations") or {}).get(_MIRROR, "")))
    return tuple(filter(None, own))


def is_static(uid: str) -> bool:
    """Tell whether a pod is one of kubelet's own, of which the API server has a mirror at most."""
    return _STATIC.fullmatch(uid) is not None
