"""Pool of pre-created grant folders.

Most of the time to create one goes into allocating the region's files, the same for every grant.
So some folders exist before twenty containers start at once, under draft names: a grant takes one,
its quota is written, and the folder is renamed. Folders left by a killed agent are removed by the
next one, with all other drafts.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import shutil
import threading
import time
from typing import TYPE_CHECKING

from pyvgpu.deviceplugin.containers import mirror_leases, region_files
from pyvgpu.volumes import atomic_files

if TYPE_CHECKING:
    from pathlib import Path

SIZE = 20  # folders, of 570 KiB each
QUIET_SECONDS = 0.25  # without a taken folder, before the pool is refilled
LEAST_FREE_BYTES = 64 << 20  # of the file system: the last space is left for actual grants


@dataclasses.dataclass(frozen=True, slots=True)
class PooledFolder:
    """A pre-created folder for some future grant."""

    path: Path
    region_id: bytes
    tree: Path  # of the mirror, the target of its link


class GrantPool:
    """The blank folders in *folder*; thread-safe."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ready: collections.deque[PooledFolder] = collections.deque()
        self._lock = threading.Lock()
        self._taken = -QUIET_SECONDS  # time of the last take, seconds of a monotonic clock

    def take(self, tree: Path) -> PooledFolder:
        """Remove a folder for *tree* from the pool and return it; create one if there is none."""
        self._taken = time.monotonic()
        with contextlib.suppress(IndexError):
            while True:
                blank = self._ready.popleft()
                if blank.tree == tree:
                    return blank
                atomic_files.discard(blank.path)  # the driver was replaced since
        return self._make(tree)

    def fill(self, tree: Path) -> None:
        """Refill the pool for *tree*, while none is taken and the disk has enough space."""
        with self._lock:
            for blank in [ready for ready in list(self._ready) if ready.tree != tree]:
                with contextlib.suppress(ValueError):  # another thread has just taken it
                    self._ready.remove(blank)
                    atomic_files.discard(blank.path)
            while (
                len(self._ready) < SIZE
                and time.monotonic() - self._taken > QUIET_SECONDS
                and shutil.disk_usage(self._folder).free > LEAST_FREE_BYTES
            ):
                self._ready.append(self._make(tree))

    def close(self) -> None:
        """Remove all folders of the pool."""
        with self._lock, contextlib.suppress(IndexError):
            while True:
                atomic_files.discard(self._ready.popleft().path)

    def _make(self, tree: Path) -> PooledFolder:
        path = atomic_files.new(self._folder)
        path.mkdir(mode=0o755)
        try:
            region_id = region_files.prepare(path)
            (path / mirror_leases.DRIVER_LINK).symlink_to(tree)
        except OSError:
            atomic_files.discard(path)
            raise
        return PooledFolder(path, region_id, tree)
