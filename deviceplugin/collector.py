"""Ends the grants of pods that are over, every other second, and has room for others ready."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from pyvgpu import errors

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyvgpu.deviceplugin.granting import Granter
    from pyvgpu.deviceplugin.making import Grants

log = logging.getLogger(__name__)

COLLECT_SECONDS = 2.0  # dead grants are gone within 5 s

_KUBELET_SECONDS = 30.0  # between two words on what is in the way


class Collector:
    """Collects for one granter."""

    def __init__(self, granter: Granter, made: Grants) -> None:
        self._granter = granter
        self._made = made
        self._silent_since: float | None = None
        self._looked = time.monotonic()

    @property
    def idle_seconds(self) -> float:
        """How long ago the last look has ended, whatever came of it."""
        return time.monotonic() - self._looked

    def run(self, wait: Callable[[float], bool]) -> None:
        """Collect until *wait* says, after some seconds, that there is no more need.

        The first time at once: kubelet looks after its own list of who lives when it is asked for
        it, and writes that down when we register.
        """
        due = 0.0
        while not wait(due):
            due = COLLECT_SECONDS
            try:
                self._granter.collect()
                self._made.collect(self._granter.wanted)
                self._made.fill()
                self._silent_since = None
            except errors.PyVgpuError as exc:  # to be started again would not help
                self._complain(exc)
            self._looked = time.monotonic()

    def _complain(self, exc: errors.PyVgpuError) -> None:
        now = time.monotonic()
        if self._silent_since is None or now - self._silent_since > _KUBELET_SECONDS:
            log.warning("nothing can be collected: %s", exc)
            self._silent_since = now
