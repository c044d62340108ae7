"""Delete pods that can never start here, so that their owners create others, perhaps elsewhere.

A deletion, not the eviction API: an admission policy can check the node of a pod that is deleted,
but an Eviction does not name it, so the agent would need the permission to evict every pod of the
cluster. Disruption budgets are not asked; a pod that cannot start is not available anyway.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING

from pyvgpu.kube import apiserver, backoff, rate_limit, work_loop, work_queue

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from pyvgpu.deviceplugin.grants.events import GrantEvent, Reason

log = logging.getLogger(__name__)

AGAIN_SECONDS = 10.0  # before a deletion is retried that the API server defers


@dataclasses.dataclass(frozen=True, slots=True)
class Eviction:
    """A pod to delete; never a later one of the same name."""

    uid: str
    namespace: str
    name: str
    why: str
    of: GrantEvent  # that announced it


class PodEvictor:
    """Deletes pods, one after the other, on the thread of :meth:`run`."""

    def __init__(self, api: apiserver.ApiServer, done: Callable[[Eviction], object]) -> None:
        self._api = api
        self._done = done
        self._waiting: dict[str, Eviction] = {}  # by uid
        self._gate = rate_limit.Gate()
        self._queue = work_queue.Queue()
        self._turns = work_loop.Turns("eviction of pod", self._queue, self._gate, lambda: True)

    def add(self, eviction: Eviction) -> None:
        """Queue an eviction."""
        self._waiting[eviction.uid] = eviction
        self._queue.add(eviction.uid)

    def withdraw(self, uid: str, reason: Reason) -> None:
        """Drop a pod's eviction that was announced for *reason* and not done yet."""
        eviction = self._waiting.get(uid)
        if eviction is not None and eviction.of.reason is reason:
            self._waiting.pop(uid, None)

    def run(self, stop: threading.Event) -> None:
        """Evict until *stop*, or until :meth:`close`."""
        for uid in self._turns.take(stop):
            if (eviction := self._waiting.get(uid)) is not None:
                self._evict(eviction)

    def close(self) -> None:
        """Let :meth:`run` end."""
        self._queue.close()

    def _evict(self, eviction: Eviction) -> None:
        path = f"/api/v1/namespaces/{eviction.namespace}/pods/{eviction.name}"
        body = {"preconditions": {"uid": eviction.uid}}
        label = f"{eviction.namespace}/{eviction.name}"
        try:
            self._api.call("DELETE", path, body=body, patience=0.0)
        except apiserver.ServerError as exc:
            if exc.status == apiserver.TOO_MANY:
                log.warning("cannot delete %s yet: %s", label, exc)
                self._queue.add(eviction.uid, exc.retry_after or AGAIN_SECONDS)
                return
            if exc.status not in (apiserver.NOT_FOUND, apiserver.CONFLICT):
                if not backoff.is_final(exc.status):
                    self._turns.failed(eviction.uid, exc)
                    return
                log.warning("gave up the deletion of %s: %s", label, exc)
        else:
            log.info("deleted %s: %s", label, eviction.why)
            self._done(eviction)
        self._gate.passed()
        self._turns.passed(eviction.uid)
        self._waiting.pop(eviction.uid, None)
