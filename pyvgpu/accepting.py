"""What a server does when it cannot accept a connection.

Most reasons pass: the process or the node has no file descriptor, memory or thread left, or the
client has gone. The listening socket stays readable meanwhile, so that a loop without a pause
would take a whole processor, and a loop that ends would leave a socket that answers nothing.
"""

from __future__ import annotations

import logging
import threading

log = logging.getLogger(__name__)

PAUSE_SECONDS = 0.1


class Failures:
    """Logs the first of consecutive failures to accept, and pauses after each."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._failing = False
        self._stopped = threading.Event()

    def stop(self) -> None:
        """End a pause at once: the server stops."""
        self._stopped.set()

    def pause(self, exc: OSError | RuntimeError) -> None:
        """Pause after *exc*, until the server stops at the latest."""
        if not self._failing and not self._stopped.is_set():
            log.warning(
                "cannot accept connections at %s: %s; retrying every %s s",
                self._address,
                exc,
                PAUSE_SECONDS,
            )
        self._failing = True
        self._stopped.wait(PAUSE_SECONDS)

    def passed(self) -> None:
        """Note that a connection was accepted."""
        if self._failing:
            log.info("accepting connections at %s again", self._address)
        self._failing = False
