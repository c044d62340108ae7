"""Leases on the mirror's trees that grants use: a lock on each keeps the mirror from removing it.

A link in a grant's folder names its tree. The held trees are also tracked in memory, so that the
links are read only when a tree may be released.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from typing import TYPE_CHECKING

from pyvgpu.deviceplugin import grants
from pyvgpu.deviceplugin.containers import region_files
from pyvgpu.volumes import atomic_files

if TYPE_CHECKING:
    from pathlib import Path

DRIVER_LINK = "driver"  # in the folder of a grant


class Trees:
    """The trees that the grants in a folder need; not thread-safe, its owner locks."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._locks: dict[Path, int] = {}
        self._needed: dict[str, Path] = {}  # the tree of each grant, by the grant's id

    def close(self) -> None:
        """Release all trees."""
        for descriptor in self._locks.values():
            os.close(descriptor)
        self._locks.clear()
        self._needed.clear()

    def hold(self, path: Path, tree: Path) -> None:
        """Hold *tree* for the grant in the folder *path*."""
        self._lock(tree)
        before = self._needed.get(path.name, tree)
        self._needed[path.name] = tree
        if before != tree:
            self._let_go()

    def note(self, path: Path, tree: Path) -> None:
        """Link *tree* in the folder *path* of a grant, and hold it."""
        self._lock(tree)  # before the link exists
        link = path / DRIVER_LINK
        if not _leads(link, tree):
            draft = atomic_files.new(path)
            draft.symlink_to(tree)
            draft.replace(link)
        self.hold(path, tree)

    def forget(self, grant_id: str) -> None:
        """Release the tree of a grant that is gone."""
        self._needed.pop(grant_id, None)
        self._let_go()

    def _lock(self, tree: Path) -> None:
        if tree not in self._locks:
            descriptor = os.open(tree, region_files.OPEN_FOLDER)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            self._locks[tree] = descriptor

    def _let_go(self) -> None:
        """Release the trees that no grant needs any more, or links in its folder."""
        if not self._locks.keys() - self._needed.values():
            return
        named = set(self._needed.values())
        for path in self._folder.iterdir():
            if not grants.is_id(path.name):
                continue  # a pre-created folder, or one being removed
            with contextlib.suppress(OSError):
                named.add((path / DRIVER_LINK).readlink())
        for tree in self._locks.keys() - named:
            os.close(self._locks.pop(tree))


def _leads(link: Path, tree: Path) -> bool:
    try:
        return link.readlink() == tree
    except OSError:
        return False
