"""Follow what pods that run say of time that nobody wants, as allocator/spare.py reads it.

The node's pods are asked for every few seconds, while any container has a share.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from pyvgpu import errors
from pyvgpu.allocator import spare
from pyvgpu.deviceplugin import apiserver, display, events, resize

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
        self._marks: dict[str, display.Marks] = {}

    def stop(self) -> None:
        """Let :meth:`run` end soon."""
        self._stopped.set()

    def marks(self, uid: str) -> display.Marks:
        """Return what gpu-manager shows of a pod besides, as far as it is known."""
        return self._marks.get(uid, display.NO_MARKS)

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
        bound = [it for it in self._granter.known.values() if it.owner is not None]
        if all(it.whole for it in bound):
            return
        uids = {it.owner.uid for it in bound if it.owner is not None}
        whole = not uids <= self._marks.keys()  # what is shown of a pod is read of it once
        # What the server remembers is new enough, and costs it nothing.
        query = {"fieldSelector": f"spec.nodeName={self._node}", "resourceVersion": "0"}
        accept = apiserver.ALL if whole else apiserver.METADATA_OF_LIST
        found = self._api.call("GET", "/api/v1/pods", query, accept=accept)
        pods = {uid: pod for pod in found["items"] for uid in apiserver.uids_of(pod)}
        if whole:
            self._marks = {uid: display.marks_of(pods[uid]) for uid in uids if uid in pods}
        else:
            self._marks = {uid: it for uid, it in self._marks.items() if uid in uids}
        for grant in bound:
            if not grant.whole and grant.owner is not None and grant.owner.uid in pods:
                self._follow(grant, pods[grant.owner.uid]["metadata"])

    def _follow(self, grant: Grant, meta: dict[str, Any]) -> None:
        try:
            wish = spare.read(meta.get("annotations") or {})
            if resize.wished(grant, wish) != grant:
                self._granter.change(grant.id, lambda it: resize.wished(it, wish))
        except errors.UsageError as exc:
            reason = events.Reason.NOT_RESIZED
            self._tell(
                events.Event(meta["uid"], meta["namespace"], meta["name"], str(exc), reason)
            )
        except errors.PyVgpuError as exc:
            log.warning("could not change grant %s: %s", grant.id, exc)
