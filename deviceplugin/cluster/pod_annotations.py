"""Apply the sharing annotations of running pods to their grants; see allocator/elastic.py."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from pyvgpu import errors
from pyvgpu.allocator import elastic
from pyvgpu.deviceplugin.grants import events, resize

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyvgpu.deviceplugin.cluster import node_pods
    from pyvgpu.deviceplugin.grants import Grant
    from pyvgpu.deviceplugin.grants.manager import GrantManager

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0  # between two looks without a change, for containers granted since


class PodAnnotations:
    """Follows annotations from :meth:`run` until :meth:`stop`."""

    def __init__(
        self,
        known: node_pods.Pods,
        grant_manager: GrantManager,
        tell: Callable[[events.GrantEvent], None],
    ) -> None:
        self._known = known
        self._grant_manager = grant_manager
        self._tell = tell
        self._changed = threading.Event()
        self._stopped = False

    def changed(self, _: str) -> None:
        """Request a look soon, since a pod has changed."""
        self._changed.set()

    def stop(self) -> None:
        """Let :meth:`run` end soon."""
        self._stopped = True
        self._changed.set()

    def run(self) -> None:
        """Look after each change of a pod, and every LOOK_SECONDS."""
        while True:
            self._changed.wait(LOOK_SECONDS)
            self._changed.clear()
            if self._stopped:
                return
            self.look()

    def look(self) -> None:
        """Apply all annotations once."""
        for grant in list(self._grant_manager.known.values()):
            if grant.whole or grant.owner is None:
                continue
            pod = self._known.seen(grant.owner.uid)
            if pod is not None:
                self._follow(grant, pod["metadata"])

    def _follow(self, grant: Grant, meta: dict[str, Any]) -> None:
        try:
            annotations = meta.get("annotations") or {}
            wish, priority = elastic.read(annotations), elastic.read_priority(annotations)
            if resize.wished(grant, wish, priority) != grant:
                self._grant_manager.change(
                    grant.id, lambda current: resize.wished(current, wish, priority)
                )
        except errors.UsageError as exc:
            reason = events.Reason.NOT_RESIZED
            self._tell(
                events.GrantEvent(meta["uid"], meta["namespace"], meta["name"], str(exc), reason)
            )
        except errors.PyVgpuError as exc:
            log.warning("could not change grant %s: %s", grant.id, exc)
