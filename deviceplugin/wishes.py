"""Follow what pods that run say of time that nobody wants: see resize.py for the annotations.

The node's pods are asked for every few seconds, while any container has a share.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from pyvgpu import errors
from pyvgpu.deviceplugin import apiserver, events, resize

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyvgpu.deviceplugin.granting import Granter
    from pyvgpu.deviceplugin.grants import Grant

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0


class Wishes:
    """Follows annotations from :meth:`run` until :meth:`stop`."""

    def __init__(
        self,
        api: apiserver.ApiServer,
        node: str,
        granter: Granter,
        tell: Callable[[events.Event], None],
    ) -> None:
        self._api = api
        self._node = node
        self._granter = granter
        self._tell = tell
        self._stopped = threading.Event()

    def stop(self) -> None:
        """Let :meth:`run` end soon."""
        self._stopped.set()

    def run(self) -> None:
        """Look again and again; what cannot be asked is asked the next time."""
        silent = False
        while not self._stopped.wait(LOOK_SECONDS):
            try:
                self.look()
                silent = False
            except apiserver.ServerError as exc:
                if not silent:
                    log.warning("could not ask what pods wish: %s", exc)
                silent = True

    def look(self) -> None:
        """Look once."""
        shared = [it for it in self._granter.known.values() if it.bound and not it.whole]
        if not shared:
            return
        # What the server remembers is new enough, and costs it nothing.
        query = {"fieldSelector": f"spec.nodeName={self._node}", "resourceVersion": "0"}
        found = self._api.call("GET", "/api/v1/pods", query)
        pods = {pod["metadata"]["uid"]: pod["metadata"] for pod in found["items"]}
        for grant in shared:
            if grant.owner is not None and grant.owner.uid in pods:
                self._follow(grant, pods[grant.owner.uid])

    def _follow(self, grant: Grant, meta: dict[str, Any]) -> None:
        try:
            wish = resize.read(meta.get("annotations") or {})
            if resize.wished(grant, wish) != grant:
                self._granter.change(grant.id, lambda it: resize.wished(it, wish))
        except errors.UsageError as exc:
            reason = events.Reason.NOT_RESIZED
            self._tell(
                events.Event(meta["uid"], meta["namespace"], meta["name"], str(exc), reason)
            )
        except errors.PyVgpuError as exc:
            log.warning("could not change grant %s: %s", grant.id, exc)
