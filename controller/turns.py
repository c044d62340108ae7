"""Take turns on a queue while the API server answers and this process may act."""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING

from pyvgpu.controller import pace
from pyvgpu.kube import backoff

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator

    from pyvgpu.controller import work
    from pyvgpu.kube import apiserver

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.2  # between looks for the lease


class Turns:
    """Gives out what is due on a queue, and puts off what failed; several threads may use it."""

    def __init__(
        self, kind: str, queue: work.Queue, gate: pace.Gate, may_act: Callable[[], bool]
    ) -> None:
        self._kind = kind  # of what is on the queue, for the log
        self._queue = queue
        self._gate = gate
        self._may_act = may_act
        self._attempts: dict[str, int] = {}

    def take(self, stop: threading.Event) -> Iterator[str]:
        """Give one name after the other until *stop*, or until the queue is closed."""
        while not stop.is_set():
            self._gate.wait(stop)
            if not self._may_act():
                stop.wait(_LOOK_SECONDS)
                continue
            name = self._queue.take()
            if name is None:
                return
            try:
                yield name
            finally:
                self._queue.done(name)

    def passed(self, name: str) -> None:
        """Note that *name* did not fail."""
        self._attempts.pop(name, None)

    def failed(self, name: str, exc: apiserver.ServerError) -> None:
        """Let *name* be due again, the later the oftener it fails."""
        if pace.is_down(exc.status):
            self._gate.failed(exc.status, exc.retry_after)
        attempt = self._attempts[name] = self._attempts.get(name, 0) + 1
        seconds = backoff.delay(attempt, random.random(), exc.status, exc.retry_after)  # noqa: S311
        log.warning("%s %s: %s; again in %.1f s", self._kind, name, exc, seconds)
        self._queue.add(name, seconds)
