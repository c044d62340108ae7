"""Folders of grants that are made before anybody needs one.

What takes most of the time is the room that the files of a region get; it is the same for every
grant. So some folders are there already when twenty containers start at once, under names of
drafts: a grant's is taken, its quota is written, and it is renamed. What an agent leaves that was
killed, the next removes with all other drafts.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import shutil
import threading
import time
from typing import TYPE_CHECKING

from pyvgpu.deviceplugin import regions, trees
from pyvgpu.volumes import drafts

if TYPE_CHECKING:
    from pathlib import Path

SIZE = 20  # folders, of 570 KiB each
QUIET_SECONDS = 0.25  # without anybody who takes one, before others are made
LEAST_FREE_BYTES = 64 << 20  # of the file system: the last of its room is for who needs it now


@dataclasses.dataclass(frozen=True, slots=True)
class Blank:
    """A folder that is to be some grant's."""

    path: Path
    region_id: bytes
    tree: Path  # of the mirror, that its link leads to


class Stock:
    """The blank folders in *folder*; several threads may come."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ready: collections.deque[Blank] = collections.deque()
        self._filling = threading.Lock()
        self._taken = -QUIET_SECONDS  # when one was last, seconds of a clock that never goes back

    def take(self, tree: Path) -> Blank:
        """Return one of *tree* that is nobody else's any more; a new one if there is none."""
        self._taken = time.monotonic()
        with contextlib.suppress(IndexError):
            while True:
                blank = self._ready.popleft()
                if blank.tree == tree:
                    return blank
                drafts.discard(blank.path)  # another driver has come since
        return self._make(tree)

    def fill(self, tree: Path) -> None:
        """Make what is lacking, of *tree*, while nobody takes one and there is room enough."""
        with self._filling:
            for blank in [it for it in list(self._ready) if it.tree != tree]:
                with contextlib.suppress(ValueError):  # else somebody has just taken it
                    self._ready.remove(blank)
                    drafts.discard(blank.path)
            while (
                len(self._ready) < SIZE
                and time.monotonic() - self._taken > QUIET_SECONDS
                and shutil.disk_usage(self._folder).free > LEAST_FREE_BYTES
            ):
                self._ready.append(self._make(tree))

    def close(self) -> None:
        """Leave none."""
        with self._filling, contextlib.suppress(IndexError):
            while True:
                drafts.discard(self._ready.popleft().path)

    def _make(self, tree: Path) -> Blank:
        path = drafts.new(self._folder)
        path.mkdir(mode=0o755)
        try:
            region_id = regions.prepare(path)
            (path / trees.DRIVER_LINK).symlink_to(tree)
        except OSError:
            drafts.discard(path)
            raise
        return Blank(path, region_id, tree)
