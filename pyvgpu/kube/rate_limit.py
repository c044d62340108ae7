"""Client-side rate limiter, and a circuit breaker for an unavailable API server."""

from __future__ import annotations

import random
import threading
import time
from typing import TYPE_CHECKING

from pyvgpu.kube import backoff

if TYPE_CHECKING:
    from collections.abc import Callable


def is_down(status: int) -> bool:
    """Return whether a status (0: no answer) means that the server serves no client."""
    return status in (0, 429) or status >= 500


class Gate:
    """Circuit breaker: holds its users back while the server is down, to prevent a flood later.

    When it opens, each waiting thread tries once; the first failure closes it again, for longer.
    """

    def __init__(self, chance: Callable[[], float] = random.random) -> None:
        self._chance = chance
        self._lock = threading.Lock()
        self._attempt = 0
        self._until = 0.0

    @property
    def is_open(self) -> bool:
        """Return whether requests may be sent now."""
        return time.monotonic() >= self._until

    def wait(self, stop: threading.Event) -> None:
        """Wait until it is open, or until *stop*."""
        while (left := self._until - time.monotonic()) > 0 and not stop.wait(left):
            pass

    def failed(self, status: int, retry_after: float | None = None) -> None:
        """Close it for a backoff delay if it is open: the server is down."""
        with self._lock:
            now = time.monotonic()
            if now < self._until:
                return
            self._attempt += 1
            self._until = now + backoff.delay(self._attempt, self._chance(), status, retry_after)

    def passed(self) -> None:
        """Note that the server answers."""
        with self._lock:
            self._attempt = 0


class Pace:
    """Rate limiter: *per_second*, with bursts of up to one second's worth."""

    def __init__(self, per_second: float) -> None:
        self._seconds = 1 / per_second
        self._lock = threading.Lock()
        self._next = 0.0

    def wait(self) -> None:
        """Block until the next request is allowed."""
        with self._lock:
            now = time.monotonic()
            self._next = max(self._next, now - 1) + self._seconds
            left = self._next - now
        if left > 0:
            time.sleep(left)
