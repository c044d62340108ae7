"""Keep a node's mirror up to date with the installed driver, without a restart.

This module decides when to look for a driver; ``node_mirror`` mirrors it. A package manager writes
a driver file by file, so a rescan is delayed until the folders have been quiet for a moment
(debounced). A driver that cannot be mirrored is more often half installed than broken, so it is
retried with backoff, even without changes.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from typing import TYPE_CHECKING, Protocol

from pyvgpu import errors
from pyvgpu.volumes import node_mirror

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from pyvgpu.volumes import folder_watch, installation

log = logging.getLogger(__name__)

# From the last change of a file to its mirror no more than ten seconds may pass: five until
# polling detects it, if inotify does not (folder_watch.RESCAN_SECONDS), these, and the creation.
QUIET_SECONDS = 1.5
LONGEST_UNQUIET_SECONDS = 30.0
RETRY_SECONDS = 4.0  # doubled each time, up to
LONGEST_SECONDS = 60.0
IDLE_SECONDS = 300.0  # after which everything is scanned again, even without changes


class DriverFinder(Protocol):
    """Looks for a driver."""

    def find(self) -> installation.Installation:
        """Return the driver, or raise a PyVgpuError."""

    def folders(self) -> Iterable[Path]:
        """Return the folders in which a driver would appear, whether they exist or not."""


@dataclasses.dataclass(frozen=True, slots=True)
class News:
    """The result of a scan."""

    state: node_mirror.MirrorState
    removed: tuple[Path, ...] = ()  # unused trees


class DriverFollower:
    """Mirrors the driver that the finder finds, until it is stopped."""

    def __init__(
        self,
        finder: DriverFinder,
        mirror: node_mirror.NodeMirror,
        watched: folder_watch.FolderWatch,
        report: Callable[[News], None],
    ) -> None:
        self._finder = finder
        self._node = mirror
        self._watch = watched
        self._report = report
        self._stopped = False
        self._problem = ""  # the last logged error about old trees

    def stop(self) -> None:
        """End :meth:`run` soon; may be called from a signal handler or another thread."""
        self._stopped = True
        self._watch.wake()

    def run(self) -> None:
        """Loop: scan, mirror, report, wait for a change."""
        retry = RETRY_SECONDS
        while not self._stopped:
            self._watch.watch(self._finder.folders())  # first, so that no change is missed
            state = self._mirror()
            self._report(News(state, self._collect()))
            again = state.driver is node_mirror.DriverState.UNUSABLE or state.specification
            changed = self._watch.wait(retry if again else IDLE_SECONDS)
            if changed:
                self._wait_for_quiet()
            retry = min(2 * retry, LONGEST_SECONDS) if again and not changed else RETRY_SECONDS

    def _mirror(self) -> node_mirror.MirrorState:
        try:
            return self._node.mirror(self._finder.find())
        except errors.PyVgpuError as exc:
            return self._node.mark(exc)

    def _collect(self) -> tuple[Path, ...]:
        try:
            return self._node.collect()
        except errors.PyVgpuError as exc:
            if str(exc) != self._problem:
                log.warning("left old trees where they are: %s", exc)
            self._problem = str(exc)
            return ()

    def _wait_for_quiet(self) -> None:
        end = time.monotonic() + LONGEST_UNQUIET_SECONDS
        while self._watch.wait(QUIET_SECONDS) and not self._stopped and time.monotonic() < end:
            pass
