"""Who leads is seen from outside: the leader has a label on its own pod, which a Service selects.

All replicas are ready, so that a rollout does not wait for one that cannot lead yet, and
kube-scheduler reaches the one that answers. A leader that died has its label still: whoever leads
next takes it away. The same pod is written to when pods that wait are to be looked at again: see
``waking``.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pyvgpu import names
from pyvgpu.controller import objects
from pyvgpu.kube import apiserver

if TYPE_CHECKING:
    from collections.abc import Mapping

log = logging.getLogger(__name__)

LEASE = "pyvgpu-scheduler"
LABEL = f"{names.DOMAIN}/scheduler"
LEADS = "leads"  # its value


class OwnPod:
    """The pod that this program is in; without a name it is in none, and nothing is written."""

    def __init__(self, api: apiserver.ApiServer, namespace: str, name: str) -> None:
        self._api = api
        self._folder = f"/api/v1/namespaces/{namespace}/pods"
        self._name = name

    def lead(self) -> None:
        """Let the Service lead here, and nowhere else. ServerError where that was not done."""
        if not self._name:
            return
        others, _ = self._api.items(self._folder, {"labelSelector": f"{LABEL}={LEADS}"})
        for pod in others:
            name = str(objects.section(pod, "metadata").get("name"))
            if name != self._name:
                self._label(name, None)
        self._label(self._name, LEADS)

    def follow(self) -> None:
        """Let the Service lead here no more, if the API server can be reached."""
        if not self._name:
            return
        try:
            self._label(self._name, None)
        except apiserver.ServerError as exc:
            log.warning("did not take label %s away: %s", LABEL, exc)

    def annotate(self, noted: Mapping[str, str]) -> None:
        """Write annotations. ServerError where that was not done."""
        if self._name:
            self._patch(self._name, {"annotations": dict(noted)})

    def _label(self, name: str, value: str | None) -> None:
        try:
            self._patch(name, {"labels": {LABEL: value}})
        except apiserver.ServerError as exc:
            if name == self._name or exc.status != 404:  # another may be gone by now
                raise

    def _patch(self, name: str, metadata: Mapping[str, object]) -> None:
        body = {"metadata": metadata}
        self._api.call("PATCH", f"{self._folder}/{name}", body=body, kind=apiserver.MERGE_PATCH)
