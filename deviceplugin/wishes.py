"""Follow how pods that run want to share a device's time, as allocator/spare.py reads it."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

from pyvgpu import errors
from pyvgpu.allocator import spare
from pyvgpu.deviceplugin import display, events, pods, resize

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyvgpu.deviceplugin.granting import Granter
    from pyvgpu.deviceplugin.grants import Grant

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0  # after which a container that has got a share since is looked at, too


class Wishes:
    """Follows annotations from :meth:`run` until :meth:`stop`."""

    def __init__(
        self, known: pods.Pods, granter: Granter, tell: Callable[[events.Event], None]
    ) -> None:
        self._known = known
        self._granter = granter
        self._tell = tell
        self._changed = threading.Event()
        self._stopped = False

    def changed(self, _: str) -> None:
        """Let it be looked soon, since a pod has changed."""
        self._changed.set()

    def stop(self) -> None:
        """Let :meth:`run` end soon."""
        self._stopped = True
        self._changed.set()

    def marks(self, uid: str) -> display.Marks:
        """Return what gpu-manager shows of a pod besides, as far as it is known."""
        pod = self._known.seen(uid)
        return display.NO_MARKS if pod is None else display.marks_of(pod)

    def run(self) -> None:
        """Look whenever a pod has changed, and now and then."""
        while True:
            self._changed.wait(LOOK_SECONDS)
            self._changed.clear()
            if self._stopped:
                return
            self.look()

    def look(self) -> None:
        """Look once."""
        for grant in list(self._granter.known.values()):
            if grant.whole or grant.owner is None:
                continue
            pod = self._known.seen(grant.owner.uid)
            if pod is not None:
                self._follow(grant, pod["metadata"])

    def _follow(self, grant: Grant, meta: dict[str, Any]) -> None:
        try:
            annotations = meta.get("annotations") or {}
            wish, priority = spare.read(annotations), spare.read_priority(annotations)
            if resize.wished(grant, wish, priority) != grant:
                self._granter.change(grant.id, lambda it: resize.wished(it, wish, priority))
        except errors.UsageError as exc:
            reason = events.Reason.NOT_RESIZED
            self._tell(
                events.Event(meta["uid"], meta["namespace"], meta["name"], str(exc), reason)
            )
        except errors.PyVgpuError as exc:
            log.warning("could not change grant %s: %s", grant.id, exc)
