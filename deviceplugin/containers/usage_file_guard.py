"""Truncate usage files that a container extends, as soon as inotify reports the change.

A container writes its usage file through a shared mapping, and no file system can permit that and
nothing else. Whatever it appends would use up the node's disk. inotify reports every change except
stores to mapped memory, so the file has its length back within some milliseconds.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from typing import TYPE_CHECKING

from inotify_simple import INotify, flags

from pyvgpu import names
from pyvgpu.deviceplugin import grants

if TYPE_CHECKING:
    from collections.abc import Iterable

    from inotify_simple import Event

    from pyvgpu.deviceplugin.containers.store import GrantStore

log = logging.getLogger(__name__)

RESCAN_SECONDS = 5.0  # between two scans of all usage files, whatever inotify reports
POLL_SECONDS = 1.0  # the same where inotify is not available
_PAUSE_SECONDS = 0.005  # so that a container that writes endlessly costs the agent little
_AGAIN_SECONDS = 60.0  # between two warnings about the same grant
_COMINGS = flags.CREATE | flags.MOVED_TO | flags.ONLYDIR
_CHANGES = flags.MODIFY | flags.ONLYDIR


class UsageFileGuard:
    """Watches the usage files of all grants, from :meth:`run` until :meth:`stop`."""

    def __init__(self, folders: GrantStore) -> None:
        self._folders = folders
        self._stopped = threading.Event()
        self._inotify: INotify | None = None
        self._comings = -1  # inotify's watch descriptor of the folder that holds all grants
        self._watched: dict[int, str] = {}  # grants, by the watch descriptors of their folders
        self._said: dict[str, float] = {}  # by grant: no second warning before this time

    def stop(self) -> None:
        """Let :meth:`run` end soon."""
        self._stopped.set()
        if self._inotify is not None:
            with contextlib.suppress(OSError, ValueError):  # run() has ended
                self._inotify.rm_watch(self._comings)  # the kernel's event wakes the reader

    def run(self) -> None:
        """Watch; truncate files that are too long already first."""
        try:
            inotify = INotify()
        except OSError as exc:
            log.warning("no inotify; polling usage files each %s s: %s", POLL_SECONDS, exc)
            while not self._stopped.is_set():
                self._cut(self._folders.present())
                self._stopped.wait(POLL_SECONDS)
            return
        with inotify:
            self._watch(inotify)

    def _watch(self, inotify: INotify) -> None:
        self._comings = inotify.add_watch(self._folders.folder, _COMINGS)
        self._inotify = inotify
        due = 0.0
        while not self._stopped.is_set():
            if time.monotonic() >= due:
                present = self._folders.present()
                for grant_id in present - frozenset(self._watched.values()):
                    self._add(inotify, grant_id)
                self._cut(present)
                due = time.monotonic() + RESCAN_SECONDS
            left = max(0.0, due - time.monotonic())
            events = inotify.read(timeout=math.ceil(1000 * left))
            self._cut(self._changed(inotify, events))
            if events:
                self._stopped.wait(_PAUSE_SECONDS)

    def _changed(self, inotify: INotify, events: Iterable[Event]) -> set[str]:
        """Return the grants whose usage files have changed, new grants included."""
        found = set()
        for event in events:
            if event.wd in self._watched:
                grant_id = self._watched[event.wd]
                if event.mask & flags.IGNORED:  # the folder is gone
                    del self._watched[event.wd]
                elif event.name == names.USAGE_FILE:
                    found.add(grant_id)
            elif grants.is_id(event.name):
                self._add(inotify, event.name)
                found.add(event.name)
        return found

    def _add(self, inotify: INotify, grant_id: str) -> None:
        with contextlib.suppress(OSError):  # gone already, or only its CDI specification exists
            watched = inotify.add_watch(self._folders.path(grant_id), _CHANGES)
            self._watched[watched] = grant_id

    def _cut(self, changed: Iterable[str]) -> None:
        now = time.monotonic()
        for grant_id in changed:
            if self._folders.cut(grant_id) and now >= self._said.get(grant_id, 0.0):
                log.warning("truncated the usage file of %s: its container extended it", grant_id)
                self._said[grant_id] = now + _AGAIN_SECONDS
        self._said = {grant_id: at for grant_id, at in self._said.items() if at > now}
