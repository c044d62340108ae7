"""Worker loop: process keys while we hold the lease; requeue failures with backoff."""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING

from pyvgpu.kube import backoff, rate_limit

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator

    from pyvgpu.kube import apiserver, work_queue

log = logging.getLogger(__name__)

_POLL_SECONDS = 0.2  # between checks of the lease


class WorkLoop:
    """Yields due names of a queue and requeues failed ones; thread-safe."""

    def __init__(
        self,
        kind: str,
        queue: work_queue.Queue,
        gate: rate_limit.Gate,
        may_act: Callable[[], bool],
    ) -> None:
        self._kind = kind  # of the queued objects, for the log
        self._queue = queue
        self._gate = gate
        self._may_act = may_act
        self._attempts: dict[str, int] = {}

    def keys(self, stop: threading.Event) -> Iterator[str]:
        """Yield due names until *stop*, or until the queue is closed."""
        while not stop.is_set():
            self._gate.wait(stop)
            if not self._may_act():
                stop.wait(_POLL_SECONDS)
                continue
            name = self._queue.take()
            if name is None:
                return
            try:
                yield name
            finally:
                self._queue.done(name)

    def succeeded(self, name: str) -> None:
        """Reset the backoff of *name*."""
        self._attempts.pop(name, None)

    def failed(self, name: str, exc: apiserver.ServerError) -> None:
        """Requeue *name* with exponential backoff."""
        if rate_limit.is_down(exc.status):
            self._gate.failed(exc.status, exc.retry_after)
        attempt = self._attempts[name] = self._attempts.get(name, 0) + 1
        seconds = backoff.delay(attempt, random.random(), exc.status, exc.retry_after)  # noqa: S311
        log.warning("%s %s: %s; retrying in %.1f s", self._kind, name, exc, seconds)
        self._queue.add(name, seconds)
