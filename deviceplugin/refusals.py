"""What becomes of a pod whose containers can never start here.

Kubelet would try for ever. A pod that something owns is evicted, so that its owner makes another,
perhaps elsewhere; a bare one would be lost by that, and only gets an event. Whatever is said is
said of the pod with that uid, and of none that has its name by now.
"""

from __future__ import annotations

import dataclasses
import datetime
import logging
import queue
import threading
from typing import TYPE_CHECKING, Any

from pyvgpu.deviceplugin import apiserver

if TYPE_CHECKING:
    from collections.abc import Mapping

log = logging.getLogger(__name__)

REASON = "VGPURefused"
AGAIN_SECONDS = 10.0  # until what could not be done is tried again

_MOST = 1024  # texts that are remembered as said
_CONFLICT = 409


@dataclasses.dataclass(frozen=True, slots=True)
class Refusal:
    """A pod, and why it will never start here."""

    uid: str
    namespace: str  # empty, as the name: not known
    name: str
    text: str
    evict: bool = True  # if something owns it; else it is only told of


class Refusals:
    """Tells of refusals, one after the other, from whichever thread runs it."""

    def __init__(self, api: apiserver.ApiServer, node: str) -> None:
        self._api = api
        self._node = node
        self._waiting: queue.SimpleQueue[Refusal | None] = queue.SimpleQueue()
        self._said: dict[str, str] = {}  # by uid: what was said last
        self._stopped = threading.Event()

    def tell(self, refusal: Refusal) -> None:
        """Let it be known, once; kubelet will ask again and again."""
        if self._said.get(refusal.uid) != refusal.text:
            self._said[refusal.uid] = refusal.text
            while len(self._said) > _MOST:
                del self._said[next(iter(self._said))]
            self._waiting.put(refusal)

    def run(self) -> None:
        """Tell until :meth:`stop`."""
        while (refusal := self._waiting.get()) is not None:
            try:
                self._act(refusal)
            except apiserver.ServerError as exc:
                log.warning("could not tell of pod %s: %s", refusal.uid, exc)
                if self._stopped.wait(AGAIN_SECONDS):
                    return
                self._waiting.put(refusal)

    def stop(self) -> None:
        """Let :meth:`run` end."""
        self._stopped.set()
        self._waiting.put(None)

    def _act(self, refusal: Refusal) -> None:
        path = (
            f"/api/v1/namespaces/{refusal.namespace}/pods/{refusal.name}" if refusal.name else ""
        )
        pod = apiserver.find_pod(self._api, self._node, refusal.uid, path)
        if pod is None:
            return
        meta = pod["metadata"]
        folder = f"/api/v1/namespaces/{meta['namespace']}"
        self._call(f"{folder}/events", _event(meta, refusal.text, self._node))
        if refusal.evict and meta.get("ownerReferences"):
            gone = {"preconditions": {"uid": refusal.uid}}
            body = {
                "apiVersion": "policy/v1",
                "kind": "Eviction",
                "metadata": {"name": meta["name"], "namespace": meta["namespace"]},
                "deleteOptions": gone,
            }
            self._call(f"{folder}/pods/{meta['name']}/eviction", body)
            log.info("evicted %s/%s: %s", meta["namespace"], meta["name"], refusal.text)

    def _call(self, path: str, body: dict[str, Any]) -> None:
        try:
            self._api.call("POST", path, body=body)
        except apiserver.ServerError as exc:
            if exc.status not in (
                apiserver.GONE,
                _CONFLICT,
            ):  # it is not there any more, or was said
                raise


def _event(meta: Mapping[str, Any], text: str, node: str) -> dict[str, Any]:
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "metadata": {"generateName": f"{meta['name']}.", "namespace": meta["namespace"]},
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": meta["namespace"],
            "name": meta["name"],
            "uid": meta["uid"],
        },
        "type": "Warning",
        "reason": REASON,
        "message": text[:1000],
        "source": {"component": "pyvgpu", "host": node},
        "reportingComponent": "pyvgpu.io/device-plugin",
        "reportingInstance": node,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
