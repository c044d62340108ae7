"""How fast the API server is asked: never faster than was agreed, and hardly while it is down."""

from __future__ import annotations

import random
import threading
import time
from typing import TYPE_CHECKING

from pyvgpu.kube import backoff

if TYPE_CHECKING:
    from collections.abc import Callable


def is_down(status: int) -> bool:
    """Tell whether an answer (0: none) says that the server does nothing for anybody now."""
    return status in (0, 429) or status >= 500


class Gate:
    """Holds all who share it back while the server is down, so that work piled up is no flood.

    Of those who find it closed each tries once when it opens; the first failure closes it again,
    for longer.
    """

    def __init__(self, chance: Callable[[], float] = random.random) -> None:
        self._chance = chance
        self._guard = threading.Lock()
        self._attempt = 0
        self._until = 0.0

    @property
    def is_open(self) -> bool:
        """Tell whether nobody has to wait."""
        return time.monotonic() >= self._until

    def wait(self, stop: threading.Event) -> None:
        """Wait until it is open, or until *stop*."""
        while (left := self._until - time.monotonic()) > 0 and not stop.wait(left):
            pass

    def failed(self, status: int, retry_after: float | None = None) -> None:
        """Close it, if it is open: the server is down."""
        with self._guard:
            now = time.monotonic()
            if now < self._until:
                return
            self._attempt += 1
            self._until = now + backoff.delay(self._attempt, self._chance(), status, retry_after)

    def passed(self) -> None:
        """Note that the server answers."""
        with self._guard:
            self._attempt = 0


class Pace:
    """Lets so many pass a second, as many as a second's at once."""

    def __init__(self, per_second: float) -> None:
        self._seconds = 1 / per_second
        self._guard = threading.Lock()
        self._next = 0.0

    def wait(self) -> None:
        """Wait for one's turn."""
        with self._guard:
            now = time.monotonic()
            self._next = max(self._next, now - 1) + self._seconds
            left = self._next - now
        if left > 0:
            time.sleep(left)
