"""Garbage collection: end the grants of finished pods every 2 s, and refill the folder pool."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from pyvgpu import errors

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyvgpu.deviceplugin.containers.backend import GrantBackend
    from pyvgpu.deviceplugin.grants.manager import GrantManager

log = logging.getLogger(__name__)

COLLECT_SECONDS = 2.0  # dead grants are gone within 5 s

_KUBELET_SECONDS = 30.0  # between two warnings while collection fails


class Collector:
    """Collects for one grant manager."""

    def __init__(self, grant_manager: GrantManager, made: GrantBackend) -> None:
        self._grant_manager = grant_manager
        self._made = made
        self._silent_since: float | None = None
        self._polled = time.monotonic()

    @property
    def idle_seconds(self) -> float:
        """Seconds since the last collection ended, successful or not."""
        return time.monotonic() - self._polled

    def run(self, wait: Callable[[float], bool]) -> None:
        """Collect periodically until *wait*, which sleeps for some seconds, returns true.

        The first time at once: PodResources makes kubelet update its own list of live pods, which
        it writes to its checkpoint when a plugin registers.
        """
        due = 0.0
        while not wait(due):
            due = COLLECT_SECONDS
            try:
                self._grant_manager.collect()
                self._made.collect(self._grant_manager.wanted)
                self._made.fill()
                self._silent_since = None
            except errors.PyVgpuError as exc:  # a restart would not help
                self._complain(exc)
            self._polled = time.monotonic()

    def _complain(self, exc: errors.PyVgpuError) -> None:
        now = time.monotonic()
        if self._silent_since is None or now - self._silent_since > _KUBELET_SECONDS:
            log.warning("garbage collection fails: %s", exc)
            self._silent_since = now
