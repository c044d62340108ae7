"""Watch folders for changes, by inotify and by polling.

inotify does not report changes on network file systems or of a folder that does not exist yet, and
it may be unavailable (fs.inotify.max_user_instances); so the folders are also polled every few
seconds, less often if inotify is available. Polling is a few calls of stat and reads no file.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import stat
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path
    from types import TracebackType

    import inotify_simple

log = logging.getLogger(__name__)

RESCAN_SECONDS = 5.0
POLL_SECONDS = 2.0  # the same without inotify


class FolderWatch:
    """Watches folders, not recursively. :meth:`wake` ends a wait from outside."""

    def __init__(self, *, inotify: bool = True) -> None:
        self._inotify = _open_inotify() if inotify else None
        self._poll_seconds = POLL_SECONDS if self._inotify is None else RESCAN_SECONDS
        self._watched: dict[Path, int] = {}
        self._seen: dict[Path, object] = {}
        self._woken, self._waker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def __enter__(self) -> FolderWatch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._inotify is not None:
            self._inotify.close()
        os.close(self._woken)
        os.close(self._waker)

    def wake(self) -> None:
        """End the current or the next wait; may be called from a signal handler."""
        with contextlib.suppress(BlockingIOError):
            os.write(self._waker, b"!")

    def watch(self, folders: Iterable[Path]) -> None:
        """Watch *folders* from now on, and no others; some may not exist yet."""
        self._seen = {folder: _poll(folder) for folder in folders}
        if self._inotify is None:
            return
        for folder in [each for each in self._watched if each not in self._seen]:
            with contextlib.suppress(OSError):  # the folder is gone, and its watch with it
                self._inotify.rm_watch(self._watched[folder])
            del self._watched[folder]
        for folder in self._seen:
            # Also those already watched: another folder may have their name by now.
            with contextlib.suppress(OSError):
                self._watched[folder] = self._inotify.add_watch(folder, _events())

    def wait(self, seconds: float) -> bool:
        """Wait at most that long; return whether anything has changed, or wake() was called."""
        end = time.monotonic() + seconds
        while True:
            left = end - time.monotonic()
            if self._has_changed(max(0.0, min(left, self._poll_seconds))):
                return True
            if left <= 0:
                return False

    def _has_changed(self, seconds: float) -> bool:
        files = [self._woken] if self._inotify is None else [self._woken, self._inotify.fd]
        ready, _, _ = select.select(files, (), (), seconds)
        if self._woken in ready:
            os.read(self._woken, 4096)
            return True
        notified = bool(ready) and self._inotify is not None and any(self._inotify.read(timeout=0))
        now = {folder: _poll(folder) for folder in self._seen}
        differs, self._seen = now != self._seen, now
        return notified or differs


def _open_inotify() -> inotify_simple.INotify | None:
    try:
        import inotify_simple

        return inotify_simple.INotify()
    except (ImportError, OSError) as exc:
        log.warning("inotify is not available, polling every %s s: %s", POLL_SECONDS, exc)
        return None


def _events() -> int:
    # No ATTRIB: our own hard links change the attributes of the driver's files.
    from inotify_simple import flags

    return int(
        flags.CREATE
        | flags.DELETE
        | flags.MOVED_FROM
        | flags.MOVED_TO
        | flags.CLOSE_WRITE
        | flags.DELETE_SELF
        | flags.MOVE_SELF
        | flags.ONLYDIR
    )


def _poll(folder: Path) -> object:
    """Return a value that changes when an entry of *folder* is added, removed or renamed.

    It also changes when a link to a folder gets another target, even one that does not exist here.
    """
    seen: list[int] = []
    try:  # most of a hundred folders do not exist: each costs little more than its stat
        found = os.lstat(folder)
        seen += (found.st_dev, found.st_ino, found.st_mtime_ns)
        if stat.S_ISLNK(found.st_mode):
            found = os.stat(folder)  # noqa: PTH116 - faster without Path
            seen += (found.st_dev, found.st_ino, found.st_mtime_ns)
    except OSError:
        pass
    return seen
