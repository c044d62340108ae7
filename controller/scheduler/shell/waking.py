"""Wakes pods that wait: kube-scheduler looks at them again when something has been freed.

It does so by itself when a pod ends, but often a moment before we have heard of that end; of what
was reserved and is not any more it never hears at all. After a refusal by an extender it tries a
pod again upon any change of any pod that is bound: so one write to our own pod wakes all, however
many wait, and needs no right to write to theirs. Nobody is woken while nobody would fit.
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

    from pyvgpu.controller.scheduler.shell import leading

log = logging.getLogger(__name__)

ANNOTATION = f"{names.DOMAIN}/woken"
LEAST_SECONDS = 1.0  # between two writes
AGAIN_SECONDS = 2.0  # until what the API server did not take is written again


class Waker:
    """Writes to our own pod when pods that wait may fit."""

    def __init__(
        self,
        own: leading.OwnPod,
        freed: Callable[[], Collection[object]],
        counted: Callable[[], None],
    ) -> None:
        """Wake nobody yet.

        *freed* returns pods that waited and may fit now, each once; *counted* is told of writes.
        """
        self._own = own
        self._freed = freed
        self._counted = counted
        self._due = threading.Event()

    def look(self) -> None:
        """Look soon whether somebody may fit: something was freed."""
        self._due.set()

    def run(self, stop: threading.Event) -> None:
        """Wake until *stop*; who is told to stop is to be told to look, too."""
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
        log.debug("wakes all that wait: %d may fit", count)
        try:
            self._own.annotate({ANNOTATION: str(time.time_ns())})
        except apiserver.ServerError as exc:
            log.warning("did not wake waiting pods: %s", exc)
            return False
        self._counted()
        return True
