"""Cuts usage files that a container makes longer, as soon as the kernel tells of it.

A container writes its usage file through memory that it maps, and no file system can let it do
that and nothing else. What it adds would be the node's disk. Every change that is no store to
memory is told to us, and the file has its length back within some milliseconds.
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

    from pyvgpu.deviceplugin.folders import Folders

log = logging.getLogger(__name__)

LOOK_SECONDS = 5.0  # between two looks at all of them, whatever is told
UNTOLD_SECONDS = 1.0  # the same where the kernel tells nothing
_PAUSE_SECONDS = 0.005  # so that who writes without end costs us little
_AGAIN_SECONDS = 60.0  # between two words about one of them
_COMINGS = flags.CREATE | flags.MOVED_TO | flags.ONLYDIR
_CHANGES = flags.MODIFY | flags.ONLYDIR


class Guard:
    """Watches over the usage files of all grants, from :meth:`run` until :meth:`stop`."""

    def __init__(self, folders: Folders) -> None:
        self._folders = folders
        self._stopped = threading.Event()
        self._told: INotify | None = None
        self._comings = -1  # what inotify calls the folder of all
        self._watched: dict[int, str] = {}  # grants, by what inotify calls their folders
        self._said: dict[str, float] = {}  # when something was said of a grant

    def stop(self) -> None:
        """Let :meth:`run` end soon."""
        self._stopped.set()
        if self._told is not None:
            with contextlib.suppress(OSError, ValueError):  # it has ended
                self._told.rm_watch(self._comings)  # of which the kernel tells who waits

    def run(self) -> None:
        """Watch; what is too long already is cut first."""
        try:
            told = INotify()
        except OSError as exc:
            log.warning("looking at usage files only each %s s: %s", UNTOLD_SECONDS, exc)
            while not self._stopped.is_set():
                self._cut(self._folders.present())
                self._stopped.wait(UNTOLD_SECONDS)
            return
        with told:
            self._watch(told)

    def _watch(self, told: INotify) -> None:
        self._comings = told.add_watch(self._folders.folder, _COMINGS)
        self._told = told
        due = 0.0
        while not self._stopped.is_set():
            if time.monotonic() >= due:
                present = self._folders.present()
                for grant_id in present - frozenset(self._watched.values()):
                    self._add(told, grant_id)
                self._cut(present)
                due = time.monotonic() + LOOK_SECONDS
            left = max(0.0, due - time.monotonic())
            events = told.read(timeout=math.ceil(1000 * left))
            self._cut(self._changed(told, events))
            if events:
                self._stopped.wait(_PAUSE_SECONDS)

    def _changed(self, told: INotify, events: Iterable[Event]) -> set[str]:
        """Return the grants in which something has changed, those that are new included."""
        found = set()
        for event in events:
            if event.wd in self._watched:
                grant_id = self._watched[event.wd]
                if event.mask & flags.IGNORED:  # it is gone
                    del self._watched[event.wd]
                elif event.name == names.USAGE_FILE:
                    found.add(grant_id)
            elif grants.is_id(event.name):
                self._add(told, event.name)
                found.add(event.name)
        return found

    def _add(self, told: INotify, grant_id: str) -> None:
        with contextlib.suppress(OSError):  # gone already, or only a specification is there
            watched = told.add_watch(self._folders.path(grant_id), _CHANGES)
            self._watched[watched] = grant_id

    def _cut(self, changed: Iterable[str]) -> None:
        now = time.monotonic()
        for grant_id in changed:
            if self._folders.cut(grant_id) and now >= self._said.get(grant_id, 0.0):
                log.warning("cut the usage file of %s, which its container made longer", grant_id)
                self._said[grant_id] = now + _AGAIN_SECONDS
        self._said = {grant_id: at for grant_id, at in self._said.items() if at > now}
