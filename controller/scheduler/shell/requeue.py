"""Requeue pending pods in kube-scheduler when devices have been freed.

kube-scheduler does so itself when a pod ends, but often a moment before our watch sees that end;
it never learns of reservations that were dropped. After a refusal by an extender it retries a pod
upon any change of any bound pod: so one write to our own pod requeues all, however many wait, and
needs no permission to write to theirs. Nothing is written while no waiting pod would fit.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from pyvgpu import names
from pyvgpu.kube import apiserver

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from pyvgpu.controller.scheduler.shell import leader_label

log = logging.getLogger(__name__)

ANNOTATION = f"{names.DOMAIN}/woken"
LEAST_SECONDS = 1.0  # between two writes
AGAIN_SECONDS = 2.0  # until a failed write is tried again


class Waker:
    """Writes to our own pod when waiting pods may fit."""

    def __init__(
        self,
        own: leader_label.OwnPod,
        freed: Callable[[], Collection[object]],
        counted: Callable[[], None],
    ) -> None:
        """Write nothing yet.

        *freed* returns waiting pods that may fit now, each once; *counted* is called per write.
        """
        self._own = own
        self._freed = freed
        self._counted = counted
        self._due = threading.Event()

    def look(self) -> None:
        """Check soon whether a waiting pod fits: devices were freed."""
        self._due.set()

    def run(self, stop: threading.Event) -> None:
        """Requeue pods until *stop*; call :meth:`look` after setting it, which ends the wait."""
        waiting: Collection[object] = ()
        while not stop.is_set():
            self._due.wait(AGAIN_SECONDS if waiting else None)
            self._due.clear()
            if stop.is_set():
                return
            waiting = self._freed() or waiting
            if waiting and self._wake(len(waiting)):
                waiting = ()
                stop.wait(LEAST_SECONDS)

    def _wake(self, count: int) -> bool:
        log.debug("requeued waiting pods: %d may fit", count)
        try:
            self._own.annotate({ANNOTATION: str(time.time_ns())})
        except apiserver.ServerError as exc:
            log.warning("cannot requeue waiting pods: %s", exc)
            return False
        self._counted()
        return True
