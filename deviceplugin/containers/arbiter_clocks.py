"""Run the node's arbiter, and link its clocks into the grants: see :mod:`pyvgpu.machine.arbiter`.

The arbiter reads the folder of the grants, and runs as long as the agent does. Its own folder is
not mounted into containers, since it holds the clocks of all of them: each clock is hard-linked
into the grant's own folder ``clock``, under the number of the device, and again whenever the
arbiter has re-created it. Without an arbiter a container has its hard share.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import time
from typing import TYPE_CHECKING

from pyvgpu import errors, names, shim
from pyvgpu.deviceplugin.containers import cdi_edits
from pyvgpu.machine import arbiter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0
LINK_SECONDS = 10.0  # between two checks of all links, while nothing has changed
IDLE_SECONDS = 10.0  # between two checks of a live arbiter, while no grant has a clock

_LEAST_SECONDS = 2.0  # an arbiter that exits sooner has failed to start
_AGAIN_SECONDS = 30.0  # before the next attempt after such a failure


class Clocks:
    """Supervises the arbiter of one node; :meth:`poll` is called periodically, by one thread."""

    def __init__(
        self,
        registry: Path,
        other_registry: Path = names.SHARED_REGISTRY,
        nvml: Callable[[], arbiter.Nvml | None] = lambda: None,
    ) -> None:
        """*nvml* is called at each poll; when its result changes, the arbiter is restarted."""
        self._registry = registry
        self._nvml = nvml
        self._begun_with: arbiter.Nvml | None = None
        self._other_registry = other_registry
        self._folder = registry / f"{names.ARBITER_FOLDER}{os.geteuid()}"
        self._process: subprocess.Popen[bytes] | None = None
        self._complained = False
        self._doubted = False
        self._linked: object = None  # the state for which the links were last checked
        self._due = 0.0
        self._seen_until = 0.0  # without grants, the arbiter is not checked before this time
        self._begun = 0.0  # when an arbiter was last started

    def run(self, grants: Callable[[], Mapping[str, int]], wait: Callable[[float], bool]) -> None:
        """Call :meth:`poll` with the grants of *grants* until *wait* returns true; then stop."""
        try:
            while not wait(POLL_SECONDS):
                self.poll(grants())
        finally:
            self.stop()

    def poll(self, grants: Mapping[str, int]) -> None:
        """Ensure that the arbiter runs, and that the clocks of *grants* are linked.

        *grants*: the number of devices, by grant id.
        """
        if not grants and time.monotonic() < self._seen_until:
            return
        self._see()
        now = (dict(grants), _changed_at(self._folder))
        if now == self._linked and time.monotonic() < self._due:
            return
        self._linked, self._due = now, time.monotonic() + LINK_SECONDS
        for grant_id, count in grants.items():
            for index in range(count):
                with contextlib.suppress(OSError):  # the clock does not exist yet, or any more
                    self._link(grant_id, index)

    def stop(self) -> None:
        """Terminate the arbiter, even another agent's: only one agent has the node's state."""
        process, self._process = self._process, None
        if process is None:
            found = arbiter.examine(self._folder)
            if found is not None and found.pid > 0:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(found.pid, signal.SIGTERM)
            return
        process.terminate()
        try:
            process.wait(arbiter.TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _see(self) -> None:
        """Start an arbiter unless one runs; one left by a killed agent is adopted."""
        nvml = self._nvml()
        if nvml is not None and self._process is not None and nvml != self._begun_with:
            self.stop()
        found = arbiter.examine(self._folder)
        if found is not None and found.beats:
            self._doubted = self._complained = False
            self._seen_until = time.monotonic() + IDLE_SECONDS
            return
        self._seen_until = 0.0
        if self._has_failed():
            return
        begins = self._process is not None and self._process.poll() is None
        if (begins or found is not None) and not self._doubted:
            self._doubted = True  # it is just starting, or the whole node was suspended
            return
        self._doubted = False
        try:
            if self._process is not None:
                self.stop()
            arbiter.kill_frozen(self._folder)
            self._process = subprocess.Popen(
                [
                    shim.arbiter_program(),
                    "--foreground",
                    *(() if nvml is None else nvml.options),
                    self._folder,
                    self._registry,
                    self._other_registry,
                ],
                env={} if nvml is None else nvml.environment,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        except (OSError, errors.PyVgpuError) as exc:
            if not self._complained:
                log.warning("no arbiter runs; co-tenant GPU time cannot be attributed: %s", exc)
            self._complained = True
        else:
            self._begun, self._begun_with = time.monotonic(), nvml
            log.info("started the arbiter, pid %d", self._process.pid)

    def _has_failed(self) -> bool:
        """Return whether the arbiter has just exited by itself, as another one would."""
        code = None if self._process is None else self._process.poll()
        if code is None or code <= 0:  # it runs, or was killed by a signal
            return False
        since = time.monotonic() - self._begun
        if since < _LEAST_SECONDS and not self._complained:
            log.warning("co-tenant GPU time cannot be attributed: the arbiter exits with %d", code)
            self._complained = True
        return self._complained and since < _AGAIN_SECONDS

    def _link(self, grant_id: str, index: int) -> None:
        clock = self._folder / f"{grant_id}.{index}"
        place = self._registry / grant_id / cdi_edits.CLOCK_FOLDER / str(index)
        with contextlib.suppress(FileNotFoundError):
            if place.samefile(clock):
                return
        draft = place.with_name(f".{index}")
        draft.unlink(missing_ok=True)
        draft.hardlink_to(clock)
        draft.replace(place)


def _changed_at(folder: Path) -> object:
    """Return a value that changes whenever a file is added to, removed from or replaced in it."""
    try:
        found = folder.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns
