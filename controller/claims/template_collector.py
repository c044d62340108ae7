"""Garbage collection of claim templates that no pod references any more.

Stateless: each sweep lists templates and pods again. A template that is needed during a sweep gets
a new resourceVersion, so the API server refuses to delete it.
"""

from __future__ import annotations

import datetime
import logging
from typing import TYPE_CHECKING

from pyvgpu.controller.claims import templates
from pyvgpu.kube import apiserver

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

log = logging.getLogger(__name__)

SWEEP_SECONDS = 600.0
AGAIN_SECONDS = 30.0  # after a sweep that failed
_POLL_SECONDS = 1.0  # between checks of the lease


class TemplateCollector:
    """Sweeps periodically while it may act."""

    def __init__(
        self, api: apiserver.ApiServer, may_act: Callable[[], bool], collected: Callable[[], None]
    ) -> None:
        """Delete only while *may_act* returns true; call *collected* after each deletion."""
        self._api = api
        self._may_act = may_act
        self._collected = collected

    def run(self, stop: threading.Event) -> None:
        """Sweep until *stop*."""
        while not stop.is_set():
            if not self._may_act():
                stop.wait(_POLL_SECONDS)
                continue
            try:
                self.sweep()
                stop.wait(SWEEP_SECONDS)
            except apiserver.ServerError as exc:
                log.warning("could not sweep claim templates: %s", exc)
                stop.wait(AGAIN_SECONDS)

    def sweep(self) -> None:
        """Delete the templates that no pod references, not used for templates.KEPT."""
        found, _ = self._api.items(templates.ALL, templates.OURS)
        now = datetime.datetime.now(datetime.UTC)
        for namespace, candidates in templates.old(map(templates.read, found), now).items():
            for one in templates.unused(candidates, self._named_in(namespace)):
                if not self._may_act():
                    return
                self._delete(one)

    def _named_in(self, namespace: str) -> set[str]:
        named: set[str] = set()
        for page, _ in self._api.pages(f"/api/v1/namespaces/{namespace}/pods", {}):
            for pod in page:
                named |= templates.named_by(pod)
        return named

    def _delete(self, one: templates.Template) -> None:
        path = templates.path(one.namespace, one.name)
        body = {"preconditions": {"uid": one.uid, "resourceVersion": one.version}}
        try:
            self._api.call("DELETE", path, None, body)
        except apiserver.ServerError as exc:
            if not exc.outdated:
                raise
        else:
            log.info("collected template %s/%s", one.namespace, one.name)
            self._collected()
