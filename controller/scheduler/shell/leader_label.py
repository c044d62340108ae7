"""Route the Service to the leader by a label on the leader's own pod.

Readiness cannot select the leader: a rollout would wait for a replica that cannot lead yet. So all
replicas are ready, and the label selects the leader, the only one that answers kube-scheduler. A
leader that died still has the label: the next leader removes it. Writes to the same pod also
requeue waiting pods: see ``session.PodRequeuer``.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pyvgpu import names
from pyvgpu.kube import apiserver, objects

if TYPE_CHECKING:
    from collections.abc import Mapping

log = logging.getLogger(__name__)

LEASE = "pyvgpu-scheduler"
LABEL = f"{names.DOMAIN}/scheduler"
LEADS = "leads"  # its value


class OwnPod:
    """The pod of this process; with an empty *name* there is none, and nothing is written."""

    def __init__(self, api: apiserver.ApiServer, namespace: str, name: str) -> None:
        self._api = api
        self._folder = f"/api/v1/namespaces/{namespace}/pods"
        self._name = name

    def lead(self) -> None:
        """Let the Service select this pod and no other; ServerError if that was not done."""
        if not self._name:
            return
        others, _ = self._api.items(self._folder, {"labelSelector": f"{LABEL}={LEADS}"})
        for pod in others:
            name = str(objects.section(pod, "metadata").get("name"))
            if name != self._name:
                self._label(name, None)
        self._label(self._name, LEADS)

    def follow(self) -> None:
        """Remove this pod from the Service, if the API server can be reached."""
        if not self._name:
            return
        try:
            self._label(self._name, None)
        except apiserver.ServerError as exc:
            log.warning("cannot remove label %s: %s", LABEL, exc)

    def annotate(self, noted: Mapping[str, str]) -> None:
        """Write annotations; ServerError if that was not done."""
        if self._name:
            self._patch(self._name, {"annotations": dict(noted)})

    def _label(self, name: str, value: str | None) -> None:
        try:
            self._patch(name, {"labels": {LABEL: value}})
        except apiserver.ServerError as exc:
            if name == self._name or exc.status != 404:  # another pod may be gone by now
                raise

    def _patch(self, name: str, metadata: Mapping[str, object]) -> None:
        body = {"metadata": metadata}
        self._api.call("PATCH", f"{self._folder}/{name}", body=body, kind=apiserver.MERGE_PATCH)
