"""Reconcile loop for one object in the API server.

It runs each minute while it succeeds, and with exponential backoff and jitter while it fails,
whatever the reason: an API server that refuses a write for good, such as by an admission policy,
answers each attempt at once.
"""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING

from pyvgpu import errors
from pyvgpu.kube import apiserver, backoff

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

log = logging.getLogger(__name__)

INTERVAL_SECONDS = 60
LONGEST_SECONDS = 30.0  # between attempts


class Upkeep:
    """Calls a function periodically, and remembers why it failed last."""

    def __init__(self, subject: str) -> None:
        self._subject = subject
        self.trouble = ""  # why the last attempt failed; empty: it succeeded

    def run(self, attempt: Callable[[], None], stop: threading.Event) -> None:
        """Call *attempt* until *stop*; it fails with PyVgpuError or OSError."""
        failures = 0
        while not stop.is_set():
            try:
                attempt()
            except (errors.PyVgpuError, OSError) as exc:
                failures += 1
                self.trouble = str(exc)
                seconds = _pause(failures, exc)
                log.warning("%s: %s; retrying in %.1f s", self._subject, exc, seconds)
                stop.wait(seconds)
            else:
                failures, self.trouble = 0, ""
                stop.wait(INTERVAL_SECONDS)

    def missing(self, what: str) -> str:
        """Return *what* is missing, with the reason of the last failure, for a readiness probe."""
        return f"{what}: {self.trouble}" if self.trouble else what


def _pause(failures: int, exc: Exception) -> float:
    after = exc.retry_after if isinstance(exc, apiserver.ServerError) else None
    seconds = backoff.delay(failures, random.random(), retry_after=after)  # noqa: S311
    return max(min(seconds, LONGEST_SECONDS), after or 0.0)
