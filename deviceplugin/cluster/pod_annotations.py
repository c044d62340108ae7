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

POLL_SECONDS = 5.0  # while no pod changes, for containers granted since


class PodAnnotations:
    """Follows annotations from :meth:`run` until :meth:`stop`."""

    def __init__(
        self,
        known: node_pods.Pods,
        grant_manager: GrantManager,
        report: Callable[[events.GrantEvent], None],
    ) -> None:
        self._known = known
        self._grant_manager = grant_manager
        self._report = report
        self._changed = threading.Event()
        self._stopped = False

    def changed(self, _: str) -> None:
        """Wake :meth:`run`: a pod has changed."""
        self._changed.set()

    def stop(self) -> None:
        """Let :meth:`run` end soon."""
        self._stopped = True
        self._changed.set()

    def run(self) -> None:
        """Apply annotations after each change of a pod, and every POLL_SECONDS."""
        while True:
            self._changed.wait(POLL_SECONDS)
            self._changed.clear()
            if self._stopped:
                return
            self.poll()

    def poll(self) -> None:
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
            time_sharing, priority = elastic.read(annotations), elastic.read_priority(annotations)
            if resize.with_time_sharing(grant, time_sharing, priority) != grant:
                self._grant_manager.change(
                    grant.id,
                    lambda current: resize.with_time_sharing(current, time_sharing, priority),
                )
        except errors.UsageError as exc:
            reason = events.Reason.NOT_RESIZED
            self._report(
                events.GrantEvent(meta["uid"], meta["namespace"], meta["name"], str(exc), reason)
            )
        except errors.PyVgpuError as exc:
            log.warning("could not change grant %s: %s", grant.id, exc)
